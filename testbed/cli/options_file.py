# SPDX-License-Identifier: Apache-2.0
"""Options of a command in a YAML file, which can be read anew while the command runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

_ARGUMENTS = "testbed.cli.options_file.arguments"


class OptionsCommand(click.Command):
    """A command with `options_file_option`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def parsed_again(ctx: click.Context) -> dict[str, Any]:
    """The parameters that a running command would have if it were started now. Raises as parsing does."""
    with ctx.command.make_context(ctx.info_name, list(ctx.meta[_ARGUMENTS]), parent=ctx.parent) as again:
        return again.params


def option_name(command: click.Command, parameter: str) -> str:
    """The name of a parameter as users write it, such as --hash."""
    return next(param.opts[0] for param in command.params if param.name == parameter)


def _read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **_defaults(ctx.command, path)}


def _defaults(command: click.Command, path: Path) -> dict[str, Any]:
    """The values in a file by parameter. Raises BadParameter and SpecError."""
    from netmodel.yaml_source import Document  # an extra brings YAML

    try:
        said = Document.read(path).data
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint="--options") from None
    if not isinstance(said, Mapping):
        raise click.BadParameter(f"{path}: write one option a line, such as `planner: greedy`", param_hint="--options")
    known = {
        param.opts[0].removeprefix("--"): param
        for param in command.params
        if isinstance(param, click.Option) and param.expose_value
    }
    values: dict[str, Any] = {}
    for name, value in said.items():
        param = known.get(name)
        if param is None or param.name is None:
            raise click.BadParameter(f"{path}: {name!r} is none of {', '.join(sorted(known))}", param_hint="--options")
        if param.is_flag != isinstance(value, bool) or not isinstance(value, bool | int | float | str):
            expected = "true or false" if param.is_flag else "a number or a text"
            raise click.BadParameter(f"{path}: {name}: write {expected}", param_hint="--options")
        values[param.name] = value if param.is_flag else str(value)
    return values


options_file_option = click.option(
    "--options",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_read,
    help="A YAML file with options, such as `planner: greedy`. Those of the command line go before it.",
)
"""Adds --options, to an `OptionsCommand`."""
