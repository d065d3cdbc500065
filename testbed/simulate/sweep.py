# SPDX-License-Identifier: Apache-2.0
"""Sweeps: one spec with many parameter values and seeds, on all cores or on a Dask cluster, resumable.

A point is one combination of values with one seed, under all policies of the spec, on a simulated fabric. Its result is
a file, named by a digest of all inputs and written atomically. An interrupted sweep therefore resumes, and a sweep with
more values computes only the new points.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError

from testbed.analysis.results import ideal_of
from testbed.conflict import Conflict
from testbed.errors import InputError, TestbedError
from testbed.progress import Silent, Steps
from testbed.simulate.spread import spread
from testbed.spec import Experiment, Spec, check

_FORMAT = 1
"""Version of result files; files of other versions are ignored."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run of all policies: the requested `parameters`, and the whole spec as a document."""

    parameters: dict[str, Any]
    seed: int
    document: dict[str, Any]

    @property
    def name(self) -> str:
        """File name of the result: a digest of the spec and the seed."""
        text = json.dumps([_FORMAT, self.document, self.seed], sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"

    def __str__(self) -> str:
        said = [f"{key}={value}" for key, value in self.parameters.items()]
        return ", ".join([*said, f"seed {self.seed}"])


def points(experiment: Experiment, values: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every combination of `values` with every seed of the experiment, all checked. Raises InputError.

    A key is a path into the spec, such as `workload.bytes`; entries of a list are known by their number or their name:
    `policies.paralet.m`.
    """
    document = experiment.spec.model_dump(mode="json", exclude_unset=True)
    found = []
    for chosen in product(*values.values()):
        parameters = dict(zip(values, chosen, strict=True))
        changed = json.loads(json.dumps(document))
        for key, value in parameters.items():
            _put(changed, key, value)
        found += [Point(parameters, seed, {**changed, "seeds": [seed]}) for seed in _checked(changed, parameters).seeds]
    return found


def _put(document: Any, key: str, value: Any) -> None:
    """Set what the path `key` leads to."""
    *way, last = key.split(".")
    here = document
    for step in way:
        here = here[_place(here, step, key)]
    if not isinstance(here, dict):
        raise InputError(f"{key}: {way[-1] if way else 'the spec'} is not a section with keys")
    here[last] = value


def _place(here: Any, step: str, key: str) -> str | int:
    """The place of `step` in a section or a list."""
    if isinstance(here, dict) and step in here:
        return step
    if isinstance(here, list):
        for number, entry in enumerate(here):
            if step == str(number) or (isinstance(entry, dict) and entry.get("name") == step):
                return number
    known = here if isinstance(here, dict) else [entry["name"] for entry in here or () if "name" in entry]
    raise InputError(f"{key}: the spec has no {step!r} there; it has {', '.join(map(str, known))}")


def _checked(document: dict[str, Any], parameters: Mapping[str, Any]) -> Experiment:
    said = ", ".join(f"{key}={value}" for key, value in parameters.items()) or "the spec"
    try:
        return check(Spec.model_validate(document))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise InputError(f"{said}: {where + ': ' if where else ''}{what}") from error
    except Conflict as conflict:
        raise InputError(f"{said}: {conflict}") from conflict


def measure(point: Point) -> dict[str, Any]:
    """Run a point. Returns its result as a JSON object, times in seconds. Raises TestbedError."""
    from testbed.simulate.models import observe

    experiment = check(Spec.model_validate(point.document))
    try:
        observations = observe(experiment, Silent())
    except TestbedError as error:
        raise TestbedError(f"{point}: {error}") from error
    return {
        "parameters": point.parameters,
        "seed": point.seed,
        "ideal_s": ideal_of(experiment),
        "policies": [
            {
                "name": run.policy,
                "m": run.m,
                "completion_s": run.completion_s,
                "fct_mean_s": fmean(flow.completion_s for flow in run.flows),
                "fct_p99_s": float(np.quantile([flow.completion_s for flow in run.flows], 0.99)),
                "fct_max_s": max(flow.completion_s for flow in run.flows),
            }
            for run in observations.runs
        ],
    }


def sweep(
    asked: Sequence[Point], folder: Path, *, jobs: int | None = None, scheduler: str | None = None
) -> list[dict[str, Any]]:
    """The results of all points, in their order; results that `folder` already has are not computed again.

    `jobs`: processes on this machine, as many as it has cores unless given; `scheduler`: the address of a Dask
    scheduler, whose workers have this package, instead. Raises InputError, and TestbedError for a point that fails;
    results of other points are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [point for point in {point.name: point for point in asked}.values() if _load(folder, point) is None]
    with Steps(len(asked), every_s=2.0) as steps, ExitStack() as until_done:
        done = spread(_measured, missing, until_done, jobs=jobs, scheduler=scheduler)
        steps.now(f"{len(asked) - len(missing)} of {len(asked)} points are there already")
        for _ in range(len(asked) - len(missing)):
            steps.advance()
        for place, found in done:
            _save(folder / missing[place].name, found)
            steps.now(str(missing[place]))
            steps.advance()
    return [result for point in asked if (result := _load(folder, point)) is not None]


def _measured(point: Point) -> dict[str, Any]:
    return measure(point)


def _load(folder: Path, point: Point) -> dict[str, Any] | None:
    """The result of an earlier sweep; None if there is none or its file cannot be read."""
    try:
        found: dict[str, Any] = json.loads((folder / point.name).read_text())
    except (OSError, ValueError):
        return None
    return {**found, "parameters": point.parameters}


def _save(path: Path, result: dict[str, Any]) -> None:
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(result) + "\n")
    fresh.replace(path)
