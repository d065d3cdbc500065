# SPDX-License-Identifier: Apache-2.0
"""From a route to the UDP source ports that take it: the inverse of the switches' hash, cached per pair of NICs.

The result equals that of `netmodel.ports_for_path`. Here all paths of a pair are found together, from as few hashed
ports as suffice, and on the numbers of a `Clos`, so that a failure does not require a walk over the whole topology.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS, ROCE_PORT, EcmpHash, FlowFields
from netmodel.flow import Address, address_at
from sdn.planners import LOCAL, UNREACHABLE, Cabling, Clos

Way: TypeAlias = tuple[int, int, int]
"""Spine and the parallel links up to it and down from it, as in `sdn.planners.Route`."""

Peer: TypeAlias = tuple[str, int]
"""The address and UDP port at which a device receives."""

_LEAST_PORTS = 512  # hashed at a time
_MOST_PORTS = len(ENTROPY_PORTS) // 2  # lanes times paths: a search for more would hash all ports, often in vain
MOST_BYTES = 1 << 28
"""Memory of all tables; beyond this the ones that were used least recently are forgotten."""
_TABLE_BYTES = 1_000  # of a table and its key, without hashed ports and answers
_PORT_BYTES = 36  # of a port in an answer: an int, and the list's reference to it
_WAY_BYTES = 100  # of a way in the list of those that ports take
_NOWHERE: list[int] = []


@dataclass(frozen=True, slots=True)
class _Shape:
    """All inputs of the switches' choices between two ToRs. Equal shapes have equal tables."""

    seed: int
    """The hash seed of the source ToR; 0 within a ToR."""
    up: tuple[tuple[int, int], ...]
    """(spine, parallel link) of the group's members, in the order of the ToR's ports; empty within a ToR."""
    down: tuple[tuple[int, tuple[int, ...]], ...]
    """(seed of the spine, its members as parallel links in the order of its ports), for every member of `up`."""
    ways: int = field(init=False, compare=False)
    """The number of equal-cost paths."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ways", max(1, sum(len(links) for _, links in self.down)))
        object.__setattr__(self, "_hash", hash((self.seed, self.up, self.down)))

    def __hash__(self) -> int:  # computed once: it takes microseconds
        return self._hash


class _Table:
    """For a pair of NICs: the uplink that each hashed port takes, and the answers given so far."""

    __slots__ = ("_answers", "_hash", "_key", "_shape", "_uplink", "_ways", "bytes")

    def __init__(self, shape: _Shape, ecmp_hash: EcmpHash, key: tuple[Address, Address, int]) -> None:
        self.bytes = _TABLE_BYTES
        """The memory that it takes, about."""
        self._shape = shape
        self._hash = ecmp_hash
        self._key = key  # addresses and UDP destination port
        self._uplink = np.zeros(0, dtype=np.int16)  # of the first ports of ENTROPY_PORTS: index into shape.up
        self._answers: dict[tuple[Way, int], list[int]] = {}
        self._ways: list[Way] | None = None

    def ports(self, way: Way, count: int) -> list[int]:
        answer = self._answers.get((way, count))
        if answer is None:
            answer = _NOWHERE
            if count * self._shape.ways <= _MOST_PORTS:
                found = self._along(way)
                while found.size < count and self._uplink.size < len(ENTROPY_PORTS):
                    self._hash_more((count - found.size) * self._shape.ways * 9 // 8)
                    found = self._along(way)
                if found.size >= count:
                    answer = found[:count].tolist()
            self._answers[way, count] = answer
            self.bytes += _PORT_BYTES * (len(answer) + 8)
        return answer

    def ways(self) -> list[Way]:
        """The ways that some port takes. Not to be changed."""
        if self._ways is not None:
            return self._ways
        ports = _first_ports(len(ENTROPY_PORTS))
        uplink = self._selected(ports, self._shape.seed, len(self._shape.up))
        found: list[Way] = []
        for number, ((spine, up), (seed, links)) in enumerate(zip(self._shape.up, self._shape.down, strict=True)):
            taken = np.unique(self._selected(ports[uplink == number], seed, len(links)))
            found += [(spine, up, links[member]) for member in taken.tolist()]
        self._ways = found
        self.bytes += _WAY_BYTES * len(found)
        return found

    def _along(self, way: Way) -> npt.NDArray[np.uint16]:
        """Those of the ports hashed so far that take this way."""
        spine, up, down = way
        if spine == LOCAL:
            return _first_ports(self._uplink.size)
        try:
            uplink = self._shape.up.index((spine, up))
            seed, links = self._shape.down[uplink]
            downlink = links.index(down)
        except ValueError:  # one of its links is dead
            return _first_ports(0)
        ports = np.compress(self._uplink == uplink, _first_ports(self._uplink.size))
        return np.compress(self._selected(ports, seed, len(links)) == downlink, ports)

    def _hash_more(self, ports: int) -> None:
        known = self._uplink.size
        more = _first_ports(min(known + max(ports, _LEAST_PORTS), len(ENTROPY_PORTS)))[known:]
        uplink = self._selected(more, self._shape.seed, len(self._shape.up))
        self._uplink = np.concatenate((self._uplink, uplink.astype(np.int16)))
        self.bytes += 2 * more.size

    def _selected(self, ports: npt.NDArray[np.uint16], seed: int, members: int) -> npt.NDArray[np.intp]:
        if members <= 1 or not ports.size:
            return np.zeros(ports.size, dtype=np.intp)
        src, dst, dst_port = self._key
        return self._hash.select(FlowFields.over_ports(src, dst, ports, dst_port), seed, members)


def _first_ports(count: int) -> npt.NDArray[np.uint16]:
    return np.arange(ENTROPY_PORTS.start, ENTROPY_PORTS.start + count, dtype=np.uint16)


class _Tables:
    """Tables by source and destination NIC, UDP destination port and shape, the least recently used first."""

    def __init__(self, most_bytes: int) -> None:
        self._tables: OrderedDict[tuple[int, int, int, _Shape], _Table] = OrderedDict()
        self._most_bytes = most_bytes
        self._bytes = 0

    def get(self, src: int, dst: int, dst_port: int, shape: _Shape) -> _Table | None:
        key = src, dst, dst_port, shape
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
        return table

    def add(self, src: int, dst: int, dst_port: int, shape: _Shape, table: _Table) -> None:
        self._tables[src, dst, dst_port, shape] = table
        self._bytes += table.bytes

    def grew(self, by: int) -> None:
        """The table used last takes `by` bytes more."""
        self._bytes += by
        while self._bytes > self._most_bytes and len(self._tables) > 1:
            self._bytes -= self._tables.popitem(last=False)[1].bytes


class PortTables:
    """Ports for the lanes of any pair of NICs, computed on first use and cached.

    `cabling` has the links that are alive; `around` gives the tables for the same topology with other links dead.
    `most_bytes` bounds the memory of the cache.
    """

    def __init__(self, cabling: Cabling, ecmp_hash: EcmpHash, *, most_bytes: int = MOST_BYTES) -> None:
        self._cabling = cabling
        self._hash = ecmp_hash
        self._tables = _Tables(most_bytes)
        self._fabric = cabling.fabric
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._up: dict[int, list[tuple[int, int]]] = {}
        self._down: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self._tor: list[int] = cabling.fabric.nic_tor.tolist()

    def around(self, fabric: Clos) -> "PortTables":
        """The tables for `fabric`, the same topology with other links dead; unchanged tables are shared."""
        other = PortTables(self._cabling, self._hash)
        other._tables = self._tables
        other._fabric = fabric
        same = (fabric.link_rate_bps == self._fabric.link_rate_bps).all(axis=(1, 2)).tolist()
        other._up = {tor: ways for tor, ways in self._up.items() if same[tor]}
        other._down = {tor: links for tor, links in self._down.items() if same[tor]}
        return other

    def ports(self, src: int, dst: int, way: Way, count: int, dst_port: int = ROCE_PORT) -> list[int]:
        """The lowest `count` UDP source ports that take a flow from NIC `src` to NIC `dst` along `way`, ascending.

        It is empty when fewer ports take this way, when `count` times the number of ways is more than half of all
        ports, or when a link of the way is dead.
        """
        if way[0] == UNREACHABLE:
            return _NOWHERE
        table = self._table(src, dst, dst_port)
        before = table.bytes
        answer = table.ports(way, count)
        if table.bytes != before:
            self._tables.grew(table.bytes - before)
        return answer

    def _table(self, src: int, dst: int, dst_port: int) -> _Table:
        """The table of two NICs, which is then the one used last."""
        shape = self._shape(self._tor[src], self._tor[dst])
        table = self._tables.get(src, dst, dst_port, shape)
        if table is None:
            begin, end = (address_at(self._cabling.addresses, nic) for nic in (src, dst))
            table = _Table(shape, self._hash, (begin, end, dst_port))
            self._tables.add(src, dst, dst_port, shape, table)
        return table

    def ways(self, src: int, dst: int, dst_port: int = ROCE_PORT) -> list[Way]:
        """The ways between two NICs on different ToRs, over live links, that some port takes. Not to be changed."""
        table = self._table(src, dst, dst_port)
        before = table.bytes
        ways = table.ways()
        self._tables.grew(table.bytes - before)
        return ways

    def count(self, src: int, dst: int) -> int:
        """The number of ways between two NICs over live links, whether ports take them or not."""
        return self._shape(self._tor[src], self._tor[dst]).ways

    def _shape(self, src: int, dst: int) -> _Shape:
        """The shape between two ToRs; its groups equal those of `netmodel.forwarding`."""
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
        """For every spine: its hash seed, and its live links to a ToR in the order of its ports."""
        known = self._down.get(tor)
        if known is None:
            live = (self._fabric.link_rate_bps[tor] > 0).tolist()
            order = np.argsort(self._cabling.spine_port[tor], axis=1, kind="stable").tolist()
            known = self._down[tor] = [
                (seed, tuple(link for link in order[spine] if live[spine][link]))
                for spine, seed in enumerate(self._cabling.spine_seed)
            ]
        return known
