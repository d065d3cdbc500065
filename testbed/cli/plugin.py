# SPDX-License-Identifier: Apache-2.0
"""`paralet plugin`: shows the NCCL net plugin's path, exports, and the variables that load and configure it."""

import json
from dataclasses import asdict

import click

import nccl_net_plugin
from netmodel.printable import printable
from testbed.errors import TestbedError


@click.command(epilog="Example: eval \"$(paralet plugin | grep '^export ')\"")
@click.option("--parameters", "show_parameters", is_flag=True, help="List the PARALET_* variables instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def plugin(show_parameters: bool, as_json: bool) -> None:
    """Show where the NCCL net plugin is, what it exports and how to load it.

    docs/plugin.md says more.
    """
    try:
        if show_parameters:
            _parameters(as_json)
        else:
            _plugin(as_json)
    except FileNotFoundError as error:
        raise TestbedError(str(error)) from error


def _plugin(as_json: bool) -> None:
    path, exports, environment = nccl_net_plugin.path(), nccl_net_plugin.exports(), nccl_net_plugin.environment()
    profiler = nccl_net_plugin.profiler_path()
    if as_json:
        shown = {"path": str(path), "exports": exports, "environment": environment, "profiler": str(profiler)}
        click.echo(json.dumps(shown, indent=2))
        return
    click.echo(printable(f"path     {path}"))
    click.echo(printable(f"exports  {', '.join(exports)}"))
    click.echo("NCCL 2.21 or later loads it with")
    for name, value in environment.items():
        click.echo(printable(f"export {name}={value}"))
    click.echo("NCCL 2.28 or later shows its operations in `paralet top` and `paralet stat` also with")
    click.echo(printable(f"NCCL_PROFILER_PLUGIN={profiler}"))


def _parameters(as_json: bool) -> None:
    parameters = nccl_net_plugin.parameters()
    if as_json:
        click.echo(json.dumps({"parameters": [asdict(parameter) for parameter in parameters]}, indent=2))
        return
    from testbed.cli.tables import console, table

    listing = table("", ["parameter", "values", "default", "meaning"], [])
    for parameter in parameters:
        listing.add_row(parameter.name, parameter.values, parameter.default, parameter.meaning)
    console().print(listing)
