# SPDX-License-Identifier: Apache-2.0
"""Options shared by commands that run a selection of a spec's seeds and policies."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from testbed.spec import SEEDS_MAX

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
