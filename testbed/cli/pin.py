# SPDX-License-Identifier: Apache-2.0
"""`paralet pin`: runs a program with planned source ports, and shows which of its connections have them."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from netmodel.printable import printable
from netmodel.probing.observations import load
from paralet_pin import check, launch, probed_paths, programs
from testbed.cli.running_fabric import TAKES_WORDS
from testbed.errors import InputError, TestbedError, sentence_of

_SAID_S = 0.1
"""The shortest longest wait that `--check` tells: answers of a path service that knows the port take a millisecond."""


def _networks(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            launch.check_networks(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return value


@click.command(context_settings=TAKES_WORDS, epilog="Example: paralet pin -- torchrun train.py")
@click.option(
    "--check", "pid", metavar="PID", type=click.IntRange(1), help="Show the connections of a process instead."
)
@click.option("--json", "as_json", is_flag=True, help="With --check: print JSON instead of text.")
@click.option(
    "--probed",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="With --check: a file of `paralet probe --write`, for paths that no path service tells. May be repeated.",
)
@click.option(
    "--variables",
    "beginning",
    metavar="PID",
    type=click.IntRange(1),
    help="Start the agent of a process that begins, and print its variables, as a task prolog of Slurm does.",
)
@click.option(
    "--networks",
    metavar="LIST",
    callback=_networks,
    help="Networks of the fabric, as 10.0.0.0/8,fd00::/8. Default: all that PARALET_IFNAME reaches.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="S",
    type=click.FloatRange(0, 60),
    help="Seconds that a connection waits for its port at most. Default: 0.2.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def pin(
    pid: int | None,
    as_json: bool,
    probed: tuple[Path, ...],
    beginning: int | None,
    networks: str | None,
    wait_s: float | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM with planned source ports for its connections, or show which connections have them.

    The ports come from the path service that PARALET_PATH_SERVICE names, or from PARALET_PORTS. docs/pin.md says more.
    """
    words = program[1:] if program[:1] == ("--",) else program
    if not words and pid is None and beginning is None:
        raise click.UsageError("Missing argument 'PROGRAM...'.")
    if sum((bool(words), pid is not None, beginning is not None)) > 1:
        raise click.UsageError("--check and --variables take no PROGRAM, and not each other.")
    if probed and pid is None:
        raise click.UsageError("--probed goes with --check.")
    if pid is not None:
        _check(pid, as_json, probed)
        return
    environment = dict(os.environ)
    if networks is not None:
        environment[launch.NETWORKS] = networks
    if wait_s is not None:
        environment[launch.WAIT_US] = str(round(wait_s * 1e6))
    if beginning is None:
        _run(words, environment)
    variables = _with_agent(environment, beginning)
    for name in sorted(name for name, value in variables.items() if os.environ.get(name) != value):
        click.echo(printable(f"export {name}={variables[name]}"))


def _with_agent(environment: dict[str, str], pid: int) -> dict[str, str]:
    """Starts the agent of a process. Returns the variables with which its program is started."""
    try:
        return launch.variables(environment, launch.start_agent(environment, pid))
    except launch.LaunchError as error:
        raise (InputError if error.usage else TestbedError)(str(error)) from error
    except OSError as error:
        raise TestbedError(sentence_of(error)) from error


def _run(words: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    file = programs.find(words[0], environment.get("PATH"))
    if file is None:
        raise InputError(f"there is no program {words[0]}")
    if why := programs.unreachable(file):
        raise InputError(f"{file} {why}: start it without paralet pin")
    variables = _with_agent(environment, os.getpid())
    sys.stdout.flush()
    try:
        os.execve(file, words, variables)  # the agent waits for this process
    except OSError as error:
        raise TestbedError(sentence_of(error)) from error


def _check(pid: int, as_json: bool, probed: tuple[Path, ...]) -> None:
    try:
        report = check.ask(check.agent_of(pid)).of(check.children_of(pid))
        report = probed_paths.with_probed(report, map(load, probed))
    except (check.CheckError, ValueError) as error:
        raise InputError(str(error)) from error
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report), indent=2))
        return
    for line in _lines(report):
        click.echo(printable(line))


def _lines(report: check.Report) -> list[str]:
    source = f"a path service, {report.connected} of {report.clients} clients connected"
    waited = f", connections waited up to {report.longest_wait_s:.1f} s" if report.longest_wait_s >= _SAID_S else ""
    lines = [f"job {report.job or '-'}, ports from {source if report.path_service else 'PARALET_PORTS'}{waited}"]
    for flow in report.pinned:
        moved = "" if flow.planned_port == flow.port else f", the plan now has port {flow.planned_port}"
        idle = "" if flow.elephant else ", idle"
        hangs = f", hangs: no answer to {flow.timeouts} retransmissions" if flow.hangs else ""
        planned = f"planned{_by(flow)}, {flow.bytes} bytes"
        lines.append(f"{_name(flow)} from port {flow.port}: {planned}{idle}{hangs}{moved}")
    lines += [f"{_name(flow)}: waits for its port, {flow.waited_s:.1f} s so far" for flow in report.waiting]
    lines += [f"{_name(flow)}: not planned, {flow.why}" for flow in report.not_pinned]
    if len(lines) == 1:
        lines.append("no connection of this process asked for a port")
    return lines


def _by(flow: check.Pinned) -> str:
    """The path of a flow. One that the plan has left may be another by now, if links have died since."""
    began = "" if flow.planned_port == flow.port else ", began"
    probed = "" if flow.probed_s is None else f" (probed {flow.probed_s:.0f} s ago)"
    return f"{began} by {' '.join(flow.path)}{probed}" if flow.path else ""


def _name(flow: check.Course) -> str:
    host = f"[{flow.remote}]" if ":" in flow.remote else flow.remote
    return f"{flow.pid} {flow.what}, {flow.protocol} to {host}:{flow.remote_port}"
