# SPDX-License-Identifier: Apache-2.0
"""What decides the speed of traffic in `paralet doctor`: for each interface its offloads, MTU and queues, and for the
machine its processors, receive buffers and congestion control of TCP. It says what to set, and which back end to take.

Facts are read first (`read_interface`, `read_host`). Advice on them is data: `CHECKS` and `BACK_ENDS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emul import Finding
from testbed.cli import ethtool
from testbed.cli.kernel_files import entries, text

SYSFS = Path("/sys")
PROC = Path("/proc")
RECEIVE_BUFFER_BYTES = 8 << 20
"""What a socket of `soft` asks for (kSocketBufferBytes in hostlib/native/src/soft/udp_sockets.hpp)."""
JUMBO_BYTES = 9000
_LOOPBACK = "772"  # ARPHRD_LOOPBACK


@dataclass(frozen=True, slots=True)
class Interface:
    """What decides the speed of an interface. None: the driver does not tell."""

    name: str
    mtu_bytes: int
    roce: bool
    """It belongs to an RDMA NIC with an active port."""
    udp_segmentation: bool | None
    """The NIC, or the last kernel on the way, cuts a long piece of UDP into packets (USO)."""
    udp_segmentation_fixed: bool
    """The driver cannot change it."""
    tcp_segmentation: bool | None
    """The same for TCP (TSO)."""
    gro: bool | None
    """Packets of a flow that arrive together go up the stack as one."""
    udp_by_ports: bool | None
    """Receive queues are chosen by UDP ports, for IPv4 and IPv6, so lanes spread over them."""
    queues: int | None
    """Receive queues in use."""
    most_queues: int | None


@dataclass(frozen=True, slots=True)
class Host:
    """What all interfaces share."""

    cores: int
    """Processors that this process may use."""
    quota: float | None
    """Processors' worth of time that its control group allows. None: no limit."""
    rmem_max_bytes: int | None
    """The longest receive buffer that a socket may ask for without CAP_NET_ADMIN."""
    tcp_congestion: str | None
    """TCP's congestion control of this network namespace."""
    has_cubic: bool
    """Every user may choose `cubic` for a socket, as `reno` always."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of advice about an interface.

    `state` says how it is. `command` is what to do about it, with ``{name}`` for the interface; "" where it is well,
    unknown, or cannot be changed.
    """

    what: str
    state: Callable[[Interface, Host], str]
    command: Callable[[Interface, Host], str]


def _switch(value: bool | None, fixed: bool = False) -> str:
    if value is None:
        return "unknown"
    return "on" if value else "off, and the driver has none" if fixed else "off"


def _queues(interface: Interface, host: Host) -> str:
    if interface.queues is None:
        return "unknown"
    return f"{interface.queues} of {interface.most_queues} for {host.cores} processors"


def _more_queues(interface: Interface, host: Host) -> str:
    wanted = min(interface.most_queues or 0, host.cores)
    return f"ethtool -L {{name}} combined {wanted}" if (interface.queues or wanted) < wanted else ""


def _spread(interface: Interface) -> bool:
    """Whether the choice of a receive queue matters."""
    return interface.queues != 1


CHECKS = (
    Check(
        "MTU",
        lambda nic, _: str(nic.mtu_bytes),
        lambda nic, _: (
            f"ip link set {{name}} mtu {JUMBO_BYTES}, if all switches take it" if nic.mtu_bytes < JUMBO_BYTES else ""
        ),
    ),
    Check(
        "UDP segmentation (tx-udp-segmentation)",
        lambda nic, _: _switch(nic.udp_segmentation, nic.udp_segmentation_fixed),
        lambda nic, _: (
            "ethtool -K {name} tx-udp-segmentation on"
            if nic.udp_segmentation is False and not nic.udp_segmentation_fixed
            else ""
        ),
    ),
    Check(
        "TCP segmentation (TSO)",
        lambda nic, _: _switch(nic.tcp_segmentation),
        lambda nic, _: "ethtool -K {name} tso on" if nic.tcp_segmentation is False else "",
    ),
    Check(
        "GRO",
        lambda nic, _: _switch(nic.gro),
        lambda nic, _: "ethtool -K {name} gro on" if nic.gro is False else "",
    ),
    Check(
        "receive queues by UDP ports",
        lambda nic, _: _switch(nic.udp_by_ports) if _spread(nic) else "no matter with one queue",
        lambda nic, _: (
            "ethtool -N {name} rx-flow-hash udp4 sdfn; ethtool -N {name} rx-flow-hash udp6 sdfn"
            if nic.udp_by_ports is False and _spread(nic)
            else ""
        ),
    ),
    Check("receive queues", _queues, _more_queues),
)


@dataclass(frozen=True, slots=True)
class BackEnd:
    """A value of PARALET_BACKEND, the interfaces that it suits, and why."""

    name: str
    suits: Callable[[Interface], bool]
    why: str


BACK_ENDS = (
    BackEnd("verbs", lambda nic: nic.roce, "the RDMA NIC makes and checks the packets"),
    BackEnd("tcp", lambda _: True, "the kernel and the NIC handle TCP in long pieces"),
    BackEnd(
        "soft",
        lambda nic: nic.udp_segmentation is False and nic.tcp_segmentation is not False,
        "the processor cuts every packet of UDP but not of TCP, so NCCL's own Socket transport may be much faster",
    ),
    BackEnd("soft", lambda _: True, "UDP and TCP are cut into packets in the same place"),
)
"""The first that suits an interface, of those that this build has, is the one to take."""

AUTOMATIC = "auto"
"""The value of PARALET_BACKEND, and its default, with which the plugin follows the same rule."""


def back_end(interface: Interface, built: Sequence[str]) -> BackEnd:
    """The back end to take. `soft` is in every build."""
    return next(back_end for back_end in BACK_ENDS if back_end.name in {"soft", *built} and back_end.suits(interface))


def settings(interface: Interface, host: Host) -> list[str]:
    """The commands that would make the interface faster."""
    commands = (check.command(interface, host) for check in CHECKS)
    return [command.format(name=interface.name) for command in commands if command]


def findings(interfaces: Sequence[Interface], host: Host, built: Sequence[str]) -> list[Finding]:
    """One finding for each interface, and those of the machine. All are advice: none keeps experiments from running."""
    of_host = (_receive_buffer(host), _congestion(host), _processors(host))
    return [*(_interface(interface, host, built) for interface in interfaces), *of_host]


def _interface(interface: Interface, host: Host, built: Sequence[str]) -> Finding:
    taken = back_end(interface, built)
    states = "; ".join(f"{check.what} {check.state(interface, host)}" for check in CHECKS)
    remedy = "; ".join(settings(interface, host))
    value = f"auto takes {taken.name}" if AUTOMATIC in built else taken.name
    detail = f"{'optional: ' if remedy else ''}PARALET_BACKEND={value}: {taken.why}. {states}"
    return Finding(f"speed of {interface.name}", True, detail, remedy)


def _receive_buffer(host: Host) -> Finding:
    what = "receive buffers"
    if host.rmem_max_bytes is None:
        return Finding(what, True, "net.core.rmem_max: unknown", "")
    if host.rmem_max_bytes >= RECEIVE_BUFFER_BYTES:
        return Finding(what, True, f"net.core.rmem_max {host.rmem_max_bytes}", "")
    detail = f"optional: net.core.rmem_max {host.rmem_max_bytes}: bursts to back end soft may be lost"
    return Finding(what, True, detail, f"sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}")


def _congestion(host: Host) -> Finding:
    what = "congestion control of TCP"
    detail = f"net.ipv4.tcp_congestion_control {host.tcp_congestion or 'unknown'}"
    if not (host.tcp_congestion or "").startswith("bbr"):
        return Finding(what, True, detail, "")
    detail = f"optional: {detail}: it sends by timers, whose processor time slows lanes of back end tcp down"
    other = "cubic" if host.has_cubic else "reno"
    return Finding(what, True, detail, f"export PARALET_TCP_CONGESTION={other}, for lanes alone")


def _processors(host: Host) -> Finding:
    detail = f"{host.cores} processors"
    if host.quota is not None and host.quota < host.cores:
        detail = (
            f"optional: {detail}, of which the control group's quota allows {host.quota:g}: "
            "threads that poll use it up, and then all of the group stop"
        )
        return Finding("processors", True, detail, "a container without a CPU limit, or with whole processors (cpuset)")
    return Finding("processors", True, detail, "")


# -- facts --------------------------------------------------------------------------------------------------------


def interface_names(addressed: Sequence[str], sysfs: Path = SYSFS) -> list[str]:
    """Interfaces that may carry traffic: those of these names and NICs that are up, but not loopback."""
    net = sysfs / "class/net"
    nics = [path.name for path in entries(net) if (path / "device").exists() and text(path / "operstate") == "up"]
    names = dict.fromkeys([*(name.partition(":")[0] for name in addressed), *nics])
    return [name for name in names if (net / name).exists() and text(net / name / "type") != _LOOPBACK]


def read_interface(name: str, sysfs: Path = SYSFS) -> Interface:
    """The facts on an interface of this network namespace."""
    features = ethtool.features(name)
    udp = features.get("tx-udp-segmentation")
    queues = ethtool.queues(name)
    hashed = ethtool.hashes_ports(name)
    return Interface(
        name=name,
        mtu_bytes=int(text(sysfs / "class/net" / name / "mtu") or 0),
        roce=_has_roce(name, sysfs),
        udp_segmentation=udp.active if udp else None,
        udp_segmentation_fixed=udp is not None and udp.fixed,
        tcp_segmentation=_active(features, "tx-tcp-segmentation"),
        gro=_active(features, "rx-gro"),
        udp_by_ports=all(hashed.values()) if hashed else None,
        queues=queues.used if queues else None,
        most_queues=queues.most if queues else None,
    )


def read_host(sysfs: Path = SYSFS, proc: Path = PROC) -> Host:
    """The facts on this machine, as far as this process may use it."""
    rmem_max = text(proc / "sys/net/core/rmem_max")
    return Host(
        cores=len(os.sched_getaffinity(0)),
        quota=cpu_quota(sysfs, proc),
        rmem_max_bytes=int(rmem_max) if rmem_max else None,
        tcp_congestion=text(proc / "sys/net/ipv4/tcp_congestion_control") or None,
        has_cubic="cubic" in text(proc / "sys/net/ipv4/tcp_allowed_congestion_control").split(),
    )


def cpu_quota(sysfs: Path = SYSFS, proc: Path = PROC) -> float | None:
    """The least quota of this process's control groups, in processors. None: no limit.

    Control groups version 2 (cpu.max) and version 1 (cpu.cfs_quota_us), as the kernel's documentation describes them.
    """
    quotas = []
    for line in text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota(limit) for limit in _upwards(sysfs / "fs/cgroup", path, "cpu.max")]
        elif "cpu" in controllers.split(","):
            root = sysfs / "fs/cgroup" / controllers
            periods = _upwards(root, path, "cpu.cfs_period_us")
            quotas += [
                _quota(f"{quota} {period}")
                for quota, period in zip(_upwards(root, path, "cpu.cfs_quota_us"), periods, strict=False)
            ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(limit: str) -> float | None:
    match = re.fullmatch(r"(\d+) (\d+)", limit)  # "max 100000" and "-1 100000" are no limits
    return int(match[1]) / int(match[2]) if match else None


def _upwards(root: Path, path: str, name: str) -> Iterator[str]:
    """The file of a control group and of all above it."""
    place = root / path.lstrip("/")
    while True:
        if content := text(place / name):
            yield content
        if place == root or root not in place.parents:
            return
        place = place.parent


def _has_roce(interface: str, sysfs: Path) -> bool:
    return any(
        (device / "device/net" / interface).exists()
        and not (device / "parent").exists()  # a software device
        and any("ACTIVE" in text(port / "state") for port in entries(device / "ports"))
        for device in entries(sysfs / "class/infiniband")
    )


def _active(features: dict[str, ethtool.Feature], name: str) -> bool | None:
    return features[name].active if name in features else None
