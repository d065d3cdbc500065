# SPDX-License-Identifier: Apache-2.0
"""`paralet bench`: measures a part of paralet and a reference (the peer) in the same run."""

import json
from dataclasses import dataclass
from importlib import import_module

import click

from testbed.bench import Result
from testbed.cli.extras import Extra, require


@dataclass(frozen=True, slots=True)
class Bench:
    """A module with a function `measure`, and the extra that it needs. Only the module of the bench asked for loads."""

    module: str
    extra: Extra | None = None


BENCHES = {
    "transport": Bench("testbed.bench.transport"),
    "scale": Bench("testbed.bench.scale"),
    "cores": Bench("testbed.bench.cores"),
    "plugin": Bench("testbed.bench.plugin"),
    "pin": Bench("testbed.bench.pin"),
    "planner": Bench("testbed.bench.planner", "models"),
    "fluid": Bench("testbed.bench.fluid", "models"),
    "packet": Bench("testbed.bench.packet", "models"),
    "path-service": Bench("testbed.bench.path_service", "service"),
    "probing": Bench("testbed.bench.probing", "service"),
    "stress": Bench("testbed.bench.stress"),
    "systems": Bench("testbed.research.decision_times", "models"),
    "torch": Bench("testbed.bench.torch"),
    "verbs": Bench("testbed.bench.verbs"),
    "watch": Bench("testbed.bench.watch", "fabric"),
}


@click.command(epilog="Example: paralet bench transport --json")
@click.argument("name", metavar="NAME", type=click.Choice(list(BENCHES)))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def bench(name: str, as_json: bool) -> None:
    """Measure NAME and its peer, or the best of its cases, and print the ratios ours / peer.

    docs/performance.md says whether a higher or lower ratio is better.
    """
    chosen = BENCHES[name]
    if chosen.extra is not None:
        require(chosen.extra, f"paralet bench {name}")
    result: Result = import_module(chosen.module).measure()
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        _print(result)


def _print(result: Result) -> None:
    from testbed.cli.tables import console, table

    listing = table(f"{result.bench}, {result.machine}", ["metric", "case", "unit"], ["ours", "peer", "ours / peer"])
    for row in result.rows:
        values = (f"{row.ours:.4g}", f"{row.peer:.4g} ({row.peer_name})", f"{row.ratio:.2f}")
        listing.add_row(row.metric, row.case, row.unit, *values)
    console().print(listing)
