# SPDX-License-Identifier: Apache-2.0
"""One link: an rxe device in this network namespace, and a plain interface in another one."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RXE = "paraletrxe"
RXE_ADDRESS = "10.99.0.1"
PLAIN_ADDRESS = "10.99.0.2"
MTU_BYTES = 9000  # room for a path MTU of 4096

RXE_INTERFACE, _PLAIN_END = "prlt-rxe", "prlt-plain"
NAMESPACE = "paralet-plain"
_CLONE_NEWNET = 0x40000000  # linux/sched.h


def _sh(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True)


@contextmanager
def in_namespace(name: str = NAMESPACE) -> Iterator[None]:
    """This thread in the named network namespace. Sockets opened within the block stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    try:
        enter(there)
        try:
            yield
        finally:
            enter(home)
    finally:
        os.close(home)
        os.close(there)


def missing() -> str | None:
    """The reason why this machine can have no rxe device; None if it can."""
    if os.geteuid() != 0:
        return "SoftRoCE needs root"
    if not Path("/sys/module/rdma_rxe").is_dir() and subprocess.run(["modprobe", "-q", "rdma_rxe"]).returncode != 0:
        return "this kernel has no rdma_rxe: run 'make test-softroce', which brings one that has"
    return None


@dataclass(frozen=True, slots=True)
class Wire:
    """An rxe device at RXE_ADDRESS and the namespace at PLAIN_ADDRESS, joined by a veth pair."""

    def drop_every(self, n: int) -> None:
        """From now on every n-th packet that leaves for the rxe device is lost; 0: none."""
        self._filter(_PLAIN_END, n)

    @contextmanager
    def down(self) -> Iterator[None]:
        """The rxe device's interface is down."""
        _sh("ip", "link", "set", RXE_INTERFACE, "down")
        try:
            yield
        finally:
            _sh("ip", "link", "set", RXE_INTERFACE, "up")

    @contextmanager
    def swallow(self, port: int) -> Iterator[None]:
        """Packets of the rxe device with this UDP source port are lost."""
        with in_namespace():
            _sh("tc", "qdisc", "add", "dev", _PLAIN_END, "clsact")
            match = ("protocol", "ip", "u32", "match", "ip", "sport", str(port), "0xffff", "action", "drop")
            _sh("tc", "filter", "add", "dev", _PLAIN_END, "ingress", *match)
        try:
            yield
        finally:
            with in_namespace():
                _sh("tc", "qdisc", "del", "dev", _PLAIN_END, "clsact")

    @staticmethod
    def _filter(interface: str, n: int) -> None:
        with in_namespace():
            subprocess.run(["tc", "qdisc", "del", "dev", interface, "clsact"], capture_output=True)
            if n:
                _sh("tc", "qdisc", "add", "dev", interface, "clsact")
                _sh(
                    *("tc", "filter", "add", "dev", interface, "egress", "matchall"),
                    *("action", "gact", "ok", "random", "determ", "drop", str(n)),
                )


@contextmanager
def wire() -> Iterator[Wire]:
    """Set the wire up; gone on exit."""
    _sh("ip", "netns", "add", NAMESPACE)
    try:
        _sh("ip", "link", "add", RXE_INTERFACE, "type", "veth", "peer", "name", _PLAIN_END, "netns", NAMESPACE)
        try:
            _sh("ip", "link", "set", RXE_INTERFACE, "mtu", str(MTU_BYTES), "up")
            _sh("ip", "address", "add", f"{RXE_ADDRESS}/24", "dev", RXE_INTERFACE)
            inside = ("ip", "-n", NAMESPACE)
            _sh(*inside, "link", "set", "lo", "up")
            _sh(*inside, "link", "set", _PLAIN_END, "mtu", str(MTU_BYTES), "up")
            _sh(*inside, "address", "add", f"{PLAIN_ADDRESS}/24", "dev", _PLAIN_END)
            _sh("rdma", "link", "add", RXE, "type", "rxe", "netdev", RXE_INTERFACE)
            try:
                yield Wire()
            finally:
                _sh("rdma", "link", "del", RXE)
        finally:
            subprocess.run(["ip", "link", "del", RXE_INTERFACE], capture_output=True)
    finally:
        _sh("ip", "netns", "del", NAMESPACE)
