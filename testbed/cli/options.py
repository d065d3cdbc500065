# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from testbed.spec import SEEDS_MAX

_Command = TypeVar("_Command", bound=Callable[..., Any])


def topology_file(also: str = "") -> Callable[[_Command], _Command]:
    """--topology FILE, as `topology_file`; `also` is what its help says besides."""
    return click.option(
        "--topology",
        "topology_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        required=True,
        help=f"A topology, or an experiment spec that has one. {also}".rstrip(),
    )


def seeds_and_policies(command: _Command) -> _Command:
    """--seeds and --policy, which make less of a spec: `seeds` and `policies`."""
    seeds = click.option(
        "--seeds", metavar="N", type=click.IntRange(1, SEEDS_MAX), help="Run N seeds instead of the spec's."
    )
    policies = click.option(
        "--policy", "policies", metavar="NAME", multiple=True, help="Run only this policy; may be repeated."
    )
    return seeds(policies(command))
