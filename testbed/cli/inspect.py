# SPDX-License-Identifier: Apache-2.0
"""`paralet inspect`: what a fabric that is up consists of."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from netmodel.printable import printable, printable_lines
from testbed.cli.running_fabric import give, on_option
from testbed.errors import TestbedError

if TYPE_CHECKING:
    from testbed.run.console.client import UpFabric

_VIEWS = ("nodes", "net", "links", "rules")


@click.command(epilog="Examples: sudo paralet inspect; sudo paralet inspect links; sudo paralet inspect rules leaf1")
@on_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: every fabric with its nodes and links.")
@click.argument("view", required=False, type=click.Choice(_VIEWS))
@click.argument("words", metavar="[SWITCH]", nargs=-1)
def inspect(on: str | None, as_json: bool, view: str | None, words: tuple[str, ...]) -> int:
    """Show what a fabric that is up consists of.

    Without VIEW, every fabric of this user on this machine: its hosts and switches, their addresses, and for each the
    id of a process in its namespaces, for nsenter. `net` shows what is plugged into each port, `links` whether links
    are up, their rates and faults, and `rules SWITCH` what a switch forwards by.
    """
    if view == "links" and words:
        raise click.UsageError("inspect only shows links: `paralet link` changes them")
    if len(words) != (1 if view == "rules" else 0):
        raise click.UsageError("rules needs one SWITCH, and only rules takes one")
    if as_json and view is not None:
        raise click.UsageError("--json has all of it: leave VIEW out")
    if view is not None and view != "nodes":
        return give(on, [view, *words])
    from testbed.run.console.client import chosen, up_fabrics
    from testbed.run.console.tables import nodes_table

    told = list(_still_up(up_fabrics())) if on is None else [_of(chosen(on))]
    if as_json:
        click.echo(json.dumps({"fabrics": told}, indent=2))
        return 0
    if not told:
        raise TestbedError("no fabric of this user is up here")
    for fabric in told:
        title = "{name}, number {number}: fabric {fabric} of paralet {command}, logs in {logs}".format_map(fabric)
        click.echo(printable(title))
        click.echo(printable_lines(nodes_table(fabric["nodes"])))
    return 0


def _still_up(found: Iterable["UpFabric"]) -> Iterator[dict[str, Any]]:
    """What those of the fabrics tell that do not end meanwhile, as others of this user may."""
    from testbed.run.console.client import FabricGoneError

    for fabric in found:
        with suppress(FabricGoneError, FileNotFoundError):
            yield _of(fabric)


def _of(fabric: "UpFabric") -> dict[str, Any]:
    """A fabric as JSON has it."""
    greeting = fabric.greeting
    return {
        "name": greeting.name,
        "fabric": greeting.fabric,
        "command": greeting.command,
        "number": fabric.sandbox.pid,
        "logs": greeting.logs,
        "nodes": _nodes(fabric),
        "links": _answer(fabric, "links"),
    }


def _nodes(fabric: "UpFabric") -> list[dict[str, Any]]:
    """The nodes of a fabric, with the process ids that they have here."""
    pids = fabric.sandbox.pids()
    return [{**node, "pid": pids.get(node["pid"])} for node in _answer(fabric, "nodes")]


def _answer(fabric: "UpFabric", command: str) -> Any:
    """The JSON that a command of the console prints. Raises TestbedError."""
    with open(os.memfd_create("answer"), "w+b") as answer:
        if fabric.run([command, "--json"], (0, answer.fileno(), 2)):
            raise TestbedError(f"fabric {fabric.greeting.name} does not tell its {command}")
        answer.seek(0)
        return json.loads(answer.read())
