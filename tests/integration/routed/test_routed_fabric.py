# SPDX-License-Identifier: Apache-2.0
"""Routers in namespaces, eBGP by FRR: routes, predicted paths, and what they do when links and routers fail.

The tests of a fabric run in order, and each leaves it as it was.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from emul import LinkFault, RoutedFabric
from emul.routed.requirements import lack
from netmodel import (
    Flow,
    FlowFields,
    Forwarding,
    LinuxL4Hash,
    PortRef,
    Topology,
    clos,
    equal_cost_paths,
    forwarding,
    in_planes,
    leaf_spine,
    path_of,
    rail_optimised,
)
from netmodel.bgp_routes import bgp_routes
from netmodel.flow import address_array
from netmodel.router_plan import RouterPlan
from sim.links import Links
from sim.paths import hashed_paths
from testbed.bench import bring_up, cuts, route_changes
from tests.integration.traffic import (
    FRAME_OVERHEAD,
    PATIENCE_S,
    PORT,
    RawSender,
    address,
    all_taken,
    in_host,
    receiver,
)

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.long,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

TOPOLOGY = clos(2, 2, 2, 2, 1, 100_000_000)
HOSTS = [host.name for host in TOPOLOGY.hosts]
UPLINK = PortRef("leaf1", 2)
FAR = TOPOLOGY.host("h3").nics[0].address
NEAR = TOPOLOGY.host("h1").nics[0].address
SILENT_WITHIN_S = 20.0


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoutedFabric]:
    with RoutedFabric(TOPOLOGY, log_dir=tmp_path_factory.mktemp("routed"), pcap=[UPLINK]) as running:
        yield running


def udp(fabric: RoutedFabric, src: str, dst: str, ports: range, connected: bool = False, nic: int = 0) -> None:
    """One datagram from each source port, each from a socket of its own."""
    here, there = (str(fabric.topology.host(host).nics[nic].address) for host in (src, dst))
    family = socket.AF_INET6 if fabric.topology.ipv6 else socket.AF_INET

    def send() -> None:
        for port in ports:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.bind((here, port))
                if connected:
                    sock.connect((there, PORT))
                    sock.send(b"paralet")
                else:
                    sock.sendto(b"paralet", (there, PORT))

    in_host(fabric, src, send)


def taken(fabric: RoutedFabric) -> dict[Flow, set[PortRef]]:
    """By flow: the router ports by which its packets left, where routers have a choice."""
    found: dict[Flow, set[PortRef]] = {}
    for switch in fabric.topology.switches:
        for flow, port in fabric.observed_ports(switch.name).items():
            found.setdefault(flow, set()).add(PortRef(switch.name, port))
    return found


def predicted(fabric: RoutedFabric, flow: Flow, routes: Forwarding) -> set[PortRef]:
    """The router ports of the flow's path."""
    return set(path_of(fabric.topology, flow, LinuxL4Hash(), routes=routes)[1:])


def chosen(fabric: RoutedFabric, flow: Flow, routes: Forwarding) -> set[PortRef]:
    """The ports of the flow's path at routers with a choice while all links live."""
    groups = forwarding(fabric.topology).groups
    return {port for port in predicted(fabric, flow, routes) if len(groups[port.node][flow.dst]) > 1}


def check_prediction(
    fabric: RoutedFabric, src: str, dst: str, ports: range, connected: bool = False, nic: int = 0
) -> None:
    """Every port of `ports` takes the path that follows from the kernels' order of next hops."""
    routes = fabric.routes()
    udp(fabric, src, dst, ports, connected, nic)
    ends = [fabric.topology.host(host).nics[nic].address for host in (src, dst)]
    flows = {Flow(*ends, port) for port in ports}
    wait_until(lambda: flows <= taken(fabric).keys())
    ways = taken(fabric)
    assert {flow: ways[flow] for flow in flows} == {flow: chosen(fabric, flow, routes) for flow in flows}


def wait_until(true: Callable[[], bool], timeout_s: float = SILENT_WITHIN_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ordered(fabric: RoutedFabric) -> dict[str, dict[object, tuple[int, ...]]]:
    """All routes, with the members of groups in ascending order."""
    return {
        name: {a: tuple(sorted(ports)) for a, ports in groups.items()}
        for name, groups in fabric.routes().groups.items()
    }


def test_routers_have_all_shortest_paths(fabric: RoutedFabric) -> None:
    assert ordered(fabric) == {name: dict(groups) for name, groups in forwarding(TOPOLOGY).groups.items()}


def test_packets_reach_every_host_from_every_other(fabric: RoutedFabric) -> None:
    for dst in HOSTS:
        with receiver(fabric, dst) as arriving:
            for src in (name for name in HOSTS if name != dst):
                udp(fabric, src, dst, range(40000, 40001))
                assert arriving.recvfrom(100)[1][0] == str(address(fabric, src))


@pytest.mark.parametrize("connected", [False, True])
def test_every_source_port_takes_the_predicted_path(fabric: RoutedFabric, connected: bool) -> None:
    """Also of connected sockets, whose packets carry a hash that the kernel would take instead of the header's."""
    with receiver(fabric, "h3"):
        check_prediction(fabric, "h1", "h3", range(50000 + 2000 * connected, 50500 + 2000 * connected), connected)
    cores = {TOPOLOGY.peer(port).node for ports in taken(fabric).values() for port in ports}
    assert cores >= {"core1", "core2", "core3", "core4"}


def test_counters_count_the_frames_of_a_flow_on_its_predicted_path_only(fabric: RoutedFabric) -> None:
    """Frames of data are counted among those of sessions, which are short and few."""
    payload, count = bytes(4000), 50
    flow = Flow(NEAR, FAR, 60001)
    with receiver(fabric, "h3") as arriving:
        sender = RawSender(fabric, "h1")
        before = fabric.link_counters()
        for _ in range(count):
            sender.send(FAR, flow.src_port, payload)
        for _ in range(count):
            arriving.recv(1 << 16)
        sender.close()
    after = fabric.link_counters()
    data = count * (len(payload) + FRAME_OVERHEAD)
    carried = {port for port in after if after[port].tx_bytes - before[port].tx_bytes >= data}
    assert carried == predicted(fabric, flow, fabric.routes())
    (up,) = (port for port in carried if port.node == "leaf1")
    assert flow in {seen.flow for seen in fabric.crossing(TOPOLOGY.link_at(up), within_s=60)}


def test_tcp_takes_the_path_that_follows_from_its_header(fabric: RoutedFabric) -> None:
    """As every connected socket, TCP gives its packets a hash, which routers would otherwise take instead."""
    ports, size = range(52000, 52008), 100_000
    links = Links(TOPOLOGY)
    fields = FlowFields(
        src=address_array([NEAR] * len(ports)),
        dst=address_array([FAR] * len(ports)),
        sport=np.array(ports, dtype=np.uint16),
        dport=np.full(len(ports), PORT, dtype=np.uint16),
        proto=np.array([socket.IPPROTO_TCP], dtype=np.uint8),
    )
    ways = hashed_paths(links, fields, LinuxL4Hash(), fabric.routes())
    listener = in_host(fabric, "h3", lambda: socket.create_server((str(FAR), PORT)))
    for port, row in zip(ports, ways.tolist(), strict=True):
        before = fabric.link_counters()
        with in_host(
            fabric, "h1", lambda port=port: socket.create_connection((str(FAR), PORT), PATIENCE_S, (str(NEAR), port))
        ) as client:
            server = listener.accept()[0]
            client.sendall(bytes(size))
            client.shutdown(socket.SHUT_WR)
            while server.recv(1 << 16):
                pass
            server.close()
        after = fabric.link_counters()
        carried = {port for port in after if after[port].tx_bytes - before[port].tx_bytes >= size}
        assert carried == {links.ports[link] for link in row if link >= 0} - {PortRef("h1", 1)}
    listener.close()


def test_a_full_queue_drops_packets_that_counters_count(fabric: RoutedFabric) -> None:
    link = TOPOLOGY.link_at(PortRef("h3", 1))

    def dropped() -> int:
        return fabric.link_counters()[PortRef("leaf3", 1)].dropped

    fabric.set_rate(link, 0.01)
    with receiver(fabric, "h3") as arriving:
        sender = RawSender(fabric, "h1")
        for _ in range(300):
            sender.send(FAR, 60002, bytes(1400))
        sender.close()
        arriving.settimeout(2.0)
        count = len(all_taken(lambda: arriving.recv(1 << 16), 300, dropped))
    fabric.set_rate(link, 1.0)
    assert 0 < dropped() == 300 - count


def test_a_router_answers_with_the_address_at_which_a_packet_came_in(fabric: RoutedFabric) -> None:
    """By that, a packet whose time to live runs out names a link."""
    recverr, errqueue = 11, 0x2000

    def probe() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, recverr, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 3)
            sock.bind((str(NEAR), 61000))
            sock.sendto(b"", (str(FAR), PORT))
            sock.settimeout(PATIENCE_S)
            with suppress(OSError):
                sock.recv(1)
            ((_, _, error),) = sock.recvmsg(100, 512, errqueue)[1]
            return socket.inet_ntoa(error[20:24])

    way = path_of(TOPOLOGY, Flow(NEAR, FAR, 61000), LinuxL4Hash(), routes=fabric.routes())
    (up,) = (port for port in way if port.node.startswith("agg") and port.port > 2)
    assert in_host(fabric, "h1", probe) == str(RouterPlan(TOPOLOGY).link_addresses[TOPOLOGY.peer(up)])


def test_routes_and_predictions_follow_a_cut_and_its_mending(fabric: RoutedFabric) -> None:
    link = TOPOLOGY.link_at(UPLINK)
    plan = RouterPlan(TOPOLOGY)
    with receiver(fabric, "h3"):
        fabric.set_link(link, False)
        assert ordered(fabric) == bgp_routes(plan, frozenset({link})).groups
        check_prediction(fabric, "h1", "h3", range(41000, 41100))
        fabric.set_link(link, True)
        assert ordered(fabric) == bgp_routes(plan).groups
        check_prediction(fabric, "h1", "h3", range(42000, 42100))


def test_a_host_whose_link_is_cut_is_unreachable_until_it_is_mended(fabric: RoutedFabric) -> None:
    link = TOPOLOGY.link_at(PortRef("h3", 1))
    fabric.set_link(link, False)
    assert all(FAR not in groups for groups in fabric.routes().groups.values())
    fabric.set_link(link, True)
    with receiver(fabric, "h3") as arriving:
        udp(fabric, "h1", "h3", range(40000, 40001))
        assert arriving.recv(100)


def test_silent_loss_ends_the_session_and_traffic_goes_around(fabric: RoutedFabric) -> None:
    """Nothing arrives by the link, while both ends have carrier: only the session's hold time tells."""
    link = TOPOLOGY.link_at(UPLINK)
    for end in (link.a, link.b):
        fabric.set_faults(end, LinkFault(loss=1.0))
    wait_until(lambda: fabric.routes().groups["leaf1"][FAR] == (3,))
    for end in (link.a, link.b):
        fabric.set_faults(end, LinkFault())
    wait_until(lambda: set(fabric.routes().groups["leaf1"][FAR]) == {2, 3})
    assert fabric.fault_counts()[UPLINK].lost > 0


def test_a_router_dies_and_returns(fabric: RoutedFabric) -> None:
    fabric.set_router("agg1", False)
    assert fabric.routes().groups["leaf1"][FAR] == (3,)
    assert fabric.routes().groups["leaf3"][NEAR] == (3,)
    fabric.set_router("agg1", True)
    assert ordered(fabric) == bgp_routes(RouterPlan(TOPOLOGY)).groups


def test_a_session_that_is_reset_comes_back(fabric: RoutedFabric) -> None:
    fabric.reset_session(UPLINK)
    assert ordered(fabric) == bgp_routes(RouterPlan(TOPOLOGY)).groups
    with pytest.raises(ValueError, match="no BGP session is at port leaf1:1"):
        fabric.reset_session(PortRef("leaf1", 1))


def test_a_drained_router_carries_nothing_and_no_packet_is_lost(fabric: RoutedFabric) -> None:
    with receiver(fabric, "h3") as arriving:
        sender = RawSender(fabric, "h1")
        fabric.set_drained("agg1", True)
        assert fabric.routes().groups["leaf1"][FAR] == (3,)
        assert fabric.routes().groups["leaf3"][NEAR] == (3,)
        for port in range(43000, 43100):
            sender.send(FAR, port)
        fabric.set_drained("agg1", False)
        for _ in range(100):
            arriving.recv(1 << 16)
        sender.close()
    assert set(fabric.routes().groups["leaf1"][FAR]) == {2, 3}


def test_the_bench_of_route_changes_sees_what_a_cut_loses_and_that_a_drain_loses_nothing(fabric: RoutedFabric) -> None:
    """With one of two uplinks left, the ports of the other do not move."""
    found = {case.name: case for case in route_changes.cases(fabric)}
    cut, drain = found["cut: the sender's leaf to agg"], found["agg1 is drained"]
    change = route_changes.observe(fabric, cut.fail, cut.dead)
    assert change.others == 0
    assert change.for_s < SILENT_WITHIN_S
    fabric.set_link(TOPOLOGY.link_at(UPLINK), True)
    try:
        assert route_changes.observe(fabric, drain.fail, drain.dead).lost == 0
    finally:
        fabric.set_drained("agg1", False)


def test_the_bench_of_cuts_sees_lanes_move_and_nothing_lost(fabric: RoutedFabric) -> None:
    """With one of two uplinks left, only lanes that crossed the cut link move."""
    outage = cuts.observe(fabric, next(cuts.three_tiers(fabric)), "ecmp", settle_s=0.5)
    assert outage.messages > 0 == outage.lost
    assert outage.moved == outage.lanes > 0
    assert outage.others == 0


def test_captures_have_the_sessions_packets(fabric: RoutedFabric) -> None:
    (file,) = (fabric._log_dir / "pcap").glob("*.pcap")
    listed = subprocess.run(["tcpdump", "-nr", str(file)], capture_output=True, text=True, check=True).stdout
    assert ".179: " in listed


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_links_may_have_no_addresses(tmp_path: Path, ipv6: bool) -> None:
    """BGP then gives routes to IPv4 hosts IPv6 next hops (RFC 8950)."""
    topology = leaf_spine(2, 2, 1, 100_000_000, ipv6=ipv6)
    with RoutedFabric(topology, log_dir=tmp_path, unnumbered=True) as fabric:
        check_prediction(fabric, "h1", "h2", range(50000, 50200))
        link = topology.link_at(PortRef("leaf1", 2))
        fabric.set_link(link, False)
        fabric.set_link(link, True)
        check_prediction(fabric, "h1", "h2", range(51000, 51200))
        fabric.set_link(topology.link_at(PortRef("h2", 1)), False)
        fabric.set_link(topology.link_at(PortRef("h2", 1)), True)
        fabric.reset_session(PortRef("spine2", 2))


@pytest.mark.parametrize(
    ("topology", "ends", "nic"),
    [
        (in_planes(clos(2, 1, 2, 1, 1, 100_000_000), 2), ("h1", "h2"), 1),
        (rail_optimised(4, 2, 100_000_000, 800_000_000, 2, 2, pods=2), ("d1g1", "d4g2"), 0),
    ],
    ids=["the second of two planes", "from rail to rail"],
)
def test_planes_and_rails_over_three_tiers_carry_data_as_predicted(
    tmp_path: Path, topology: Topology, ends: tuple[str, str], nic: int
) -> None:
    with RoutedFabric(topology, log_dir=tmp_path) as fabric:
        check_prediction(fabric, *ends, range(50000, 50100), nic=nic)
    assert len(equal_cost_paths(topology, *ends, src_nic=nic, dst_nic=nic)) == 2


def test_the_bench_of_bring_up_measures_a_fabric() -> None:
    up_s, down_s = bring_up.measure(leaf_spine(1, 1, 2, 100_000_000))
    assert min(up_s, down_s) > 0


def test_daemons_end_with_their_fabric(tmp_path: Path) -> None:
    """The sandbox's own process namespace shows them all."""
    running = [p.name for p in Path("/proc").iterdir() if (p / "comm").exists() and "bgpd" in (p / "comm").read_text()]
    with RoutedFabric(leaf_spine(1, 1, 2, 100_000_000), log_dir=tmp_path):
        pass
    after = [p.name for p in Path("/proc").iterdir() if (p / "comm").exists() and "bgpd" in (p / "comm").read_text()]
    assert after == running
