# SPDX-License-Identifier: Apache-2.0
"""`paralet top`: lanes and links of running processes, live on a screen or a web page."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from datetime import datetime
from itertools import count as count_up
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from hostlib import stats
from netmodel.printable import printable
from paralet_pin.survey import reports
from testbed.cli.counters_input import CountersInput, keys_from_terminal
from testbed.cli.endpoints import ipv4_and_port
from testbed.cli.extras import require
from testbed.cli.fabric import HASHES, HashName, fabric_of
from testbed.cli.operations_input import operations_now
from testbed.cli.options import FileToWrite
from testbed.errors import InputError, TestbedError
from testbed.live.link_counters import PortRates

if TYPE_CHECKING:
    from testbed.live.fabric_view import FabricView
    from testbed.live.moments import Moment

_LOG = 200
"""Events that a page shows."""

_PICTURE_SIZE = (100, 32)
"""Columns and rows."""


@click.command(epilog="Examples: paralet top; sudo paralet top --run results/demo; paralet top --serve 127.0.0.1:9465")
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(min=1))
@click.option(
    "--topology",
    "topology_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A topology, or an experiment spec that has one: the load of its links is shown too.",
)
@click.option("--hash", "hash_name", type=click.Choice(HASHES), help="Hash of its switches, as for predict.")
@click.option(
    "--run",
    "run_dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Result folder of a running experiment: its fabric, how far it has come, and its events are shown too.",
)
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
@click.option(
    "--serve", metavar="ADDRESS:PORT", help="Show it in browsers at http://ADDRESS:PORT/, to all who reach it."
)
@click.option(
    "--picture",
    metavar="FILE",
    type=FileToWrite(),
    help="Write the screen after --count updates (3) to FILE as SVG, and end.",
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="With --json or --picture: end after N updates.")
def top(
    pids: tuple[int, ...],
    topology_file: Path | None,
    hash_name: HashName | None,
    run_dir: Path | None,
    counters_file: BinaryIO | None,
    interval_s: float,
    json_lines: bool,
    serve: str | None,
    picture: Path | None,
    count: int | None,
) -> None:
    """Watch the lanes of running processes and, with --topology or --run, the links they load.

    Shows the processes PID, or those of the experiment of --run, or all of this user (as root, of all users).
    The load of links is that of the lanes seen here: their rates along the paths which the switches' hash gives their
    ports. Connections with ports from `paralet pin` follow the lanes. With --counters, links whose ports belong to the
    topology have the load that switches counted. Keys: q quits, space pauses, s sorts by rate, round trip, resent
    packets or moves.
    """
    if hash_name is not None and topology_file is None:
        raise click.UsageError("--hash needs --topology")
    if run_dir is not None and topology_file is not None:
        raise click.UsageError("--run has a topology: leave out --topology")
    if sum((json_lines, serve is not None, picture is not None)) > 1:
        raise click.UsageError("give one of --json, --serve and --picture")
    if count is not None and not json_lines and picture is None:
        raise click.UsageError("--count needs --json or --picture")
    if topology_file is not None or run_dir is not None:
        require("models", "the load of links")
    view, status = _fabric(topology_file, hash_name, run_dir)
    watched = _watched(pids, run_dir)
    if serve is None:
        os.nice(19)  # the view takes what the watched processes leave of the processors
    if json_lines or serve is not None:
        watch = _Watch(watched, view, None if counters_file is None else CountersInput(counters_file), status)
        if serve is not None:
            _serve(serve, watch, interval_s)
        else:
            _stream(watch, interval_s, count)
        return
    if picture is None and not sys.stdout.isatty():
        raise TestbedError("standard output is not a terminal: use --json, --serve or `paralet stat`")
    require("top", "the screen of paralet top")
    from testbed.cli.top_screen import TopScreen

    counters = None
    if counters_file is not None:
        if counters_file.fileno() == 0 and picture is None:
            counters_file = keys_from_terminal()
        counters = CountersInput(counters_file)
    screen = TopScreen(
        lambda: stats.survey(watched()),
        view,
        interval_s,
        None if counters is None else counters.take,
        status,
        operations_now,
        exists,
        lambda: reports(watched()),
    )
    if picture is None:
        screen.run()
        return
    screen.run(headless=True, size=_PICTURE_SIZE, auto_pilot=screen.picture_after(count or 3, picture))


def exists(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    return Path("/proc", str(pid)).exists()


def _watched(pids: tuple[int, ...], run_dir: Path | None) -> Callable[[], Collection[int] | None]:
    """Gives the processes to show: those that were named, else those of the run, else all (None)."""
    if run_dir is None or pids:
        return lambda: pids or None
    from testbed.analysis import results
    from testbed.live.run_processes import RunProcesses

    return RunProcesses(run_dir / results.JOURNAL).take


def _fabric(
    topology_file: Path | None, hash_name: HashName | None, run_dir: Path | None
) -> "tuple[FabricView | None, Callable[[], tuple[str, list[str]]] | None]":
    """The fabric to show, and the progress of the run if there is one. Raises InputError."""
    if run_dir is not None:
        from testbed import spec
        from testbed.analysis import results
        from testbed.cli.run_progress import RunProgress, view_of

        experiment = spec.load(run_dir / results.SPEC)
        return view_of(experiment), RunProgress(experiment, run_dir / results.JOURNAL).take
    if topology_file is None:
        return None, None
    from testbed.live.fabric_view import FabricView

    fabric = fabric_of(topology_file, hash_name)
    view = FabricView(fabric.topology, fabric.ecmp_hash)
    if not view.pairs:
        raise InputError(f"topology {fabric.topology.name} has no links between leaves and spines to watch")
    return view, None


class _Watch:
    """Successive moments of the watched processes, for `--json` and `--serve`."""

    def __init__(
        self,
        watched: Callable[[], Collection[int] | None],
        view: "FabricView | None",
        counters: CountersInput | None,
        status: Callable[[], tuple[str, list[str]]] | None,
    ) -> None:
        from testbed.live.moments import Moments

        self.view, self.counters = view, counters
        self._watched, self._status = watched, status
        self._moments = Moments(view, exists)

    def take(self) -> "tuple[Moment, str, list[str], list[str]]":
        """The next moment, how far a run has come, its new events, and what was wrong with counters."""
        said, happened = ("", []) if self._status is None else self._status()
        ports: list[PortRates] = []
        wrong: list[str] = []
        if self.counters is not None:
            ports, wrong = self.counters.take()
        pids = self._watched()
        survey = stats.survey(pids)
        operations, pinned = operations_now(survey), reports(pids)
        moment = self._moments.take(survey, time.monotonic(), ports, operations, pinned)
        return moment, said, happened, wrong


def _stream(watch: _Watch, interval_s: float, count: int | None) -> None:
    """Print an object per update, until `count` were printed or the counters have ended."""
    from testbed.live.moments import as_json

    for done in count_up(1):
        ended = watch.counters is not None and watch.counters.ended.wait(interval_s)
        moment, said, happened, wrong = watch.take()
        for sentence in wrong:
            click.echo(printable(f"paralet: {sentence}"), err=True)
        shown = as_json(moment, watch.view)
        click.echo(json.dumps({**shown, "status": said, "events": [*happened, *shown["events"]]}))
        sys.stdout.flush()
        if done == count or ended:
            return
        if watch.counters is None:
            time.sleep(interval_s)


def _serve(serve: str, watch: _Watch, interval_s: float) -> None:
    """Serve the page until Ctrl-C. Raises InputError, and TestbedError."""
    from testbed.cli.top_web import Feed, server
    from testbed.live.web_update import web_update

    log: deque[str] = deque(maxlen=_LOG)

    def look() -> dict[str, Any]:
        moment, said, happened, wrong = watch.take()
        log.extend(f"{datetime.now():%H:%M:%S} {event}" for event in (*wrong, *happened, *moment.events))
        return web_update(moment, watch.view, said, log)

    address, port = ipv4_and_port("--serve", serve, "127.0.0.1:9465")
    try:
        listening = server(address, port, Feed(look, interval_s))
    except OSError as error:
        raise TestbedError(f"--serve {serve}: {error.strerror}") from error
    with listening:
        click.echo(printable(f"Serving http://{address}:{listening.server_port}/ until Ctrl-C."))
        sys.stdout.flush()
        try:
            listening.serve_forever()
        except KeyboardInterrupt:
            click.echo("paralet: interrupted", err=True)
            os._exit(130)  # the interpreter's own end would take turns with the thread that looks, which hardly runs
