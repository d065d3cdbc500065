# SPDX-License-Identifier: Apache-2.0
"""`paralet doctor`: what this machine can do, what is missing, and the command that mends it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

import emul
from emul import Finding


@click.command(epilog="Example: paralet doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Look at this machine: can it run experiments, and if not, what mends it?

    Exit status 1 when something that `paralet run` needs is missing. Leaves nothing behind.
    """
    findings = [*emul.probe(), *examine()]
    ready = all(finding.ok for finding in findings)
    if as_json:
        click.echo(json.dumps({"ready": ready, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print(findings, ready)
    context.exit(0 if ready else 1)


def examine() -> list[Finding]:
    """What the host library finds here. Devices that later versions can use are only told, never missed."""
    checks: tuple[Callable[[], Finding], ...] = (_engine, _verbs, _gpu)
    return [check() for check in checks]


def _engine() -> Finding:
    try:
        from hostlib import local_interfaces
    except ImportError as error:
        return Finding("native engine", False, f"hostlib cannot be imported: {error}", "make setup")
    devices = ", ".join(f"{name} {address}" for name, address, _mtu in local_interfaces())
    return Finding("native engine", True, f"back end soft (RoCEv2 over UDP sockets); devices: {devices}", "")


def _verbs() -> Finding:
    devices = _names(Path("/sys/class/infiniband"))
    return Finding("RDMA devices", True, ", ".join(devices) or "none; this version does not use any", "")


def _gpu() -> Finding:
    devices = _names(Path("/proc/driver/nvidia/gpus"))
    detail = f"{len(devices)} NVIDIA" if devices else "none; this version does not use any"
    return Finding("GPUs", True, detail, "")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _print(findings: list[Finding], ready: bool) -> None:
    from rich.markup import escape

    from testbed.cli.tables import console, table

    listing = table("", ["", "what", "found", "command"], [])
    for finding in findings:
        mark = "[green]ok[/]" if finding.ok else "[bold red]no[/]"
        wanted = not finding.ok or finding.detail.startswith("optional")
        listing.add_row(mark, finding.name, escape(finding.detail), escape(finding.remedy) if wanted else "")
    out = console()
    out.print(listing)
    out.print("This machine can run experiments." if ready else "Experiments need what is marked [bold red]no[/].")
