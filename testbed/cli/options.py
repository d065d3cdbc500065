# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import click

from testbed.errors import InputError, sentence_of

SEEDS_MAX = 100_000
"""`testbed.spec.SEEDS_MAX`, whose import would take longer than most commands' help."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class FileToWrite(click.Path):
    """The type of an option for a file that the command writes at its end: refused before the work if it cannot be."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, readable=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises InputError where `to_write` does, BadParameter where it is a folder."""
        return to_write(Path(os.fsdecode(super().convert(value, param, ctx))))


def to_write(file: Path) -> Path:
    """A file that the command will write, tried and left as it is. Where it is a link, the file that it names is tried.

    Raises InputError where the file cannot be written, or made in its folder.
    """
    with _refused(file):
        if not _exists(file):
            _try_folder(file.resolve().parent)
        elif file.is_file() or file.is_dir():  # no pipe, which may wait for a reader
            file.open("ab").close()
    return file


def folder_to_write(folder: Path) -> None:
    """Tries a folder that the command will make if it is missing, and write files into.

    Raises InputError where it cannot.
    """
    with _refused(folder):
        _try_folder(folder if _exists(folder) else folder.resolve().parent)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(sentence_of(OSError(error.errno, os.strerror(error.errno or 0), str(path)))) from error


def _exists(path: Path) -> bool:
    """Unlike `Path.exists`, raises OSError for links in a circle and for what lies in a file."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _try_folder(folder: Path) -> None:
    with TemporaryFile(dir=folder):
        pass


def seeds_and_policies(command: _Command) -> _Command:
    """Adds --seeds and --policy, passed as `seeds` and `policies`."""
    seeds = click.option(
        "--seeds", metavar="N", type=click.IntRange(1, SEEDS_MAX), help="Run N seeds instead of the spec's."
    )
    policies = click.option(
        "--policy", "policies", metavar="NAME", multiple=True, help="Run only this policy; may be repeated."
    )
    return seeds(policies(command))


def results_folder(gets: str) -> Callable[[_Command], _Command]:
    """Adds --results, passed as `results_dir`. `gets` tells in its help what the command writes to that folder."""
    return click.option(
        "--results",
        "results_dir",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("results"),
        show_default=True,
        help=f"Folder that gets {gets}.",
    )
