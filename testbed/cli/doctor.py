# SPDX-License-Identifier: Apache-2.0
"""`paralet doctor`: lists what this machine supports, what is missing, and the command that installs it."""

import json
from collections.abc import Collection, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import click

import emul
import nccl_net_plugin
from emul import Finding
from netmodel.printable import printable
from testbed.cli import extras, rdma_devices, speed_checks
from testbed.cli.fabric import HashName, fabric_of, hash_option, topology_option
from testbed.cli.nic_checks import nic_findings
from testbed.cli.rdma_devices import RdmaDevice, RdmaPort
from testbed.nccl import back_ends

Use = Literal["plugin", "models", "service", "fabric"]

PLANNING: tuple[Literal["models", "service"], ...] = ("models", "service")
"""Each needs the extra of its name and the native models, and no engine."""
USES: tuple[Use, ...] = ("plugin", "models", "service", "fabric")
"""What a machine may be for. The first is the base install's."""


@dataclass(frozen=True, slots=True)
class Check:
    """A finding, and the uses that it concerns. One that is not ok keeps the machine from these."""

    finding: Finding
    uses: tuple[Use, ...]


@click.command(
    epilog="Examples: paralet doctor; paralet doctor --for plugin; paralet doctor --topology fabric.yaml --hash crc32"
)
@click.option(
    "--for",
    "use",
    metavar=f"[{'|'.join(USES)}]",
    type=click.Choice(USES),
    help="Check only what this needs: NCCL's or own traffic, models, the path service, experiments with real packets.",
)
@topology_option("It is checked whether source ports reach all of its paths.", required=False)
@hash_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.pass_context
def doctor(
    context: click.Context, use: Use | None, topology_file: Path | None, hash_name: HashName | None, as_json: bool
) -> None:
    """Check what this machine can be used for, and print the command that installs what is missing.

    The exit status is 1 when something is missing that the use of --for needs, or without --for, that the plugin needs.
    Changes nothing on the machine.
    """
    checks = [*_fabric(topology_file, hash_name), *examine((use,) if use else USES)]
    lacks = {each: [check.finding.name for check in checks if each in check.uses and not check.finding.ok]
             for each in ((use,) if use else USES)}  # fmt: skip
    ready = not lacks[use or USES[0]]
    if as_json:
        answer = {
            "ready": ready,
            "uses": {each: not names for each, names in lacks.items()},
            "findings": [{**asdict(check.finding), "uses": check.uses} for check in checks],
            **_speed(),
            "rdma_devices": [asdict(device) for device in _rdma_devices()],
        }
        click.echo(json.dumps(answer, indent=2))
    else:
        _print(checks, lacks)
    context.exit(0 if ready else 1)


def examine(uses: Collection[Use]) -> list[Check]:
    """What concerns one of these uses. RDMA devices and GPUs are optional: they are listed but never required."""
    checks = [Check(_engine(), ("plugin", "fabric"))]
    if "plugin" in uses:
        advice = (*rdma_findings(), *_nics(), *_speed_findings(), _gpu())
        checks += [Check(finding, ("plugin",)) for finding in (_plugin(), *advice)]
    checks += [Check(_extra(each), (each,)) for each in PLANNING if each in uses]
    planning = tuple(each for each in PLANNING if each in uses and not extras.missing(each))
    if planning:
        checks.append(Check(_models(), planning))
    if "fabric" in uses:
        checks += [Check(finding, ("fabric",)) for finding in (_extra("fabric"), *emul.probe())]
    if len(uses) == len(USES):
        checks.append(Check(_extra("top"), ()))
    return checks


def _fabric(topology_file: Path | None, hash_name: HashName | None) -> list[Check]:
    if topology_file is None:
        if hash_name is not None:
            raise click.UsageError("--hash is that of the switches of --topology; give that too")
        return []
    extras.require("models", "paralet doctor --topology")
    from testbed.cli.fabric_checks import polarisation

    return [Check(polarisation(fabric_of(topology_file, hash_name)), ())]


def _extra(extra: extras.Extra) -> Finding:
    what, absent = f"extra {extra}", extras.missing(extra)
    if not absent:
        return Finding(what, True, "installed", "")
    return Finding(what, extra == "top", f"missing: {', '.join(absent)}", f"pip install 'paralet[{extra}]'")


def _plugin() -> Finding:
    try:
        return Finding("NCCL net plugin", True, str(nccl_net_plugin.path()), "")
    except FileNotFoundError as error:
        return Finding("NCCL net plugin", False, str(error), "make setup")


def _models() -> Finding:
    try:
        for module in ("sdn._native", "sim._native"):
            import_module(module)
    except ImportError as error:
        return Finding("native models", False, str(error), "make setup")
    return Finding("native models", True, "sim and the planners", "")


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


def _print(checks: Sequence[Check], lacks: Mapping[Use, Sequence[str]]) -> None:
    from rich.text import Text

    from testbed.cli.tables import console, table

    listing = table("", ["", "what", "for", "found", "command"], [])
    listing.columns[-1].no_wrap = True  # so that it can be pasted
    for check in checks:
        finding = check.finding
        mark = Text("ok", style="green") if finding.ok else Text("no", style="bold red")
        wanted = not finding.ok or finding.detail.startswith(("optional", "missing"))
        uses = "all" if check.uses == USES else ", ".join(check.uses)
        listing.add_row(mark, finding.name, uses, finding.detail, finding.remedy if wanted else "")
    out = console()
    out.print(listing)
    for use, names in lacks.items():
        said = f"not ready for {use}: see {', '.join(names)}" if names else f"ready for {use}"
        out.print(printable(said), soft_wrap=True)
