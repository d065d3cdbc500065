# SPDX-License-Identifier: Apache-2.0
"""The checks of NICs in `paralet doctor`, for the first run on a cluster. They read files and open no device."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from emul import Finding
from testbed.cli.kernel_files import entries, text

ROCE_PORT = 4791
SYSFS = Path("/sys")
PROC = Path("/proc")


def nic_findings(addresses: Iterable[str], *, sysfs: Path = SYSFS, proc: Path = PROC) -> list[Finding]:
    """Findings on UDP port 4791 for these local addresses, locked memory, GPU memory and congestion control.

    All are advice: none of them keeps experiments from running. The last three come only with an RDMA NIC.
    """
    nics = [device for device in entries(sysfs / "class/infiniband") if not (device / "parent").exists()]
    findings = [_port(list(addresses), nics)]
    if nics:
        findings += [_locked_memory(), *_gpu_memory(sysfs, proc), *(_congestion(nic) for nic in nics)]
    return findings


def _port(addresses: list[str], nics: list[Path]) -> Finding:
    taken = {address: nic.name for nic in nics for address in _roce_addresses(nic)}
    details = []
    for address in addresses:
        if address in taken:
            details.append(f"{address}: {taken[address]} receives it in hardware, so back end soft uses another port")
        elif _in_use(address):
            details.append(f"{address}: another program has it, so back end soft uses another port")
    what = f"UDP port {ROCE_PORT}"
    if not details:
        return Finding(what, True, "free on every address", "")
    return Finding(what, True, f"optional: {'; '.join(details)}", "PARALET_BACKEND=auto, the default, does not need it")


def _roce_addresses(nic: Path) -> Iterator[str]:
    """The addresses of a NIC's RoCEv2 GIDs."""
    for port in entries(nic / "ports"):
        for gid in entries(port / "gids"):
            if text(port / "gid_attrs/types" / gid.name) != "RoCE v2":
                continue
            try:
                address = IPv6Address(text(gid))
            except ValueError:
                continue
            yield str(address.ipv4_mapped or address)


def _in_use(address: str) -> bool:
    family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, ROCE_PORT))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _locked_memory() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return Finding("locked memory", True, "unlimited", "")
    detail = f"optional: at most {limit // 1024} KiB, and back end verbs locks all memory that it registers"
    return Finding("locked memory", True, detail, "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)")


def _gpu_memory(sysfs: Path, proc: Path) -> list[Finding]:
    if not entries(proc / "driver/nvidia/gpus"):
        return []
    if (sysfs / "module/nvidia_peermem").exists():
        return [Finding("GPU memory", True, "nvidia_peermem is loaded", "")]
    detail = "optional: nvidia_peermem is not loaded, so back end verbs needs dma-bufs to reach GPU memory"
    return [Finding("GPU memory", True, detail, "modprobe nvidia_peermem")]


def _congestion(nic: Path) -> Finding:
    """DCQCN of an mlx5 NIC: the priorities for which it sends congestion notifications (np) and reacts to them (rp)."""
    interfaces = entries(nic / "device/net")
    if not interfaces:
        return Finding(f"congestion control of {nic.name}", True, "optional: no network interface found", "")
    interface = interfaces[0]
    remedy = f"dcb pfc show dev {interface.name}"
    on = {
        role: [place.name for place in entries(interface / f"ecn/roce_{role}/enable") if text(place) == "1"]
        for role in ("np", "rp")
    }
    if not any(entries(interface / f"ecn/roce_{role}/enable") for role in on):
        detail = f"optional: the driver of {interface.name} does not tell; ECN and PFC are set with the vendor's tool"
        return Finding(f"congestion control of {nic.name}", True, detail, remedy)
    words = [f"{role} on for priorities {', '.join(prios) or 'none'}" for role, prios in on.items()]
    detail = f"optional: DCQCN {' and '.join(words)}; PFC must fit the switches"
    return Finding(f"congestion control of {nic.name}", True, detail, remedy)
