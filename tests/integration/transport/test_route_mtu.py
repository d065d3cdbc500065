# SPDX-License-Identifier: Apache-2.0
"""Routes whose MTU is not that of the interface with the host's address."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pytest

from hostlib import Connection, Device, TransportError

from . import sink
from .link import run

pytestmark = pytest.mark.sandboxed

LANES = 4
MESSAGE_BYTES = 200_000
TIMEOUT_S = 60.0
ETHERNET_BYTES, JUMBO_BYTES = 1500, 9000
NEAR = {4: "10.99.1.1", 6: "fd99:1::1"}
FAR = {4: "10.99.2.1", 6: "fd99:2::1"}


class Route:
    """Two hosts with addresses on their loopback interfaces, as with BGP to the host, and a router between them.

    near (this namespace) - 10.99.3.0/24 - router - 10.99.4.0/24 - far (the sink's)
    """

    def __init__(self, version: int, near_mtu: int, far_mtu: int) -> None:
        self.version = version
        self._router = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._sink = subprocess.Popen(
            [
                *("unshare", "--net", sys.executable, sink.__file__),
                *(FAR[version], str(LANES), "1", str(MESSAGE_BYTES)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in (self._router, self._sink):  # unshare(1) becomes the program; until it has, we share a namespace
            while run("readlink", f"/proc/{process.pid}/ns/net") == run("readlink", "/proc/self/ns/net"):
                assert process.poll() is None
        self._link("near", None, "left", near_mtu, 3)
        self._link("far", self._sink, "right", far_mtu, 4)
        self.in_router("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        self._host(None, NEAR, FAR, "near", 3)
        self._host(self._sink, FAR, NEAR, "far", 4)
        for prefix, host in ((3, NEAR), (4, FAR)):
            self.in_router("ip", "route", "add", host[4], "via", f"10.99.{prefix}.1")
            self.in_router("ip", "-6", "route", "add", host[6], "via", f"fd99:{prefix}::1")

    def _in(self, process: subprocess.Popen[str] | subprocess.Popen[bytes] | None, *argv: str) -> None:
        run(*([] if process is None else ["nsenter", f"--net=/proc/{process.pid}/ns/net"]), *argv)

    def in_router(self, *argv: str) -> None:
        self._in(self._router, *argv)

    def _link(self, host: str, namespace: subprocess.Popen[str] | None, router: str, mtu: int, prefix: int) -> None:
        ends = ("mtu", str(mtu), "type", "veth", "peer", "name", router, "mtu", str(mtu))
        run("ip", "link", "add", host, *ends)
        run("ip", "link", "set", router, "netns", str(self._router.pid))
        if namespace is not None:
            run("ip", "link", "set", host, "netns", str(namespace.pid))
        for process, name, last in ((namespace, host, 1), (self._router, router, 2)):
            self._in(process, "ip", "address", "add", f"10.99.{prefix}.{last}/24", "dev", name)
            self._in(process, "ip", "address", "add", f"fd99:{prefix}::{last}/64", "dev", name, "nodad")
            self._in(process, "ip", "link", "set", name, "up")

    def _host(
        self,
        process: subprocess.Popen[str] | None,
        own: dict[int, str],
        other: dict[int, str],
        name: str,
        prefix: int,
    ) -> None:
        self._in(process, "ip", "link", "set", "lo", "up")
        self._in(process, "ip", "address", "replace", f"{own[4]}/32", "dev", "lo")
        self._in(process, "ip", "address", "replace", f"{own[6]}/128", "dev", "lo", "nodad")
        self._in(process, "ip", "route", "add", other[4], "via", f"10.99.{prefix}.2", "src", own[4])
        self._in(process, "ip", "-6", "route", "add", other[6], "via", f"fd99:{prefix}::2", "src", own[6])

    def narrow(self, mtu: int) -> None:
        """The router's link to the far host takes shorter packets from now on, and so does that host."""
        self.in_router("ip", "link", "set", "right", "mtu", str(mtu))

    def limit(self, mtu: int) -> None:
        """Gives the near host's route an MTU of its own."""
        family, gateway = {4: ("-4", "10.99.3.2"), 6: ("-6", "fd99:3::2")}[self.version]
        way = (FAR[self.version], "via", gateway, "src", NEAR[self.version])
        run("ip", family, "route", "replace", *way, "mtu", str(mtu))

    def be_silent(self) -> None:
        """The router drops packets that are too long without telling."""
        for family, protocol, host in (("-4", "icmp", NEAR[4]), ("-6", "ipv6-icmp", NEAR[6])):
            self.in_router(*("ip", family, "rule", "add", "pref", "1", "to", host, "ipproto", protocol, "blackhole"))

    def open(self) -> bytes:
        assert self._sink.stdin is not None
        assert self._sink.stdout is not None
        print(file=self._sink.stdin, flush=True)
        return bytes.fromhex(self._sink.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._sink, self._router):
            process.kill()
            process.communicate()


@pytest.fixture(params=[4, 6], ids=["IPv4", "IPv6"])
def version(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param
    subprocess.run(["ip", "link", "delete", "near"], check=False, capture_output=True)


def send_some(connection: Connection) -> None:
    requests = [connection.send(bytes(MESSAGE_BYTES)) for _ in range(8)]
    assert all(request.wait(TIMEOUT_S) == MESSAGE_BYTES for request in requests)


def packet_bytes(device: Device, connection: Connection) -> float:
    """Mean payload of the packets of some messages."""
    before = device.counters()["lanes"]
    send_some(connection)
    after = device.counters()["lanes"]
    total = {
        name: sum(lane[name] for lane in after) - sum(lane[name] for lane in before)
        for name in ("tx_bytes", "tx_packets")
    }
    return total["tx_bytes"] / total["tx_packets"]


def test_addresses_on_loopback_and_links_of_1500(version: int) -> None:
    with Route(version, ETHERNET_BYTES, ETHERNET_BYTES) as route:
        handle = route.open()
        with Device(NEAR[version], lanes=LANES, min_timeout_s=0.05) as device:
            assert device.path_mtu == 4096  # the loopback interface's
            connection = device.connect(handle)
            assert 900 < packet_bytes(device, connection) <= 1024
            assert device.counters()["discards"]["send_errors"] == 0


def test_a_route_with_an_mtu_of_its_own(version: int) -> None:
    """Only the near host's route has it, and both ends use it."""
    with Route(version, JUMBO_BYTES, JUMBO_BYTES) as route:
        route.limit(ETHERNET_BYTES)
        handle = route.open()
        with Device(NEAR[version], lanes=LANES, min_timeout_s=0.05) as device:
            connection = device.connect(handle)
            assert 900 < packet_bytes(device, connection) <= 1024
            assert device.counters()["discards"]["send_errors"] == 0


def test_hosts_of_9000_and_a_route_of_1500(version: int) -> None:
    """The router reports it when the first long packets come, and again when the link becomes narrower."""
    with Route(version, JUMBO_BYTES, JUMBO_BYTES) as route:
        route.narrow(ETHERNET_BYTES + 1000)
        handle = route.open()
        with Device(NEAR[version], lanes=LANES, min_timeout_s=0.05) as device:
            connection = device.connect(handle)
            send_some(connection)
            assert 1024 < packet_bytes(device, connection) <= 2048
            route.narrow(ETHERNET_BYTES)
            send_some(connection)
            assert 900 < packet_bytes(device, connection) <= 1024


def test_a_black_hole_is_told_with_the_path_mtu(version: int) -> None:
    with Route(version, JUMBO_BYTES, JUMBO_BYTES) as route:
        route.narrow(ETHERNET_BYTES)
        route.be_silent()
        handle = route.open()
        longest = {4: 4160, 6: 4180}[version]
        with Device(NEAR[version], lanes=LANES, min_timeout_s=0.02, retry_time_s=0.5) as device:
            connection = device.connect(handle)
            with pytest.raises(
                TransportError,
                match=rf"the peer did not answer within the retry time; its packets have up to {longest} bytes "
                r"\(path MTU 4096\): where a link drops such packets without telling, choose a smaller path MTU",
            ):
                send_some(connection)
