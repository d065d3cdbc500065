# SPDX-License-Identifier: Apache-2.0
"""Whether a command line of paralet is one, without running it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from testbed.cli import main


def check(words: Sequence[str]) -> None:
    """Raises click.UsageError, or AssertionError, unless `words` are `paralet`, a command and options that it has."""
    assert words[0] == "paralet"
    command: click.Command = main
    context = click.Context(command, info_name="paralet")
    rest = list(words[1:])
    while isinstance(command, click.Group):
        name, *rest = rest
        found = command.get_command(context, name)
        assert found is not None, f"paralet has no command {name}"
        command, context = found, click.Context(found, context, info_name=name)
    command.make_context(words[-1], rest, context)
