# SPDX-License-Identifier: Apache-2.0
"""Topologies and flows shared by the tests of netmodel."""

import itertools
import json
import random
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

import numpy as np

from netmodel import FlowFields, Host, Link, Nic, PortRef, Role, Switch, Topology, derived_hash_seed, derived_mac
from netmodel.flow import address_array, address_at

HERE = Path(__file__).parent


def host(name: str, *addresses: str) -> Host:
    return Host(
        name,
        tuple(Nic(f"nic{i}", IPv4Address(a), derived_mac(IPv4Address(a))) for i, a in enumerate(addresses)),
    )


def switch(name: str, role: Role, dpid: int) -> Switch:
    return Switch(name, role, dpid, derived_hash_seed(dpid))


def link(a: str, b: str, rate_bps: int = 10**7) -> Link:
    """A link between ports written "NODE:PORT"."""
    return Link(PortRef.parse(a), PortRef.parse(b), rate_bps)


def wired(hosts: dict[str, str], cables: list[tuple[str, str]], name: str = "wired") -> Topology:
    """A topology from {host: switch} and pairs of switches, which gets each node's ports in order.

    Switches whose names start with "l" are leaves, with "o" optical, and spines otherwise.
    """
    used: dict[str, int] = {}

    def next_port(node: str) -> PortRef:
        used[node] = used.get(node, 0) + 1
        return PortRef(node, used[node])

    links = [Link(next_port(a), next_port(b), 10**7) for a, b in [*hosts.items(), *cables]]
    names = sorted({node for cable in cables for node in cable} | set(hosts.values()))
    roles: dict[str, Role] = {"l": "leaf", "o": "ocs"}
    return Topology(
        name,
        tuple(host(h, f"10.0.0.{i}") for i, h in enumerate(hosts, start=1)),
        tuple(switch(s, roles.get(s[0], "spine"), dpid) for dpid, s in enumerate(names, start=1)),
        tuple(links),
        1500,
    )


def three_tier(pods: int, leaves: int, aggregations: int, cores: int) -> Topology:
    """One host per leaf; leaves to all aggregation switches of their pod, these to all cores."""
    cables = []
    for pod in range(pods):
        for a in range(aggregations):
            cables += [(f"l{pod}-{leaf}", f"a{pod}-{a}") for leaf in range(leaves)]
            cables += [(f"a{pod}-{a}", f"c{core}") for core in range(cores)]
    return wired({f"h{p}-{i}": f"l{p}-{i}" for p in range(pods) for i in range(leaves)}, cables, "three-tier")


def fields_of(src: str, dst: str, proto: int, sport: int, dport: int) -> FlowFields:
    """One flow as arrays."""
    return FlowFields(
        src=address_array([ip_address(src)]),
        dst=address_array([ip_address(dst)]),
        sport=np.array([sport], dtype=np.uint16),
        dport=np.array([dport], dtype=np.uint16),
        proto=np.array([proto], dtype=np.uint8),
    )


def random_fields(count: int, seed: int, protocols: tuple[int, ...] = (17,), version: int = 4) -> FlowFields:
    """`count` flows with every field different from flow to flow."""
    chance = np.random.default_rng(seed)
    shape = count if version == 4 else (count, 4)
    return FlowFields(
        src=chance.integers(0, 2**32, shape, dtype=np.uint32),
        dst=chance.integers(0, 2**32, shape, dtype=np.uint32),
        sport=chance.integers(0, 2**16, count, dtype=np.uint16),
        dport=chance.integers(0, 2**16, count, dtype=np.uint16),
        proto=chance.choice(np.array(protocols, dtype=np.uint8), count),
    )


def rows(fields: FlowFields) -> list[tuple[bytes, bytes, int, int, int]]:
    """The flows one by one: (src, dst, proto, sport, dport), addresses in network order."""
    proto, sport, dport = (
        np.broadcast_to(column, len(fields)).tolist() for column in (fields.proto, fields.sport, fields.dport)
    )
    src, dst = (
        [address_at(ends, k if len(ends) > 1 else 0).packed for k in range(len(fields))]
        for ends in (fields.src, fields.dst)
    )
    return list(zip(src, dst, proto, sport, dport, strict=True))


def recorded(name: str) -> list[dict[str, Any]]:
    """The vectors of a record beside this file."""
    vectors: list[dict[str, Any]] = json.loads((HERE / name).read_text())["vectors"]
    return vectors


def random_fabric(seed: int) -> tuple[Topology, frozenset[Link]]:
    """A small fabric of two or three tiers with random cables, parallel ones among them, and some dead links."""
    chance = random.Random(seed)
    tiers = [[f"{letter}{i}" for i in range(chance.randint(1, 4))] for letter in "lsc"[: chance.randint(2, 3)]]
    cables = [
        (low, high)
        for lower, upper in itertools.pairwise(tiers)
        for low in lower
        for high in upper
        for _ in range(chance.choice([0, 1, 1, 2]))
    ]
    hosts = {f"h{i}": chance.choice(tiers[0]) for i in range(chance.randint(2, 8))}
    topology = wired(hosts, cables, "random")
    return topology, frozenset(each for each in topology.links if chance.random() < 0.15)
