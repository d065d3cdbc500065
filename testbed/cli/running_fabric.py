# SPDX-License-Identifier: Apache-2.0
"""What the commands on a running fabric share."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

TAKES_WORDS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Settings of a command whose words after the first are for another program, options too."""


def on_option(command: _Command) -> _Command:
    """Adds --on, passed as `on`."""
    return click.option(
        "--on",
        metavar="NAME",
        help="The fabric, by the name of its spec or its number in `paralet inspect`; needed where several are up.",
    )(command)


def give(on: str | None, words: Sequence[str]) -> int:
    """Give a command to a fabric that is up. Returns its exit status. Raises InputError, and TestbedError."""
    from testbed.run.console.client import chosen

    return chosen(on).run(words)
