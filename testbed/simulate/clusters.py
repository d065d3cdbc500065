# SPDX-License-Identifier: Apache-2.0
"""Runs a cluster spec: every strategy with every seed, on all cores, resumable.

The result of a strategy with a seed is a file, named by a digest of the scenario and the trace and written atomically.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sim.cluster import Job, Outcome, Result, Scenario, TraceError, simulate
from testbed.errors import InputError, sentence_of
from testbed.progress import Steps
from testbed.spec.cluster import ClusterSpec

_FORMAT = 3
"""Version of result files, and of what the simulation computes; files of other versions are ignored."""


def run(spec: ClusterSpec, folder: Path, processes: int | None = None) -> dict[str, list[Result]]:
    """The results by strategy, in the order of seeds. All strategies get the same traces.

    Results that `folder` already has are not computed again. `processes` is the number of processes; None: as many as
    there are cores. Raises InputError for a trace that cannot be read, and OSError for a folder that cannot be written.
    """
    from joblib import Parallel, delayed

    try:
        traces = {seed: spec.jobs(seed) for seed in range(1, spec.seeds + 1)}
    except TraceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(sentence_of(error)) from error
    cases = [(strategy, seed) for strategy in spec.strategies for seed in traces]
    found: dict[tuple[str, int], Result] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with Steps(len(cases), every_s=1.0) as steps:
        steps.now("simulating")
        workers = Parallel(n_jobs=processes or -1, return_as="generator_unordered")
        done: Iterator[tuple[str, int, Result]] = workers(
            delayed(_one)(strategy.name, seed, traces[seed], spec.scenario(strategy, seed), folder)
            for strategy, seed in cases
        )
        for name, seed, result in done:
            found[name, seed] = result
            steps.advance()
            steps.now(f"{name}, seed {seed}")
    return {strategy.name: [found[strategy.name, seed] for seed in traces] for strategy in spec.strategies}


def _one(name: str, seed: int, jobs: list[Job], scenario: Scenario, folder: Path) -> tuple[str, int, Result]:
    digest = hashlib.sha256(repr((_FORMAT, scenario, jobs)).encode()).hexdigest()
    path = folder / f"{digest[:20]}.json"
    if (result := _read(path, jobs)) is None:
        result = simulate(jobs, scenario)
        _write(path, result)
    return name, seed, result


def _read(path: Path, jobs: Sequence[Job]) -> Result | None:
    """The result in a file; None when there is none, or a damaged one."""
    try:
        kept = json.loads(path.read_text())
        outcomes = [
            Outcome(job, state, start_s, end_s, leaves, reason, tuple((from_s, to_s) for from_s, to_s in pauses))
            for job, (state, start_s, end_s, leaves, reason, pauses) in zip(jobs, kept.pop("outcomes"), strict=True)
        ]
        worst = [(float(time_s), float(flows)) for time_s, flows in kept.pop("worst_flows")]
        return Result(outcomes, Counter(kept.pop("failures")), worst_flows=worst, **kept)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path, result: Result) -> None:
    kept = {
        "outcomes": [
            [outcome.state, outcome.start_s, outcome.end_s, outcome.leaves, outcome.reason, outcome.pauses]
            for outcome in result.outcomes
        ],
        "failures": result.failures,
        "gpu_seconds": result.gpu_seconds,
        "end_s": result.end_s,
        "idle_at_end": result.idle_at_end,
        "paths_set": result.paths_set,
        "paths_moved": result.paths_moved,
        "worst_flows": result.worst_flows,
    }
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(kept))
    fresh.replace(path)
