# SPDX-License-Identifier: Apache-2.0
"""`paralet bench`: measures a part of paralet and a reference (the peer) in the same run."""

import json

import click

from testbed.bench import BENCHES, Result, benchmark
from testbed.cli.extras import Extra, require

_EXTRAS: dict[str, Extra] = {
    "planner": "models",
    "fluid": "models",
    "packet": "models",
    "systems": "models",
    "path-service": "service",
    "watch": "fabric",
}
"""What the other benchmarks do not need."""


@click.command(epilog="Example: paralet bench transport --json")
@click.argument("name", metavar="NAME", type=click.Choice(list(BENCHES)))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def bench(name: str, as_json: bool) -> None:
    """Measure NAME and its peer, or the best of its cases, and print the ratios ours / peer.

    docs/performance.md says whether a higher or lower ratio is better.
    """
    if name in _EXTRAS:
        require(_EXTRAS[name], f"paralet bench {name}")
    result = benchmark(name)()
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
