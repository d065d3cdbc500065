# SPDX-License-Identifier: Apache-2.0
import random
from collections.abc import Iterable
from ipaddress import ip_address
from itertools import pairwise, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import (
    CrcHash,
    LinuxL4Hash,
    PortRef,
    Topology,
    clos,
    dump_topology,
    fat_tree,
    forwarding,
    leaf_spine,
    parse_yaml,
    paths_of_ports,
    router_addresses,
)
from netmodel.flow import Address
from netmodel.probing.inference import FoundTopology, InferenceError, infer, polarised
from netmodel.probing.observations import Observation, ProbeFile
from netmodel.probing.paths import paths_of
from netmodel.probing.simulated import Fabric, Naming
from netmodel.topology_yaml import TopologySpec

PORTS = range(0xC000, 0xC000 + 48)


def files(
    fabric: Fabric, pairs: Iterable[tuple[str, str]], ports: Iterable[int] = PORTS, most_ttl: int = 6
) -> list[ProbeFile]:
    """What the sources of pairs write when they probe all TTLs."""
    seen: dict[str, list[Observation]] = {}
    for source, destination in pairs:
        seen.setdefault(source, []).extend(
            fabric.probes(source, destination, list(ports), range(1, most_ttl + 1), at_s=1.0)
        )
    return [ProbeFile(host, "2026-11-26T21:12:00Z", tuple(own)) for host, own in seen.items()]


def real_names(fabric: Fabric, found: FoundTopology) -> dict[str, str]:
    """The real switch that each inferred one is; an inferred one must not be two."""
    addresses = router_addresses(fabric.topology)
    owner = {address: port.node for port, address in addresses.port.items()}
    owner |= {address: switch for switch, address in addresses.loopback.items()}
    names: dict[str, str] = {}
    for address, switch in found.routers.items():
        assert names.setdefault(switch, owner[address]) == owner[address]
    return names


def assert_same_fabric(fabric: Fabric, found: FoundTopology) -> None:
    """All switches and links are there, once, with their roles, and no others."""
    real, names = fabric.topology, real_names(fabric, found)
    assert sorted(names.values()) == sorted(switch.name for switch in real.switches)
    assert {names[switch.name]: switch.role for switch in found.topology.switches} == {
        switch.name: switch.role for switch in real.switches
    }
    assert {host.name: host.nics[0].address for host in found.topology.hosts} == {
        host.name: host.nics[0].address for host in real.hosts
    }

    def cables(topology: Topology, called: dict[str, str]) -> list[tuple[str, ...]]:
        ends = [sorted(called.get(end.node, end.node) for end in (link.a, link.b)) for link in topology.links]
        return sorted(map(tuple, ends))

    expected = cables(real, {})
    assert cables(found.topology, names) == (expected if found.naming == "interface" else sorted(set(expected)))
    if found.naming == "interface":
        at = {address: port for port, address in router_addresses(real).port.items()}
        for address, port in found.ports.items():
            far = real.peer(at[address])
            assert names[found.topology.peer(port).node] == far.node
            assert found.ports[router_addresses(real).port[far]] == found.topology.peer(port)


def shapes(chance: random.Random) -> Topology:
    ipv6 = chance.random() < 0.3
    if chance.random() < 0.4:
        return leaf_spine(
            chance.randint(2, 4), chance.randint(1, 4), 2, 10**9, parallel_links=chance.randint(1, 2), ipv6=ipv6
        )
    if chance.random() < 0.3:
        return fat_tree(4, 10**9, ipv6=ipv6)
    return clos(
        chance.randint(2, 3),
        chance.randint(1, 2),
        chance.randint(1, 2),
        chance.randint(1, 2),
        chance.randint(1, 2),
        10**9,
        parallel_links=chance.randint(1, 2),
        ipv6=ipv6,
    )


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from(["interface", "router"]))
def test_a_fabric_is_found_again(seed: int, naming: Naming) -> None:
    topology = shapes(random.Random(seed))
    fabric = Fabric(topology, LinuxL4Hash(), naming)
    hosts = [host.name for host in topology.hosts]
    leaves = {fabric.topology.peer(PortRef(host, 1)).node: host for host in hosts}
    pairs = {*permutations(leaves.values(), 2), *pairwise([*hosts, *hosts[:1]])}
    enough = 0xC000 + max(48, 1500 // len(pairs))  # so that each link is seen, save with a chance of one in a billion
    found = infer(files(fabric, sorted(pairs), range(0xC000, enough)), rate_bps=10**9)
    assert found.naming == naming
    assert_same_fabric(fabric, found)


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from(["interface", "router"]))
def test_few_pairs_and_lost_answers_never_make_up_a_link(seed: int, naming: Naming) -> None:
    chance = random.Random(seed)
    fabric = Fabric(shapes(chance), LinuxL4Hash(), naming)
    hosts = [host.name for host in fabric.topology.hosts]
    pairs = chance.sample(list(permutations(hosts, 2)), 4)
    pairs += [(b, a) for a, b in pairs if (b, a) not in pairs]
    kept = [
        msgspec.structs.replace(
            file,
            observations=tuple(
                observation
                if chance.random() < 0.8
                else msgspec.structs.replace(observation, answer="none", router=None, rtt_s=None)
                for observation in file.observations
            ),
        )
        for file in files(fabric, pairs, PORTS[:16])
    ]
    found = infer(kept, rate_bps=10**9)
    names = real_names(fabric, found)
    real = {
        frozenset((near.node, far.node))
        for near in fabric.topology.linked_ports()
        for far in [fabric.topology.peer(near)]
    }
    for link in found.topology.links:
        assert frozenset(names.get(end.node, end.node) for end in (link.a, link.b)) in real


def test_the_topology_is_a_spec_that_runs() -> None:
    fabric = Fabric(clos(2, 2, 2, 2, 1, 10**9), LinuxL4Hash())
    found = infer(files(fabric, permutations(["h1", "h2", "h3", "h4"], 2)), rate_bps=10**9, name="ours")
    read = parse_yaml(dump_topology(found.topology), TopologySpec).topology
    assert read == found.topology
    assert found.notes == ()
    assert [switch.name for switch in read.switches][:4] == ["leaf1", "leaf2", "leaf3", "leaf4"]
    assert all(forwarding(read).groups["leaf1"][host.nics[0].address] for host in read.hosts)


@pytest.mark.parametrize("naming", ["interface", "router"])
def test_ports_are_found_on_the_paths_of_the_topology(naming: Naming) -> None:
    fabric = Fabric(clos(2, 2, 2, 2, 1, 10**9), LinuxL4Hash(), naming)
    seen = files(fabric, permutations(["h1", "h2", "h3", "h4"], 2))
    found = infer(seen, rate_bps=10**9)
    names = real_names(fabric, found)
    (pair,) = paths_of(fabric.probes("h1", "h4", PORTS, range(1, 7)))
    paths, taken = found.ways(pair)
    real, index = paths_of_ports(fabric.topology, "h1", "h4", LinuxL4Hash(), list(PORTS))
    expected: dict[tuple[str, ...], list[int]] = {}
    for port, number in zip(PORTS, index.tolist(), strict=True):
        expected.setdefault(tuple(hop.node for hop in real[number]), []).append(port)
    assert len(paths) == len(real)
    assert {tuple(names.get(hop.node, hop.node) for hop in path): list(ports) for path, ports in taken.items()} == (
        expected
    )


def test_polarised_hashes_are_found() -> None:
    topology = clos(2, 4, 2, 2, 1, 10**9)
    hosts = [host.name for host in topology.hosts]
    for ecmp_hash, is_polarised in ((CrcHash("crc32"), True), (LinuxL4Hash(), False)):
        seen = files(Fabric(topology, ecmp_hash), permutations(hosts, 2))
        found = infer(seen, rate_bps=10**9)
        pairs = [each for file in seen for each in paths_of(file.observations)]
        reached = {each.pair: len(found.ways(each)[1]) for each in pairs}
        ways = {each.pair: len(found.ways(each)[0]) for each in pairs}
        missing = polarised(found, pairs)
        assert {finding.pair for finding in missing} == {pair for pair in reached if reached[pair] < ways[pair]}
        assert bool(missing) == is_polarised
        assert all("reach 2 of 4 paths" in finding.statement for finding in missing)
        owner = {found.routers[address] for finding in missing for address in finding.narrow}
        assert {name.rstrip("0123456789") for name in owner} == ({"agg"} if is_polarised else set())


def test_answers_by_the_port_of_the_reply_are_noted() -> None:
    """A leaf that answers by any uplink joins its spines to one, which nothing that was seen contradicts."""
    topology = leaf_spine(2, 4, 1, 10**9)
    fabric = Fabric(topology, LinuxL4Hash())
    uplinks = {
        host: [str(address) for port, address in router_addresses(topology).port.items() if port.node == leaf]
        for host, leaf in (("h2", "leaf2"), ("h1", "leaf1"))
    }
    seen = []
    for file, uplink in zip(files(fabric, [("h1", "h2"), ("h2", "h1")]), uplinks.values(), strict=True):
        own = [
            msgspec.structs.replace(one, router=uplink[one.source_port // 4 % 4]) if one.ttl == 3 else one
            for one in file.observations
        ]
        seen.append(ProbeFile(file.host, file.began, tuple(own)))
    (note,) = infer(seen, rate_bps=10**9).notes
    assert "only one topmost router was seen" in note
    assert "net.ipv4.icmp_errors_use_inbound_ifaddr=1" in note
    assert not infer(files(fabric, [("h1", "h2"), ("h2", "h1")]), rate_bps=10**9).notes


def test_hosts_without_a_file_are_named_by_their_address() -> None:
    fabric = Fabric(leaf_spine(2, 2, 1, 10**9), LinuxL4Hash())
    found = infer(files(fabric, [("h1", "h2")]), rate_bps=10**9)
    assert [host.name for host in found.topology.hosts] == ["h1", "host-10.0.1.1"]
    assert found.naming == "interface"


def test_links_with_30_bit_prefixes_are_joined() -> None:
    fabric = Fabric(leaf_spine(2, 2, 1, 10**9), LinuxL4Hash())
    wide = [
        msgspec.structs.replace(
            file,
            observations=tuple(
                msgspec.structs.replace(observation, router=_in_slash_30(ip_address(observation.router)))
                if observation.router is not None
                else observation
                for observation in file.observations
            ),
        )
        for file in files(fabric, [("h1", "h2"), ("h2", "h1")])
    ]
    found = infer(wide, rate_bps=10**9)
    assert sorted(switch.role for switch in found.topology.switches) == ["leaf", "leaf", "spine", "spine"]
    assert len(found.topology.links) == 6


def _in_slash_30(address: Address) -> str:
    """The addresses 2 k and 2 k + 1 of a link as 4 k + 1 and 4 k + 2. Others stay."""
    offset = int(address) - int(ip_address("172.16.0.0"))
    return str(address) if offset >> 16 or offset < 0 else str(address + offset // 2 * 4 + offset % 2 + 1 - offset)


def replaced(file: ProbeFile, **by_ttl: str) -> ProbeFile:
    """A file in which the routers at some TTLs (t1, t2, ..) answer by another address."""
    seen = [
        msgspec.structs.replace(observation, router=by_ttl[f"t{observation.ttl}"])
        if f"t{observation.ttl}" in by_ttl
        else observation
        for observation in file.observations
    ]
    return msgspec.structs.replace(file, observations=tuple(seen))


def test_what_is_no_fabric_of_tiers_is_refused() -> None:
    fabric = Fabric(leaf_spine(2, 2, 2, 10**9), LinuxL4Hash())
    (short,) = files(fabric, [("h1", "h3")], most_ttl=3)
    with pytest.raises(InferenceError, match="no path is known up to its destination"):
        infer([short], rate_bps=10**9)
    (whole,) = files(fabric, [("h1", "h3")])
    (other,) = files(fabric, [("h2", "h3")])
    with pytest.raises(InferenceError, match="is an address of two hosts, h1 and h9"):
        infer([whole, msgspec.structs.replace(whole, host="h9")], rate_bps=10**9)
    with pytest.raises(InferenceError, match="tier"):
        infer([whole, replaced(other, t1="172.16.0.1")], rate_bps=10**9)
    five = [observation for observation in whole.observations if observation.ttl != 3]
    even = [
        msgspec.structs.replace(observation, ttl=min(observation.ttl, 3)) for observation in five if observation.ttl < 5
    ]
    with pytest.raises(InferenceError, match="has 2 routers"):
        infer([msgspec.structs.replace(whole, observations=tuple(even))], rate_bps=10**9)
