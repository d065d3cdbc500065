# SPDX-License-Identifier: Apache-2.0
"""UCX's own program over two rxe devices at the ends of one link, under `paralet pin`.

The link has IPv6 addresses: of packets with IPv4 GIDs UCX (1.13.1) takes no datagrams, with which it meets its peer.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from emul import sandbox
from netmodel import ROCE_PORT
from paralet_pin import launch
from tests.softroce.interop.conftest import PROPERTY

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sandbox.inside(), reason="the link is in the first network namespace of a guest only"),
    pytest.mark.skipif(shutil.which("ucx_perftest") is None, reason="ucx_perftest is missing: apt install ucx-utils"),
]

ENDS = {"prltua": "fd00:9::1", "prltub": "fd00:9::2"}
"""The address of each device, which is called as its interface."""
PORTS = {"fd00:9::1": 50_001, "fd00:9::2": 50_501}
"""From which each end is to send."""
PROGRAM = "ucx_perftest -t tag_bw -s 2048 -n 5 -w 1 -p {port}"
TIMEOUT_S = 120
_ALL, _IPV6 = 0x0003, 0x86DD  # linux/if_ether.h


def sh(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True, text=True)


@pytest.fixture
def link() -> Iterator[None]:
    """Packets from one end to the other take the link, although both addresses are of this namespace."""
    with ExitStack() as undo:

        def until_end(line: str, end: str) -> None:
            sh(line)
            undo.callback(sh, end)

        first, second = ENDS
        until_end(f"ip link add {first} type veth peer name {second}", f"ip link del {first}")
        for number, (end, address) in enumerate(ENDS.items()):
            table = 700 + number
            sh(f"sysctl -q -w net.ipv6.conf.{end}.disable_ipv6=0")
            sh(f"ip link set {end} mtu 9000 up")
            sh(f"ip -6 addr add {address}/64 dev {end} nodad")
            sh(f"ip -6 route add fd00:9::/64 dev {end} src {address} table {table}")
            rule = f"pref 100 iif lo from {address} lookup {table}"
            until_end(f"ip -6 rule add {rule}", f"ip -6 rule del {rule}")
        until_end("ip -6 rule add pref 200 lookup local", "ip -6 rule del pref 200")
        until_end("ip -6 rule del pref 0", "ip -6 rule add pref 0 lookup local")
        for end, peer in ((first, second), (second, first)):
            mac = Path(f"/sys/class/net/{peer}/address").read_text().strip()
            sh(f"ip -6 neigh replace {ENDS[peer]} lladdr {mac} dev {end}")
            until_end(f"rdma link add {end} type rxe netdev {end}", f"rdma link del {end}")
        yield


def gid_index(device: str, address: str) -> str:
    gids = Path(f"/sys/class/infiniband/{device}/ports/1/gids")
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:  # the kernel fills the table a little later
        for gid in gids.iterdir():
            if IPv6Address(gid.read_text().strip()) == IPv6Address(address):
                return gid.name
        time.sleep(0.05)
    raise AssertionError(f"{device} has no GID of {address}")


def planned(device: str, peer: str) -> dict[str, str]:
    """The environment of a program at a device that `paralet pin` starts."""
    address = ENDS[device]
    variables = {
        **os.environ,
        launch.WAIT_US: str(60_000_000),  # an emulated machine is slow
        "PARALET_ADDRESSES": address,
        "PARALET_PORTS": f"{peer}={PORTS[address]}",
        "UCX_TLS": "rc_v",
        "UCX_NET_DEVICES": f"{device}:1",
        "UCX_IB_GID_INDEX": gid_index(device, address),
    }
    return launch.variables(variables, launch.start_agent(variables, os.getpid()))


def connected_from(packets: socket.socket) -> set[tuple[str, int]]:
    """From which addresses and ports the packets of connected queue pairs have come so far."""
    found: set[tuple[str, int]] = set()
    while True:
        try:
            packet, where = packets.recvfrom(1 << 16)
        except BlockingIOError:
            return found
        if where[1] != _IPV6 or packet[6] != socket.IPPROTO_UDP or int.from_bytes(packet[42:44]) != ROCE_PORT:
            continue
        if packet[48] >> 5 == 0:  # the transport by the opcode: reliable connection, not datagrams
            found.add((str(IPv6Address(packet[8:24])), int.from_bytes(packet[40:42])))


def test_an_unmodified_program_sends_from_planned_ports(
    link: None, record_property: Callable[[str, object], None]
) -> None:
    record_property(PROPERTY, ("planned UDP source ports under `paralet pin`", "kernel to kernel", "ucx_perftest"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (near, address), (far, peer) = ENDS.items()
    words = PROGRAM.format(port=port).split()
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL)) as packets,
        subprocess.Popen(words, env=planned(far, address), stdout=subprocess.DEVNULL) as server,
    ):
        packets.bind((near, _ALL))
        packets.setblocking(False)
        environment = planned(near, peer)
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while True:
                client = subprocess.run(
                    [*words, "127.0.0.1"], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
                )
                if client.returncode == 0 or server.poll() is not None or time.monotonic() > deadline:
                    break  # else the server does not listen yet
        finally:
            server.kill()  # it waits for ever for a client that has failed
        sent = connected_from(packets)
    assert client.returncode == 0, client.stdout + client.stderr
    assert sent == set(PORTS.items())
