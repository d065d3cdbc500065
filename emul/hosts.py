# SPDX-License-Identifier: Apache-2.0
"""The hosts of a fabric: configuration of their network namespaces, and commands that run in them."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from emul import commands, management, rxe, shared_hosts
from emul.layout import Layout
from netmodel import ENTROPY_PORTS, Host

# Nothing behind a veth into the userspace datapath computes checksums or cuts segments, so the sender has to.
_OFFLOADS_OFF = ("tx", "off", "rx", "off", "gro", "off", "gso", "off", "tso", "off")

# IPv6 neighbour and router discovery would change the counters. New namespaces do not inherit these settings.
_NO_IPV6 = ("sysctl", "-q", "-e", "-w", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")

# The same of hosts with IPv6 addresses: no link-local addresses, router solicitations or advertisements.
_STATIC_IPV6 = tuple(
    f"net.ipv6.conf.{interfaces}.{key}={value}"
    for interfaces in ("all", "default")
    for key, value in (("addr_gen_mode", 1), ("accept_ra", 0), ("router_solicitations", 0), ("disable_ipv6", 0))
)

# Linux gives some of the source ports of lanes to other connections too, and a lane over TCP could not have those then.
_RESERVED_PORTS = f"net.ipv4.ip_local_reserved_ports={ENTROPY_PORTS.start}-{ENTROPY_PORTS[-1]}"

_MACHINE_NAMES = Path("/etc/hosts")


def disable_ipv6(enter: Sequence[str] = ()) -> None:
    """Disable IPv6 on all interfaces of a network namespace. Raises FabricError."""
    commands.run([*enter, *_NO_IPV6])


def disable_offloads(interface: str, enter: Sequence[str] = ()) -> None:
    """Disable checksum and segmentation offloads of an interface. Raises FabricError."""
    commands.run([*enter, "ethtool", "-K", interface, *_OFFLOADS_OFF])


class Namespaces(Protocol):
    """The namespaces of nodes."""

    def pid(self, node: str) -> int:
        """The id of a process in a node's namespaces."""


class Hosts:
    """The hosts of `network`. Methods that configure raise FabricError when a command fails."""

    def __init__(self, layout: Layout, network: Namespaces) -> None:
        self._layout = layout
        self._hosts = layout.topology.hosts
        self._network = network
        self._processes: list[subprocess.Popen[Any]] = []

    def enter(self, host_name: str) -> list[str]:
        """The argv prefix that runs a command in a host's namespaces. Empty where hosts share the main namespace."""
        return [] if self._layout.shared else ["mnexec", "-a", str(self._network.pid(host_name))]

    def run(self, host_name: str, argv: Sequence[str], lines: Sequence[str] | None) -> str:
        """`commands.run` in a host's namespaces."""
        return commands.run([*self.enter(host_name), *argv], lines)

    def popen(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[Any]":
        """Start a command in a host's namespaces. Keywords go to subprocess.Popen."""
        process = subprocess.Popen([*self.enter(host_name), *argv], **popen_kwargs)
        self._processes.append(process)
        return process

    def kill_processes(self) -> None:
        """Kill every process that `popen` started and that still runs, and wait for it."""
        for process in self._processes:
            process.kill()  # does nothing for a process that has been waited for
        for process in self._processes:
            process.wait()

    def configure(self, lines_of: Callable[[Host], Sequence[str]]) -> None:
        """Set addresses, routes, offloads and shaping of all NICs. lines_of: the lines for `ip -batch` of a host."""
        for host in self._hosts:
            enter = self.enter(host.name)
            if self._layout.topology.ipv6:
                commands.run([*enter, "sysctl", "-q", "-w", *_STATIC_IPV6])
            else:
                disable_ipv6(enter)
            if not self._layout.shared:
                commands.run([*enter, "sysctl", "-q", "-w", _RESERVED_PORTS])
            commands.batch("ip", lines_of(host), enter)
            for _, name in self._layout.linked_nics(host):
                disable_offloads(name, enter)
            commands.batch("tc", self._layout.host_shape_lines(host), enter)

    def share_namespace(self) -> None:
        """Set the policy routing of hosts that share the main namespace (`emul.shared_hosts`)."""
        commands.run(["sysctl", "-q", "-w", *shared_hosts.sysctls(self._layout)])
        commands.batch("ip", shared_hosts.lines(self._layout))

    def unshare_namespace(self) -> None:
        """Undo `share_namespace`."""
        commands.batch("ip", shared_hosts.undo_lines(self._layout))

    def add_names(self, file: Path) -> None:
        """Let every host find all hosts by name, beside the names of the machine. `file` gets what hosts see instead of
        /etc/hosts. Hosts in the main namespace keep the machine's names only."""
        if self._layout.shared:
            return
        names = [f"{host.nics[0].address} {host.name}\n" for host in self._hosts if host.nics]
        file.write_text(_MACHINE_NAMES.read_text() + "".join(names))
        for host in self._hosts:
            self.run(host.name, ["mount", "--bind", str(file), str(_MACHINE_NAMES)], None)

    def add_management(self) -> None:
        """Add the management network (`emul.management`). Hosts in the main namespace need its address only."""
        if self._layout.shared:
            commands.batch("ip", management.main_lines({}))
            return
        commands.batch("ip", management.main_lines({host.name: self._network.pid(host.name) for host in self._hosts}))
        for number, host in enumerate(self._hosts):
            commands.batch("ip", management.host_lines(number), self.enter(host.name))

    def add_rdma_devices(self) -> None:
        """Add an rxe device to every linked NIC. Raises RxeError."""
        for host in self._hosts:
            for port, name in self._layout.linked_nics(host):
                rxe.add(rxe.device_name(host, port.port - 1), name, self.enter(host.name))

    def remove_rdma_devices(self) -> None:
        """Remove the rxe devices that still exist."""
        for host in self._hosts:
            for port, _ in self._layout.linked_nics(host):
                rxe.remove(rxe.device_name(host, port.port - 1), self.enter(host.name))
