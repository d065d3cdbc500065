# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

import os
from collections.abc import Callable
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
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises InputError where no file can be made in its folder, BadParameter where it is a folder."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            if not path.exists():
                with TemporaryFile(dir=path.parent):
                    pass
        except OSError as error:
            raise InputError(sentence_of(OSError(error.errno, os.strerror(error.errno or 0), str(path)))) from error
        return path


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
