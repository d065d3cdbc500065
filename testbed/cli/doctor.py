# SPDX-License-Identifier: Apache-2.0
"""`paralet doctor`: lists what this machine supports, what is missing, and the command that installs it."""

import json
from ctypes.util import find_library
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import emul
import nccl_net_plugin
from emul import Finding
from testbed.cli import extras, rdma_devices, speed_checks
from testbed.cli.fabric import HashName, fabric_of, hash_option, topology_option
from testbed.cli.nic_checks import nic_findings
from testbed.cli.rdma_devices import RdmaDevice, RdmaPort
from testbed.nccl import back_ends


@click.command(epilog="Examples: paralet doctor; paralet doctor --topology fabric.yaml --hash crc32")
@topology_option("It is checked whether source ports reach all of its paths.", required=False)
@hash_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.pass_context
def doctor(context: click.Context, topology_file: Path | None, hash_name: HashName | None, as_json: bool) -> None:
    """Check whether this machine can run experiments, and print the command that installs what is missing.

    The exit status is 1 when something that `paralet run` needs is missing. Changes nothing on the machine.
    """
    findings = [*_fabric(topology_file, hash_name), *emul.probe(), *examine()]
    ready = all(finding.ok for finding in findings)
    if as_json:
        answer = {
            "ready": ready,
            "findings": [asdict(finding) for finding in findings],
            **_speed(),
            "rdma_devices": [asdict(device) for device in _rdma_devices()],
        }
        click.echo(json.dumps(answer, indent=2))
    else:
        _print(findings, ready)
    context.exit(0 if ready else 1)


def examine() -> list[Finding]:
    """Findings of the host library. RDMA devices and GPUs are optional: they are listed but never required."""
    return [_engine(), _extras(), *rdma_findings(), *_nics(), *_speed_findings(), _gpu()]


def _fabric(topology_file: Path | None, hash_name: HashName | None) -> list[Finding]:
    if topology_file is None:
        if hash_name is not None:
            raise click.UsageError("--hash is that of the switches of --topology; give that too")
        return []
    extras.require("models", "paralet doctor --topology")
    from testbed.cli.fabric_checks import polarisation

    return [polarisation(fabric_of(topology_file, hash_name))]


def _extras() -> Finding:
    absent = [extra for extra in extras.MODULES if extras.missing(extra)]
    what = "extras of pip install"
    if not absent:
        return Finding(what, True, ", ".join(extras.MODULES), "")
    # Experiments need the fabric. Hosts that only send traffic do without all of them.
    ready = "fabric" not in absent
    detail = f"{'optional: ' if ready else ''}missing: {', '.join(absent)}"
    return Finding(what, ready, detail, f"pip install 'paralet[{'all' if len(absent) > 1 else absent[0]}]'")


def _engine() -> Finding:
    try:
        from hostlib import local_interfaces
    except ImportError as error:
        return Finding("native engine", False, f"hostlib cannot be imported: {error}", "make setup")
    devices = ", ".join(f"{name} {address}" for name, address, _mtu in local_interfaces())
    return Finding("native engine", True, f"back end soft (RoCEv2 over UDP sockets); devices: {devices}", "")


def _nics() -> list[Finding]:
    try:
        from hostlib import local_interfaces
    except ImportError:
        return []
    return nic_findings(address for _name, address, _mtu in local_interfaces())


def _interfaces() -> list[speed_checks.Interface]:
    try:
        from hostlib import local_interfaces
    except ImportError:
        return []
    names = speed_checks.interface_names([name for name, _address, _mtu in local_interfaces()])
    return [speed_checks.read_interface(name) for name in names]


def _back_ends() -> list[str]:
    """Those of this build; none where the plugin is not built."""
    try:
        return back_ends.beside(nccl_net_plugin.path())
    except FileNotFoundError:
        return []


def _speed_findings() -> list[Finding]:
    return speed_checks.findings(_interfaces(), speed_checks.read_host(), _back_ends())


def _speed() -> dict[str, Any]:
    host, built = speed_checks.read_host(), _back_ends()
    return {
        "interfaces": [
            {
                **asdict(interface),
                "back_end": speed_checks.back_end(interface, built).name,
                "settings": speed_checks.settings(interface, host),
            }
            for interface in _interfaces()
        ],
        "host": asdict(host),
    }


def rdma_findings() -> list[Finding]:
    """One finding for each RDMA device with its ports and GIDs, or one that says how to get a device."""
    what, names = "RDMA devices", rdma_devices.names()
    if find_library("ibverbs") is None:
        found = f"{', '.join(names) or 'none'}; back end verbs needs libibverbs"
        return [Finding(what, True, f"optional: {found}", "apt install ibverbs-providers")]
    if not names:
        return [Finding(what, True, "optional: none; the kernel's SoftRoCE is available in a guest", "make softroce")]
    try:
        return [_rdma_device(device) for device in rdma_devices.devices()]
    except ImportError:
        return [Finding(what, True, f"optional: {', '.join(names)}; pyverbs tells more", "apt install python3-pyverbs")]
    except OSError as error:
        return [Finding(what, True, str(error), "")]


def _rdma_devices() -> list[RdmaDevice]:
    try:
        return rdma_devices.devices()
    except (ImportError, OSError):
        return []


def _rdma_device(device: RdmaDevice) -> Finding:
    label = {True: "honoured", False: "ignored", None: "unknown for this driver"}[device.flow_label]
    ports = "; ".join(_rdma_port(port) for port in device.ports)
    return Finding(
        f"RDMA device {device.name}", True, f"{device.driver or 'unknown driver'}, flow label {label}; {ports}", ""
    )


def _rdma_port(port: RdmaPort) -> str:
    gids = ", ".join(f"{gid.index} {gid.address} ({gid.type})" for gid in port.gids) or "none"
    return f"port {port.number} {port.state}, MTU {port.mtu}, GIDs {gids}"


def _gpu() -> Finding:
    devices = _names(Path("/proc/driver/nvidia/gpus"))
    detail = f"{len(devices)} NVIDIA" if devices else "none; `paralet nccl` uses the CPU device"
    return Finding("GPUs", True, detail, "")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _print(findings: list[Finding], ready: bool) -> None:
    from rich.text import Text

    from testbed.cli.tables import console, table

    listing = table("", ["", "what", "found", "command"], [])
    for finding in findings:
        mark = Text("ok", style="green") if finding.ok else Text("no", style="bold red")
        wanted = not finding.ok or finding.detail.startswith("optional")
        listing.add_row(mark, finding.name, finding.detail, finding.remedy if wanted else "")
    out = console()
    out.print(listing)
    out.print("This machine can run experiments." if ready else "Experiments need the items marked no.")
