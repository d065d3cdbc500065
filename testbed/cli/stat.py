# SPDX-License-Identifier: Apache-2.0
"""`paralet stat`: live counters of running processes, such as training jobs and the agents of a run."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count as count_up
from math import isnan
from pathlib import Path

import click

from hostlib import stats
from netmodel.printable import printable, printable_lines
from paralet_pin.check import Report
from paralet_pin.survey import reports
from testbed.cli.endpoints import ipv4_and_port
from testbed.cli.operations_input import operations_now, operations_of
from testbed.errors import InputError, TestbedError, sentence_of
from testbed.live.dumps import as_json as json_of
from testbed.live.dumps import dump_of, from_json
from testbed.live.nccl_operations import sentences
from testbed.live.pinned import PinnedMoments
from testbed.live.totals import DETAILS, Detail
from testbed.live.waits import AFTER_S, Diagnosis, diagnose

_INTERVAL_S = 1.0
_MOST_OPERATIONS = 4
_STUCK = 3
"""Exit status of --why when something is stuck."""


@click.command(epilog="Examples: paralet stat; paralet stat 4242 --json; paralet stat --why node1.json node2.json")
@click.argument("named", metavar="[PID|DUMP]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; with --interval or --count, one per line.")
@click.option("--prometheus", "as_prometheus", is_flag=True, help="Print once in Prometheus' text format.")
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help="Serve Prometheus' text format at http://ADDRESS:PORT/metrics until Ctrl-C, to all who reach it.",
)
@click.option(
    "--by",
    "detail",
    type=click.Choice(DETAILS),
    help="With --prometheus or --listen: add lanes up for each NIC (device, the default), or also show each peer, or "
    "each lane.",
)
@click.option(
    "--why",
    is_flag=True,
    help="Tell which messages do not move, who waits for whom, and the cause. Exit status 3 if any is stuck.",
)
@click.option(
    "--after",
    "after_s",
    metavar="S",
    type=click.FloatRange(min=stats.EVERY_S, max=86400),
    help=f"With --why: seconds without progress after which a message is stuck ({AFTER_S:g}).",
)
@click.option(
    "--interval",
    "interval_s",
    metavar="S",
    type=click.FloatRange(min=stats.EVERY_S, max=86400),
    help=f"Seconds between updates, at least {stats.EVERY_S} ({_INTERVAL_S:g}).",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(min=1),
    help="End after N updates (default: until Ctrl-C on a terminal, else one).",
)
@click.pass_context
def stat(
    context: click.Context,
    named: tuple[str, ...],
    as_json: bool,
    as_prometheus: bool,
    listen: str | None,
    detail: Detail | None,
    why: bool,
    after_s: float | None,
    interval_s: float | None,
    count: int | None,
) -> None:
    """Show the lanes of running processes: rates, round trips, retransmissions, ports and how they were set.

    Connections with ports from `paralet pin` are shown beside them.

    Shows the processes PID, or all processes of this user (as root, of all users). The processes need no special
    option: every open device publishes its counters, ten times a second while it is busy.

    With --why, DUMPs are files with the output of `paralet stat --json` from several hosts, whose processes are then
    looked at together; a dash reads one from standard input. A connection is stuck if messages are under way on it and
    none has moved for --after seconds, also if a receive was posted and nothing was ever sent.
    """
    pids = tuple(int(text) for text in named if text.isdecimal())
    files = [Path(text) for text in named if not text.isdecimal()]
    if 0 in pids:
        raise click.UsageError("0 is not a process id")
    if detail is not None and not as_prometheus and listen is None:
        raise click.UsageError("--by needs --prometheus or --listen")
    if why:
        if as_prometheus or listen is not None or interval_s is not None or count is not None:
            raise click.UsageError("--why looks once: leave out --prometheus, --listen, --interval and --count")
        diagnosis = _diagnose(pids, files, AFTER_S if after_s is None else after_s)
        click.echo(
            json.dumps({"stuck": diagnosis.stuck, **asdict(diagnosis)}, indent=2)
            if as_json
            else printable_lines(words(diagnosis))
        )
        context.exit(_STUCK if diagnosis.stuck else 0)
    if files:
        raise click.UsageError(f"{files[0]} is not a process id; dumps are for --why")
    if after_s is not None:
        raise click.UsageError("--after needs --why")
    if listen is not None:
        if as_json or as_prometheus or interval_s is not None or count is not None:
            raise click.UsageError(
                "--listen serves until Ctrl-C: leave out --json, --prometheus, --interval and --count"
            )
        _serve(listen, pids, detail or "device")
        return
    if as_json and as_prometheus:
        raise click.UsageError("give either --json or --prometheus, not both")
    if as_prometheus and (interval_s is not None or count is not None):
        raise click.UsageError("--prometheus prints once: leave out --interval and --count")
    if interval_s is not None and isnan(interval_s):  # FloatRange accepts NaN
        raise click.UsageError("--interval nan is not a number of seconds")
    first = _look(pids)
    _require(first, pids, reports(pids or None))
    for sentence in (*first.unreadable, *first.left_out):
        click.echo(printable(f"paralet: {sentence}"), err=True)
    pause_s = interval_s or _INTERVAL_S
    try:
        if as_prometheus:
            from testbed.cli.stat_prometheus import exposition

            click.echo(exposition(first, detail or "device"), nl=False)
        elif as_json and interval_s is None and count is None:
            click.echo(json_of(first, operations_of(_pids(first)), reports(pids or None), indent=2))
        elif as_json:
            for now in _looks(pids, first, pause_s, count):
                click.echo(json_of(now, operations_of(_pids(now)), reports(pids or None)))
                sys.stdout.flush()
        else:
            _show(pids, first, pause_s, count)
    except BrokenPipeError:  # the reader closed the pipe, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _diagnose(pids: tuple[int, ...], files: list[Path], after_s: float) -> Diagnosis:
    """Look at the dumps in files and at processes of this host. Raises InputError, and TestbedError."""
    dumps = []
    for file in files:
        try:
            text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        except OSError as error:
            raise InputError(sentence_of(error)) from error
        dumps.append(from_json(text, "standard input" if str(file) == "-" else str(file)))
    if pids or not files:
        look = _look(pids)
        _require(look, pids)
        dumps.append(dump_of(look, time.monotonic(), operations_of(_pids(look))))
    return diagnose(dumps, after_s)


def _pids(look: stats.Survey) -> list[int]:
    return [process.pid for process in look.processes]


def words(diagnosis: Diagnosis) -> str:
    """Waits and their causes, a sentence a line."""
    lines = [wait.sentence for wait in diagnosis.waits]
    lines += [f"Cause: {cause.sentence}." for cause in diagnosis.causes]
    lines += list(diagnosis.operations)
    if not diagnosis.stuck:
        lines.append(f"Nothing is stuck: {diagnosis.moving} connections have messages under way, and they move.")
    return "\n".join([*lines, *(f"Note: {note}." for note in diagnosis.notes)])


def _serve(listen: str, pids: tuple[int, ...], detail: Detail) -> None:
    """Serve until Ctrl-C. Processes may come and go meanwhile. Raises InputError, and TestbedError."""
    from testbed.cli.stat_prometheus import serve

    address, port = ipv4_and_port("--listen", listen, "127.0.0.1:9464")
    try:
        port = serve(address, port, lambda: _look(pids), detail)
    except OSError as error:
        raise TestbedError(f"--listen {listen}: {error.strerror}") from error
    click.echo(printable(f"Serving http://{address}:{port}/metrics until Ctrl-C."))
    sys.stdout.flush()
    signal.pause()


def _look(pids: tuple[int, ...]) -> stats.Survey:
    return stats.survey(pids or None)


def _require(look: stats.Survey, pids: tuple[int, ...], pinned: Sequence[Report] = ()) -> None:
    """Raises TestbedError unless every process in `pids`, and at least one process, can be shown.

    Processes with planned ports can be, without a device of paralet.
    """
    found = {process.pid for process in look.processes} | {
        flow.pid for report in pinned for flow in (*report.pinned, *report.not_pinned)
    }
    for pid in pids:
        if pid in look.missing:
            raise TestbedError(f"process {pid} does not exist")
        if pid in look.forbidden:
            who = "this process" if os.geteuid() == 0 else "this user"
            raise TestbedError(f"process {pid} cannot be read by {who}: try sudo paralet stat {pid}")
        if pid not in found and not look.unreadable:
            raise TestbedError(f"process {pid} has no paralet device open")
    if found:
        return
    if look.unreadable:
        raise TestbedError("; ".join(look.unreadable))
    start = "start a program that opens a hostlib.Device, or a job with NCCL's paralet plugin"
    if os.geteuid() == 0:
        raise TestbedError(f"no process runs paralet: {start}")
    raise TestbedError(f"no process of this user runs paralet: {start}, or see other users' by sudo paralet stat")


def _looks(pids: tuple[int, ...], first: stats.Survey, pause_s: float, count: int | None) -> Iterator[stats.Survey]:
    """Yields `first`, then a new survey every `pause_s` seconds, until `count` were yielded or no process is left."""
    look = first
    for done in count_up(1):
        yield look
        if done == count:
            return
        time.sleep(pause_s)
        look = _look(pids)
        if not look.processes and not any(report.pinned for report in reports(pids or None)):
            return


def _operations(look: stats.Survey) -> list[str]:
    return sentences(operations_now(look), _MOST_OPERATIONS)


def _show(pids: tuple[int, ...], first: stats.Survey, pause_s: float, count: int | None) -> None:
    from rich.live import Live

    from testbed.cli.stat_tables import Picture
    from testbed.cli.tables import console

    out = console()
    picture, pinned = Picture(out), PinnedMoments()

    def take(look: stats.Survey) -> None:
        now_s = time.monotonic()
        picture.take(look, now_s, _operations(look), pinned.take(reports(pids or None), now_s))

    if not out.is_terminal:
        frames = 1 if count is None else count
        for look in _looks(pids, first, pause_s, frames + 1):  # rates need two surveys
            take(look)
            if look is not first:
                out.print(picture.draw())
        if picture.looks == 1:  # the processes ended before a second survey
            out.print(picture.draw())
        return
    try:
        with Live(console=out, screen=True, auto_refresh=False) as screen:
            for look in _looks(pids, first, pause_s, count and count + 1):
                take(look)
                screen.update(picture.draw(), refresh=True)
    finally:
        out.print(picture.draw())  # remains visible after the alternate screen closes
