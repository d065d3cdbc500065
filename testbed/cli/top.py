# SPDX-License-Identifier: Apache-2.0
"""`paralet top`: lanes and links of running processes, on a screen that moves."""

import json
import sys
import time
from itertools import count as count_up
from pathlib import Path

import click

from hostlib import stats
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
    interval_s: float,
    json_lines: bool,
    count: int | None,
) -> None:
    """Watch the lanes of running processes and, with --topology, the links they load.

    Shows the processes PID, or all processes of this user (as root, of all users, also those of a running experiment).
    The load of links is that of the lanes seen here: their rates along the paths which the switches' hash gives their
    ports. Keys: q quits, space pauses, s sorts by rate, round trip, resent packets or moves.
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
        _stream(pids, view, interval_s, count)
        return
    if not sys.stdout.isatty():
        raise TestbedError("standard output is no terminal: use --json, or `paralet stat`")
    from testbed.cli.top_screen import TopScreen

    TopScreen(lambda: stats.survey(pids or None), view, interval_s).run()


def _stream(pids: tuple[int, ...], view: FabricView | None, interval_s: float, count: int | None) -> None:
    moments = Moments(view)
    for done in count_up(1):
        moment = moments.take(stats.survey(pids or None), time.monotonic())
        click.echo(json.dumps(as_json(moment, view)))
        sys.stdout.flush()
        if done == count:
            return
        time.sleep(interval_s)
