# SPDX-License-Identifier: Apache-2.0
"""The folder for the results of a run: a fresh one, or that of the same run before it was interrupted."""

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from testbed.analysis import results
from testbed.analysis.kept_runs import KeptRuns
from testbed.errors import InputError
from testbed.result_folder import LOCK, sole_writer


class RunFolder(NamedTuple):
    """A folder that this process alone may write to."""

    path: Path
    kept: KeptRuns
    """Runs that ended before an interruption; none in a fresh folder."""


def run_folder(folder: Path, written: str, overwrite: bool, held: ExitStack) -> RunFolder:
    """`folder`, or `folder`-2 and so on where results of another run are in it; without results unless they continue.

    `written` is the spec as a run writes it: an unfinished run of the same spec is continued. With `overwrite` it is
    `folder` in any case, and what is in it goes. `held` keeps the lock. Raises InputError.
    """
    for number in count(1):
        path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        with ExitStack() as lock:
            lock.enter_context(sole_writer(path))
            continued = _is_unfinished(path, written)
            if not (overwrite or continued or _is_free(path)):
                continue
            try:
                if overwrite or not continued:
                    results.prepare(path)
                kept = KeptRuns(path / results.KEPT)
            except OSError as error:
                raise InputError(f"cannot write results to {path}: {error.strerror}") from error
            except ValidationError as error:
                said = f"{path / results.KEPT} is damaged, or is of another version of paralet"
                raise InputError(f"{said}; start anew with --overwrite") from error
            held.enter_context(lock.pop_all())
            return RunFolder(path, kept)
    raise AssertionError  # `count` does not end


def _is_free(folder: Path) -> bool:
    """Whether nothing is lost when a run begins in the folder: it is empty, or has a run of which nothing was kept."""
    names = {entry.name for entry in folder.iterdir()} - {LOCK}
    begun = results.SPEC in names and not names & {results.SUMMARY, results.OBSERVATIONS, results.KEPT}
    return not names or begun


def _is_unfinished(folder: Path, written: str) -> bool:
    """Whether the folder has kept runs of this spec: they go when all have ended."""
    spec = folder / results.SPEC
    return (folder / results.KEPT).is_file() and spec.is_file() and spec.read_text() == written
