# SPDX-License-Identifier: Apache-2.0
"""From a route to the UDP source ports that take it: the inverse of the switches' hash, kept per pair of NICs.

The same as `netmodel.ports_for_path`, in another form: all paths of a pair at once, from as few ports as will do, and
by the numbers of a `Clos`, so that nothing of a failure's consequences has to be walked on the whole topology.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS, ROCE_PORT, EcmpHash, FlowFields
from sdn.planners import LOCAL, UNREACHABLE, Cabling, Clos

Way: TypeAlias = tuple[int, int, int]
"""Spine, up and down, as in a `sdn.planners.Route`."""

Peer: TypeAlias = tuple[str, int]
"""Address and UDP port that a device receives on."""

_FIRST_PORTS = 512  # hashed at first; then as many again as there are, until a way has enough
_MOST_TABLES = 100_000  # of 2 KiB or so each
_NOWHERE: list[int] = []


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the switches between two ToRs choose: equal shapes give equal tables."""

    seed: int
    """Of the ToR; 0 where the way is within it."""
    up: tuple[tuple[int, int], ...]
    """(spine, parallel link) of the group's members, in the order of the ToR's ports; empty within a ToR."""
    down: tuple[tuple[int, tuple[int, ...]], ...]
    """(seed of the spine, its members as parallel links in the order of its ports), for every member of `up`."""


class _Table:
    """Which uplink each port takes between two NICs, as far as ports have been hashed, and the answers so far."""

    __slots__ = ("_answers", "_hash", "_key", "_shape", "_uplink")

    def __init__(self, shape: _Shape, ecmp_hash: EcmpHash, key: tuple[IPv4Address, IPv4Address, int]) -> None:
        self._shape = shape
        self._hash = ecmp_hash
        self._key = key  # addresses and UDP destination port
        self._uplink = np.zeros(0, dtype=np.int16)  # of the first ports of ENTROPY_PORTS: index into shape.up
        self._answers: dict[tuple[Way, int], list[int]] = {}

    def ports(self, way: Way, count: int) -> list[int]:
        answer = self._answers.get((way, count))
        if answer is None:
            found = self._along(way)
            while found.size < count and self._uplink.size < len(ENTROPY_PORTS):
                self._hash_more()
                found = self._along(way)
            answer = self._answers[way, count] = found[:count].tolist() if found.size >= count else []
        return answer

    def _along(self, way: Way) -> npt.NDArray[np.uint16]:
        """The ports hashed so far that take this way."""
        spine, up, down = way
        if spine == LOCAL:
            return _first_ports(self._uplink.size)
        try:
            uplink = self._shape.up.index((spine, up))
            seed, links = self._shape.down[uplink]
            downlink = links.index(down)
        except ValueError:  # a link of it is dead
            return _first_ports(0)
        ports = np.compress(self._uplink == uplink, _first_ports(self._uplink.size))
        return np.compress(self._selected(ports, seed, len(links)) == downlink, ports)

    def _hash_more(self) -> None:
        known = self._uplink.size
        more = _first_ports(min(max(2 * known, _FIRST_PORTS), len(ENTROPY_PORTS)))[known:]
        uplink = self._selected(more, self._shape.seed, len(self._shape.up))
        self._uplink = np.concatenate((self._uplink, uplink.astype(np.int16)))

    def _selected(self, ports: npt.NDArray[np.uint16], seed: int, members: int) -> npt.NDArray[np.intp]:
        if members <= 1 or not ports.size:
            return np.zeros(ports.size, dtype=np.intp)
        src, dst, dst_port = self._key
        return self._hash.select(FlowFields.over_ports(src, dst, ports, dst_port), seed, members)


def _first_ports(count: int) -> npt.NDArray[np.uint16]:
    return np.arange(ENTROPY_PORTS.start, ENTROPY_PORTS.start + count, dtype=np.uint16)


class PortTables:
    """Ports for the lanes of any pair of NICs. Made where they are first asked for, and kept.

    `cabling` tells which links live; `around` gives the tables of the same topology with others dead, sharing what did
    not change.
    """

    def __init__(self, cabling: Cabling, ecmp_hash: EcmpHash) -> None:
        self._cabling = cabling
        self._hash = ecmp_hash
        self._tables: dict[tuple[int, int, int, _Shape], _Table] = {}
        self._fabric = cabling.fabric
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._up: dict[int, list[tuple[int, int]]] = {}
        self._down: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self._near: dict[tuple[int, int, int], _Table] = {}
        self._tor: list[int] = cabling.fabric.nic_tor.tolist()

    def around(self, fabric: Clos) -> "PortTables":
        """The same with `fabric`'s links dead or alive; what is the same is shared."""
        other = PortTables(self._cabling, self._hash)
        other._tables = self._tables
        other._fabric = fabric
        same = (fabric.link_rate_bps == self._fabric.link_rate_bps).all(axis=(1, 2)).tolist()
        other._up = {tor: ways for tor, ways in self._up.items() if same[tor]}
        other._down = {tor: links for tor, links in self._down.items() if same[tor]}
        return other

    def ports(self, src: int, dst: int, way: Way, count: int, dst_port: int = ROCE_PORT) -> list[int]:
        """The least `count` UDP source ports that take a flow from NIC `src` to NIC `dst` along `way`, ascending.

        The list is the same object every time, and empty where fewer ports than that go there, or no live link does.
        """
        if way[0] == UNREACHABLE:
            return _NOWHERE
        table = self._near.get((src, dst, dst_port))
        if table is None:
            table = self._find(src, dst, dst_port)
        return table.ports(way, count)

    def _find(self, src: int, dst: int, dst_port: int) -> _Table:
        if len(self._tables) >= _MOST_TABLES:
            self._tables.clear()
            self._near.clear()
        shape = self._shape(self._tor[src], self._tor[dst])
        table = self._tables.get((src, dst, dst_port, shape))
        if table is None:
            begin, end = (IPv4Address(int(self._cabling.addresses[nic])) for nic in (src, dst))
            table = self._tables[src, dst, dst_port, shape] = _Table(shape, self._hash, (begin, end, dst_port))
        self._near[src, dst, dst_port] = table
        return table

    def _shape(self, src: int, dst: int) -> _Shape:
        """Of the way from one ToR to another: see `netmodel.forwarding`, which gives the same groups."""
        shape = self._shapes.get((src, dst))
        if shape is None:
            shape = self._shapes[src, dst] = _Shape(0, (), ()) if src == dst else self._made(src, dst)
        return shape

    def _made(self, src: int, dst: int) -> _Shape:
        into = self._spines_to(dst)
        up = tuple(way for way in self._ways_from(src) if into[way[0]][1])
        return _Shape(self._cabling.tor_seed[src], up, tuple(into[spine] for spine, _ in up))

    def _ways_from(self, tor: int) -> list[tuple[int, int]]:
        """(spine, parallel link) of a ToR's live links, in the order of its ports."""
        known = self._up.get(tor)
        if known is None:
            spine, link = np.nonzero(self._fabric.link_rate_bps[tor] > 0)
            order = np.argsort(self._cabling.tor_port[tor, spine, link])
            known = self._up[tor] = list(zip(spine[order].tolist(), link[order].tolist(), strict=True))
        return known

    def _spines_to(self, tor: int) -> list[tuple[int, tuple[int, ...]]]:
        """Of every spine: its seed, and its live links to a ToR in the order of its ports."""
        known = self._down.get(tor)
        if known is None:
            live = (self._fabric.link_rate_bps[tor] > 0).tolist()
            order = np.argsort(self._cabling.spine_port[tor], axis=1, kind="stable").tolist()
            known = self._down[tor] = [
                (seed, tuple(link for link in order[spine] if live[spine][link]))
                for spine, seed in enumerate(self._cabling.spine_seed)
            ]
        return known
