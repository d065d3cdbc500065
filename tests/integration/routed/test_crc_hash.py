# SPDX-License-Identifier: Apache-2.0
"""Routers that choose by a CRC: polarised tiers and offsets with real packets, each as predicted."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from netmodel import IPPROTO_TCP, IPPROTO_UDP, Flow, LinuxCrcHash, PortRef, Role, Topology, clos, leaf_spine, path_of
from tests.integration.traffic import PORT, address, in_host

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

PORTS = range(50000, 50400)
THREE_TIERS = clos(2, 2, 2, 2, 1, 100_000_000)
PARALLEL = leaf_spine(2, 2, 1, 100_000_000, parallel_links=3, ipv6=True)
CASES: dict[str, tuple[Topology, dict[Role, int], int]] = {
    "three tiers, polarised": (THREE_TIERS, {}, 2),
    "three tiers, an offset of aggs": (THREE_TIERS, {"agg": 9}, 4),
    "parallel links, IPv6, an offset of spines": (PARALLEL, {"spine": 12}, 18),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RoutedFabric, LinuxCrcHash, int]]:
    topology, offsets, ways = CASES[request.param]
    ecmp_hash = LinuxCrcHash.of(topology, offsets)
    with RoutedFabric(topology, log_dir=tmp_path_factory.mktemp("crc"), ecmp_hash=ecmp_hash) as fabric:
        yield fabric, ecmp_hash, ways


@pytest.mark.parametrize("protocol", [IPPROTO_UDP, IPPROTO_TCP])
def test_every_source_port_takes_the_predicted_path_and_no_other_path_is_reached(
    case: tuple[RoutedFabric, LinuxCrcHash, int], protocol: int
) -> None:
    """Also of connected sockets, whose packets bring a hash of their own."""
    fabric, ecmp_hash, ways = case
    src, dst = fabric.topology.hosts[0].name, fabric.topology.hosts[-1].name
    near, far = (address(fabric, host) for host in (src, dst))
    family = socket.AF_INET6 if fabric.topology.ipv6 else socket.AF_INET
    kind = socket.SOCK_DGRAM if protocol == IPPROTO_UDP else socket.SOCK_STREAM

    def send() -> None:
        for port in PORTS:
            with socket.socket(family, kind) as sock:
                sock.setblocking(False)
                sock.bind((str(near), port))
                sock.connect_ex((str(far), PORT))
                if protocol == IPPROTO_UDP:
                    sock.send(b"paralet")

    routes = fabric.routes()
    in_host(fabric, src, send)
    flows = [Flow(near, far, port, protocol=protocol) for port in PORTS]
    choosing = [name for name, groups in routes.groups.items() if len(groups[far]) > 1]
    paths = {flow: path_of(fabric.topology, flow, ecmp_hash, routes=routes) for flow in flows}
    predicted = {flow: {port for port in path if port.node in choosing} for flow, path in paths.items()}
    deadline = time.monotonic() + 20
    while (found := taken(fabric, choosing, flows)) != predicted and time.monotonic() < deadline:
        time.sleep(0.05)  # packets are still on the way
    assert found == predicted
    assert len(set(paths.values())) == ways


def taken(fabric: RoutedFabric, choosing: list[str], flows: list[Flow]) -> dict[Flow, set[PortRef]]:
    """By flow: the ports by which these routers sent it on."""
    found: dict[Flow, set[PortRef]] = {flow: set() for flow in flows}
    for name in choosing:
        for flow, port in fabric.observed_ports(name).items():
            if flow in found:
                found[flow].add(PortRef(name, port))
    return found
