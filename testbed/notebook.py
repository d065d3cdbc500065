# SPDX-License-Identifier: Apache-2.0
"""Experiments from Python: run a spec, and have its results as tables whose rows pandas takes as they are."""

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from testbed.analysis.results import SUMMARY
from testbed.cli.run import carry_out
from testbed.errors import InputError, TestbedError, sentence_of
from testbed.spec import FABRICS, SEEDS_MAX, FabricName, load

Cell = bool | int | float | str | None
"""What a table holds. None: the run has no such value."""


@dataclass(frozen=True, slots=True)
class Results:
    """The results of an experiment."""

    folder: Path
    summary: dict[str, Any] = field(repr=False)
    """The contents of `summary.json`; docs/cli.md has its keys."""
    tables: Mapping[str, list[dict[str, Cell]]] = field(repr=False)
    """By name, such as "flows" for `flows.csv`: the rows, each by column. Times are in seconds, sizes in bytes."""


def run(
    spec: Path | str,
    *,
    policies: Sequence[str] = (),
    seeds: int | None = None,
    fabric: FabricName | None = None,
    results: Path | str = "results",
    overwrite: bool = False,
) -> Results:
    """Run the experiment in the file `spec`, as `paralet run` does with the options of the same names.

    Progress and warnings go to standard error. Raises SpecError or InputError for a request that is wrong, and
    TestbedError for a run that fails, or whose hosts received a wrong byte.
    """
    if isinstance(policies, str):
        raise InputError(f'give policies as a list, such as ["{policies}"]')
    if seeds is not None and not 1 <= seeds <= SEEDS_MAX:
        raise InputError(f"seeds is {seeds}, but has to be from 1 to {SEEDS_MAX}")
    if fabric is not None and fabric not in FABRICS:
        raise InputError(f"there is no fabric {fabric}: {', '.join(FABRICS)}")
    experiment = load(Path(spec), policies=policies, seeds=seeds, fabric=fabric, run_code=True)
    try:
        with ExitStack() as held:
            folder, outcome = carry_out(experiment, Path(spec), Path(results), held, overwrite=overwrite)
    except click.Abort as end:
        raise KeyboardInterrupt from end
    except click.exceptions.Exit as end:
        raise TestbedError(f"the run of {spec} failed: standard error has the reason") from end
    except OSError as error:
        raise TestbedError(sentence_of(error)) from error
    if not all(result.verified for result in outcome.results):
        raise TestbedError(f"hosts received wrong bytes: {folder / SUMMARY} has the policies")
    return read(folder)


def read(folder: Path | str) -> Results:
    """The results in a folder that `run` or `paralet run` has written. Raises InputError where they are missing."""
    path = Path(folder)
    try:
        summary = json.loads((path / SUMMARY).read_text())
        return Results(path, summary, {file.stem: _rows(file) for file in sorted(path.glob("*.csv"))})
    except OSError as error:
        raise InputError(sentence_of(error)) from error


def _rows(file: Path) -> list[dict[str, Cell]]:
    with file.open(newline="") as lines:
        return [{column: _cell(column, text) for column, text in row.items()} for row in csv.DictReader(lines)]


def _cell(column: str, text: str) -> Cell:
    if column in _NAMES:
        return text
    if text in _WORDS:
        return _WORDS[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


_NAMES = frozenset({"policy", "job", "hosts", "host", "src_host", "dst_host", "src", "dst"})
"""Columns of names, which may be digits."""

_WORDS: Mapping[str, Cell] = {"": None, "True": True, "False": False}
