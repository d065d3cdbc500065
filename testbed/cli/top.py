# SPDX-License-Identifier: Apache-2.0
"""`paralet top`: lanes and links of running processes, on a screen that moves."""

import json
import sys
import time
from itertools import count as count_up
from pathlib import Path
from typing import BinaryIO

import click

from hostlib import stats
from testbed.cli.counters_input import CountersInput, keys_from_terminal
from testbed.cli.fabric import HASHES, fabric_of
from testbed.errors import InputError, TestbedError
from testbed.live.fabric_view import FabricView
from testbed.live.moments import Moments, as_json


@click.command(epilog="Examples: paralet top; sudo paralet top --topology experiments/demo.yaml")
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(min=1))
@click.option(
    "--topology",
    "topology_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A topology, or an experiment spec that has one: the load of its links is shown too.",
)
@click.option("--hash", "hash_name", type=click.Choice(list(HASHES)), help="Hash of its switches, as for predict.")
@click.option(
    "--counters",
    "counters_file",
    metavar="FILE",
    type=click.File("rb", lazy=False),
    help="Show counters of switch ports too: lines of OpenMetrics or gNMI events from FILE, or - for standard input.",
)
@click.option(
    "--interval",
    "interval_s",
    metavar="S",
    type=click.FloatRange(min=stats.EVERY_S, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--json", "json_lines", is_flag=True, help="Print a JSON object per update instead of drawing.")
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="With --json: end after N updates.")
def top(
    pids: tuple[int, ...],
    topology_file: Path | None,
    hash_name: str | None,
    counters_file: BinaryIO | None,
    interval_s: float,
    json_lines: bool,
    count: int | None,
) -> None:
    """Watch the lanes of running processes and, with --topology, the links they load.

    Shows the processes PID, or all processes of this user (as root, of all users, also those of a running experiment).
    The load of links is that of the lanes seen here: their rates along the paths which the switches' hash gives their
    ports. With --counters, links whose ports belong to the topology have the load that switches counted. Keys: q quits,
    space pauses, s sorts by rate, round trip, resent packets or moves.
    """
    if hash_name is not None and topology_file is None:
        raise click.UsageError("--hash needs --topology")
    if count is not None and not json_lines:
        raise click.UsageError("--count needs --json")
    view = None
    if topology_file is not None:
        topology, _, ecmp_hash = fabric_of(topology_file, hash_name)
        view = FabricView(topology, ecmp_hash)
        if not view.pairs:
            raise InputError(f"topology {topology.name} has no links between leaves and spines to watch")
    if json_lines:
        _stream(pids, view, interval_s, count, None if counters_file is None else CountersInput(counters_file))
        return
    if not sys.stdout.isatty():
        raise TestbedError("standard output is no terminal: use --json, or `paralet stat`")
    from testbed.cli.top_screen import TopScreen

    counters = None
    if counters_file is not None:
        if counters_file.fileno() == 0:
            counters_file = keys_from_terminal()
        counters = CountersInput(counters_file)
    TopScreen(lambda: stats.survey(pids or None), view, interval_s, None if counters is None else counters.take).run()


def _stream(
    pids: tuple[int, ...],
    view: FabricView | None,
    interval_s: float,
    count: int | None,
    counters: CountersInput | None,
) -> None:
    """Print an object per update, until `count` were printed or the counters have ended."""
    moments = Moments(view)
    for done in count_up(1):
        ended = counters is not None and counters.ended.wait(interval_s)
        ports, wrong = ([], []) if counters is None else counters.take()
        for sentence in wrong:
            click.echo(f"paralet: {sentence}", err=True)
        moment = moments.take(stats.survey(pids or None), time.monotonic(), ports)
        click.echo(json.dumps(as_json(moment, view)))
        sys.stdout.flush()
        if done == count or ended:
            return
        if counters is None:
            time.sleep(interval_s)
