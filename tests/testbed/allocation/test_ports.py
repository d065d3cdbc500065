# SPDX-License-Identifier: Apache-2.0
"""Source ports: planned paths, and the same ports in the engine, in emulated runs and in simulated ones."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostlib import Device
from netmodel import (
    ENTROPY_PORTS,
    IPPROTO_TCP,
    IPPROTO_UDP,
    CrcHash,
    Flow,
    Forwarding,
    Link,
    LinuxL4Hash,
    Nic,
    OvsHash,
    PortRef,
    Switch,
    Topology,
    fat_tree,
    forwarding,
    leaf_spine,
    path_of,
)
from netmodel.hashes.crc import CrcKind
from sim.links import Links
from testbed.allocation.demands import disjoint_paths
from testbed.allocation.placement import place
from testbed.allocation.ports import device_seed, drawn_ports, plan_ports, port_tables
from testbed.errors import InputError
from testbed.run.agent import Hostlib
from testbed.run.agent_messages import DeviceConfig
from testbed.run.rank_configuration import prepare_commands
from testbed.simulate.lane_paths import lanes_of
from testbed.spec import Experiment, Instance, Spec, check
from testbed.workloads import Transfer
from tests.testbed.experiments import first_of
from tests.testbed.kinds import KINDS

MBIT = 1_000_000
SPEC: dict[str, Any] = {
    "name": "ports",
    "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "100 Gbit/s"}},
    "workload": {"kind": "ring_allreduce", "bytes": 409600},
    "placement": {"rule": "cross_leaf"},
    "seeds": [1, 7],
}
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 0)]


def fabric() -> Topology:
    return leaf_spine(4, 4, 2, 20 * MBIT)


def ring(ranks: int) -> tuple[Transfer, ...]:
    return KINDS["ring_allreduce"].model_validate({"kind": "ring_allreduce", "bytes": 16_000}).schedule(ranks, 0)


def experiment_with(policy: dict[str, Any]) -> Experiment:
    return check(Spec.model_validate({**SPEC, "policies": [{"name": "it", **policy}]}))


def used_ports(device: Device, peer: Device) -> dict[int, int]:
    """The port of each lane by which a message has gone from `device` to `peer`."""
    listener = peer.listen()
    outgoing = device.connect(listener.handle)
    incoming = listener.accept(10)
    data, place = np.zeros(1 << 20, dtype=np.uint8), np.empty(1 << 20, dtype=np.uint8)
    received = incoming.recv(place)
    outgoing.send(data).wait(100)
    received.wait(100)
    return {lane["lane"]: lane["port"] for lane in device.counters()["lanes"] if lane["tx_bytes"]}


@given(seed=st.integers(0, 5), lanes=st.integers(1, 8), protocol=st.sampled_from([IPPROTO_UDP, IPPROTO_TCP]))
def test_ports_of_a_table_take_the_planned_path(seed: int, lanes: int, protocol: int) -> None:
    topology = fabric()
    hosts = place(topology, "cross_leaf", 8)
    paths = disjoint_paths(topology, hosts, ring(8))
    tables = port_tables(topology, hosts, paths, lanes, seed, ecmp_hash=OvsHash(), protocol=protocol)
    assert {(src, dst) for src, row in tables.items() for dst in row} == set(paths)
    for (src, dst), path in paths.items():
        ports = tables[src][dst]
        assert len(set(ports)) == lanes
        addresses = [topology.host(hosts[rank]).nics[0].address for rank in (src, dst)]
        flows = (Flow(*addresses, port, protocol=protocol) for port in ports)
        assert {path_of(topology, flow, OvsHash()) for flow in flows} == {path}


def test_with_segments_any_port_takes_the_planned_path() -> None:
    topology = leaf_spine(4, 4, 2, 20 * MBIT, ipv6=True)
    hosts = place(topology, "cross_leaf", 8)
    plan = partial(disjoint_paths, topology, hosts, ring(8))
    ranks = plan_ports(topology, hosts, 4, 1, paths=lambda _: plan(), ecmp_hash=OvsHash(), segments=True)
    assert {(src, dst): path for src, own in enumerate(ranks) for dst, path in own.segments.items()} == plan()
    for own in ranks:
        assert own.table.keys() == own.segments.keys()
        assert all(len(set(ports)) == 4 and set(ports) <= set(ENTROPY_PORTS) for ports in own.table.values())


def test_paths_are_planned_for_the_nic_that_sends() -> None:
    """Each host has another NIC, which is the first one and on a leaf of its own."""
    plain = fabric()
    hosts = [
        replace(host, nics=(Nic("own", IPv4Address(f"192.168.0.{n}"), f"02:00:00:00:00:{n:02x}"), *host.nics))
        for n, host in enumerate(plain.hosts, start=1)
    ]
    links = [replace(link, a=PortRef(link.a.node, 2)) if plain.has_host(link.a.node) else link for link in plain.links]
    links += [Link(PortRef(host.name, 1), PortRef("own", n), MBIT) for n, host in enumerate(hosts, start=1)]
    switches = (*plain.switches, Switch("own", "leaf", 99, 0))
    both = replace(plain, hosts=tuple(hosts), switches=switches, links=tuple(links))
    used = place(plain, "cross_leaf", 8)
    expected = [
        ranks.table
        for ranks in plan_ports(
            plain, used, 3, 1, paths=partial(disjoint_paths, plain, used, ring(8), 0), ecmp_hash=OvsHash()
        )
    ]
    planned = plan_ports(
        both, used, 3, 1, paths=partial(disjoint_paths, both, used, ring(8), 1), ecmp_hash=OvsHash(), nic=1
    )
    assert [ranks.table for ranks in planned] == expected
    assert all(expected)


def test_too_few_ports_for_the_lanes_are_an_error() -> None:
    topology = fabric()
    hosts = place(topology, "cross_leaf", 8)
    lanes = len(ENTROPY_PORTS)
    with pytest.raises(
        InputError, match=rf"^pinned: {lanes} lanes need .* and only \d+ take that path; use fewer lanes$"
    ):
        plan_ports(
            topology, hosts, lanes, 1, paths=partial(disjoint_paths, topology, hosts, ring(8), 0), ecmp_hash=OvsHash()
        )


def in_another_order(topology: Topology) -> Forwarding:
    """The routes of routers: half of them have their next hops in another order than `netmodel.forwarding`."""
    groups = forwarding(topology).groups
    return Forwarding(
        {
            name: {address: tuple(reversed(ports)) if place % 2 else ports for address, ports in own.items()}
            for place, (name, own) in enumerate(groups.items())
        }
    )


@pytest.mark.parametrize("read", [False, True], ids=["by address", "as read"])
@pytest.mark.parametrize("kind", ["crc16", "crc32"])
@pytest.mark.parametrize(
    ("topology", "most"),
    [(leaf_spine(2, 2, 4, MBIT, parallel_links=2), 1), (fat_tree(4, MBIT), 2)],
    ids=["two tiers", "three tiers"],
)
def test_paths_are_planned_over_those_that_ports_reach(
    topology: Topology, most: int, kind: CrcKind, read: bool
) -> None:
    """The same affine hash on two tiers: ports reach half of the paths. Each lane is on one, and few share a link."""
    hosts = [host.name for host in topology.hosts]
    count = len(hosts)
    transfers = [Transfer(0, 0, rank, (rank + count // 2) % count, 0, 0, 1) for rank in range(count)]
    plan = partial(disjoint_paths, topology, hosts, transfers, 0)
    routes = in_another_order(topology) if read else None
    ports = plan_ports(topology, hosts, 2, 1, paths=plan, ecmp_hash=CrcHash(kind), routes=routes)
    used: Counter[PortRef] = Counter()
    for rank, host in enumerate(hosts):
        other = hosts[(rank + count // 2) % count]
        ends = topology.host(host).nics[0].address, topology.host(other).nics[0].address
        towards = ports[rank].towards((rank + count // 2) % count)
        lanes = {path_of(topology, Flow(*ends, port), CrcHash(kind), routes=routes) for port in towards}
        assert len(lanes) == 1
        used.update(lanes.pop()[1:-1])
    assert max(used.values()) <= most


def test_ranks_without_pinned_destinations_draw_their_ports() -> None:
    topology = fabric()
    hosts = ["h1", "h2"]  # both on leaf1
    paths = partial(disjoint_paths, topology, hosts, ring(2), 0)
    plan = plan_ports(topology, hosts, 3, 5, paths=paths, ecmp_hash=OvsHash())
    assert [ports.table for ports in plan] == [{}, {}]
    assert plan[0].towards(1) == drawn_ports(device_seed(5, 0), 3) != plan[1].towards(0)


@pytest.mark.parametrize("seed", [0, 1, 3, 0xFFFF_FFFF])
@pytest.mark.parametrize("lanes", [1, 5, 32])
def test_the_engine_draws_these_ports(seed: int, lanes: int) -> None:
    with (
        Device("127.0.0.1", lanes=lanes, policy="ecmp", seed=seed, flowlet_bytes=4096) as device,
        Device("127.0.0.2", lanes=lanes) as peer,
    ):
        used = used_ports(device, peer)
    assert used == dict(enumerate(drawn_ports(seed, lanes)))


@pytest.mark.parametrize(
    "policy", [{"policy": "ecmp", "m": 4}, {"policy": "pinned", "m": 3}], ids=lambda policy: policy["policy"]
)
def test_emulated_ranks_use_the_ports_that_simulators_assume(policy: dict[str, Any]) -> None:
    experiment = experiment_with(policy)
    links = Links(experiment.topology)
    loopback = {first_of(experiment).address(rank): f"127.0.0.{rank + 1}" for rank in range(experiment.ranks)}

    def on_loopback(config: DeviceConfig) -> DeviceConfig:
        ports = {loopback[peer]: own for peer, own in (config.ports or {}).items()} or None
        update = {"address": loopback[config.address], "ports": ports, "flowlet_bytes": 4096}
        return config.model_copy(update=update)

    transfers = [Transfer(0, 0, src, dst, 0, 0, 1) for src, dst in PAIRS]
    for seed in experiment.seeds:
        simulated = lanes_of(Instance(experiment, seed), experiment.spec.policies[0], transfers, links).ports
        commands = prepare_commands(Instance(experiment, seed), experiment.spec.policies[0], None)
        for (src, dst), ports in zip(PAIRS, simulated.tolist(), strict=True):
            with ExitStack() as stack:
                devices = [Hostlib().open(on_loopback(commands[rank].device)) for rank in (src, dst)]
                for device in devices:
                    stack.callback(device.close)
                assert used_ports(*devices) == dict(enumerate(ports))


def test_ports_are_pinned_by_the_routes_of_the_fabric() -> None:
    topology, hosts = fabric(), [f"h{k}" for k in range(1, 9)]
    read = in_another_order(topology)
    plan = partial(disjoint_paths, topology, hosts, ring(8), 0)
    ranks = plan_ports(topology, hosts, 2, 1, paths=plan, ecmp_hash=LinuxL4Hash(), routes=read)
    for (src, dst), path in plan().items():
        near, far = (topology.host(hosts[rank]).nics[0].address for rank in (src, dst))
        for port in ranks[src].table[dst]:
            assert path_of(topology, Flow(near, far, port), LinuxL4Hash(), routes=read) == path
