# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

SEEDS_MAX = 100_000
"""`testbed.spec.SEEDS_MAX`, whose import would take longer than most commands' help."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


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
