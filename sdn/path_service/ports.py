# SPDX-License-Identifier: Apache-2.0
"""From a route to the source ports that take it: the inverse of the switches' hash, cached per pair of NICs.

The result equals that of `netmodel.ports_for_path`. Here all paths of a pair are found together, from as few hashed
ports as suffice.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS, IPPROTO_UDP, ROCE_PORT, EcmpHash, FlowFields
from netmodel.flow import address_at
from sdn.path_service.groups import Choices, Groups, PortOrder, every_way
from sdn.planners import LOCAL, UNREACHABLE, Cabling
from sdn.planners.links import AnyClos, Way, reversed_way
from sdn.planners.planner import AnyCabling

Peer: TypeAlias = tuple[str, int, int]
"""The address and the port at which a device receives, and the IP protocol."""

_Ports: TypeAlias = npt.NDArray[np.uint16]
_LEAST_PORTS = 512  # hashed at a time
_MOST_PORTS = len(ENTROPY_PORTS) // 2  # lanes times paths: a search for more would hash all ports, often in vain
MOST_BYTES = 1 << 28
"""Memory of all tables; beyond this the ones that were used least recently are forgotten."""
_MOST_BOTH_WAYS = 4096  # ports hashed for those that answers come back to over the same links, with 64 ways for one
_TABLE_BYTES = 1_000  # of a table and its key, without hashed ports and answers
_PORT_BYTES = 8  # of a port in an answer: a reference
_WAY_BYTES = 100  # of a way in the list of those that ports take
_NOWHERE: list[int] = []
_PORTS = tuple(ENTROPY_PORTS)  # answers share these objects, so that encoding thousands of them needs less memory


class _Table:
    """For a pair of NICs: the uplink that each hashed port takes, and the answers given so far."""

    __slots__ = ("_answers", "_groups", "_hash", "_uplink", "_ways", "bytes", "fields")

    def __init__(self, groups: Groups, ecmp_hash: EcmpHash, fields: Callable[[_Ports], FlowFields]) -> None:
        self.bytes = _TABLE_BYTES
        """The memory that it takes, about."""
        self._groups = groups
        self._hash = ecmp_hash
        self.fields = fields
        """What switches hash of the packets of these ports."""
        self._uplink = np.zeros(0, dtype=np.int16)  # of the first ports of ENTROPY_PORTS: index into groups.up
        self._answers: dict[tuple[Way, int], list[int]] = {}
        self._ways: list[Way] | None = None

    def ports(self, way: Way, count: int) -> list[int]:
        answer = self._answers.get((way, count))
        if answer is None:
            answer = _NOWHERE
            if count * self._groups.ways <= _MOST_PORTS:
                found = self._along(way)
                while found.size < count and self._uplink.size < len(ENTROPY_PORTS):
                    self._hash_more((count - found.size) * self._groups.ways * 9 // 8)
                    found = self._along(way)
                if found.size >= count:
                    answer = _shared(found[:count])
            self._answers[way, count] = answer
            self.bytes += _PORT_BYTES * (len(answer) + 8)
        return answer

    def ports_both_ways(self, way: Way, count: int, back: "_Table") -> list[int]:
        """As `ports`, but first those of a number of ports from which answers come back over the same links by `back`.

        That number is the same for every count. So the ports for a lower count are the first ones for a higher count.
        """
        ways = self._groups.ways
        most = _MOST_BOTH_WAYS // ways if ways**2 <= _MOST_BOTH_WAYS else 0
        tried = min(2 * count * ways, most)  # of which as many as are wanted come back so, twice over
        there, both = self._there_and_back(way, tried, back)
        while both.size < count and there.size == tried < most:
            tried = min(2 * tried, most)
            there, both = self._there_and_back(way, tried, back)
        if both.size >= count:
            return _shared(both[:count])
        if not (first := self.ports(way, count)):
            return _NOWHERE
        others = np.setdiff1d(there, both, assume_unique=True)
        return [*_shared(both), *_shared(others), *first[there.size :]][:count]

    def _there_and_back(self, way: Way, count: int, back: "_Table") -> tuple[_Ports, _Ports]:
        """The first ports of a way, `count` where there are so many, and those of them that answers come back to."""
        there = np.array(self.ports(way, count), dtype=np.uint16)
        if there.size < count:  # all are hashed, and fewer take this way
            there = self._along(way)
        return there, back._narrowed(back._groups, reversed_way(way), there)

    def ways(self, no_core: Way) -> list[Way]:
        """The ways that some port takes. Not to be changed. `no_core` ends those that need no core."""
        if self._ways is None:
            self._ways = list(self._taken(self._groups, _first_ports(len(ENTROPY_PORTS)), no_core))
            self.bytes += _WAY_BYTES * len(self._ways)
        return self._ways

    def way(self, port: int, no_core: Way) -> Way | None:
        """The way of a port; None where there is no way. `no_core` as for `ways`."""
        return next(self._taken(self._groups, np.array([port], dtype=np.uint16), no_core), None)

    def _taken(self, groups: Groups, ports: _Ports, no_core: Way = ()) -> Iterator[Way]:
        """The ways that some of these ports take, which come to the first of the groups."""
        uplink = self._selected(ports, groups.seed, len(groups.up))
        members = zip(groups.up, groups.over, groups.down, strict=True)
        for number, ((spine, up), over, (seed, links)) in enumerate(members):
            mine = ports[uplink == number]
            for beyond in [no_core] if over is None else self._taken(over, mine):
                there = mine if over is None else self._narrowed(over, beyond, mine)
                for member in np.unique(self._selected(there, seed, len(links))).tolist():
                    yield (spine, up, links[member], *beyond)

    def _along(self, way: Way) -> _Ports:
        """Those of the ports hashed so far that take this way."""
        ports = _first_ports(self._uplink.size)
        return ports if way[0] == LOCAL else self._narrowed(self._groups, way, ports, self._uplink)

    def _narrowed(self, groups: Groups, way: Way, ports: _Ports, uplink: npt.NDArray[np.int16] | None = None) -> _Ports:
        """Those of these ports, which come to the first of the groups, that take this way.

        uplink: the member that each port takes there, where that is known.
        """
        spine, up, down, *beyond = way
        try:
            member = groups.up.index((spine, up))
            seed, links = groups.down[member]
            downlink = links.index(down)
        except ValueError:  # one of its links is dead
            return _first_ports(0)
        if uplink is None:
            uplink = self._selected(ports, groups.seed, len(groups.up)).astype(np.int16)
        ports = np.compress(uplink == member, ports)
        if (over := groups.over[member]) is not None:
            ports = self._narrowed(over, tuple(beyond), ports)
        return np.compress(self._selected(ports, seed, len(links)) == downlink, ports)

    def _hash_more(self, ports: int) -> None:
        known = self._uplink.size
        more = _first_ports(min(known + max(ports, _LEAST_PORTS), len(ENTROPY_PORTS)))[known:]
        uplink = self._selected(more, self._groups.seed, len(self._groups.up))
        self._uplink = np.concatenate((self._uplink, uplink.astype(np.int16)))
        self.bytes += 2 * more.size

    def _selected(self, ports: _Ports, seed: int, members: int) -> npt.NDArray[np.intp]:
        if members <= 1 or not ports.size:
            return np.zeros(ports.size, dtype=np.intp)
        return self._hash.select(self.fields(ports), seed, members)


def _shared(ports: _Ports) -> list[int]:
    return [_PORTS[port] for port in (ports - ENTROPY_PORTS.start).tolist()]


def _first_ports(count: int) -> npt.NDArray[np.uint16]:
    return np.arange(ENTROPY_PORTS.start, ENTROPY_PORTS.start + count, dtype=np.uint16)


class _Tables:
    """Tables by source and destination NIC, UDP destination port and shape, the least recently used first."""

    def __init__(self, most_bytes: int) -> None:
        self._tables: OrderedDict[tuple[int, int, int, int, Groups], _Table] = OrderedDict()
        self._most_bytes = most_bytes
        self._bytes = 0

    def get(self, src: int, dst: int, dst_port: int, protocol: int, groups: Groups) -> _Table | None:
        key = src, dst, dst_port, protocol, groups
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
        return table

    def add(self, src: int, dst: int, dst_port: int, protocol: int, groups: Groups, table: _Table) -> None:
        self._tables[src, dst, dst_port, protocol, groups] = table
        self._bytes += table.bytes

    def grew(self, by: int) -> None:
        """The table used last takes `by` bytes more."""
        self._bytes += by
        while self._bytes > self._most_bytes and len(self._tables) > 1:
            self._bytes -= self._tables.popitem(last=False)[1].bytes


class PortTables:
    """Ports for the lanes of any pair of NICs, computed on first use and cached.

    `cables` has the links that are alive, and `choices` what switches choose among, by default `PortOrder`; `around`
    gives the tables for the same topology with other links dead. `most_bytes` bounds the memory of the cache. Where
    `ecmp_hash` is None, nobody knows the hash: no port is known, and ports may take every way.
    """

    def __init__(
        self,
        cables: AnyCabling,
        ecmp_hash: EcmpHash | None,
        choices: Choices | None = None,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._addresses = cables.addresses
        self._hash = ecmp_hash
        self._tables = _Tables(most_bytes)
        self._choices = PortOrder(cables) if choices is None else choices
        self._no_core: Way = () if isinstance(cables, Cabling) else (LOCAL, -1, -1)

    def around(self, fabric: AnyClos) -> "PortTables":
        """The tables for `fabric`, the same topology with other links dead; unchanged tables are shared."""
        return self.by(self._choices.around(fabric))

    def by(self, choices: Choices) -> "PortTables":
        """The tables where switches choose among these groups; unchanged tables are shared."""
        other = copy(self)
        other._choices = choices
        return other

    def ports(
        self, src: int, dst: int, way: Way, count: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP
    ) -> list[int]:
        """The lowest `count` source ports that take a flow from NIC `src` to NIC `dst` along `way`, ascending.

        It is empty when fewer ports take this way, when `count` times the number of ways is more than half of all
        ports, or when a link of the way is dead.
        """
        if way[0] == UNREACHABLE or self._hash is None:
            return _NOWHERE
        table = self._table(src, dst, dst_port, protocol)
        before = table.bytes
        answer = table.ports(way, count)
        if table.bytes != before:
            self._tables.grew(table.bytes - before)
        return answer

    def ports_both_ways(self, src: int, dst: int, way: Way, count: int, dst_port: int, protocol: int) -> list[int]:
        """As `ports`, but first the ports to which answers from `dst_port` come back over the same links.

        With many ways hardly any port leads there and back over the same links. Others then follow, in ascending order.
        The ports for a lower count are the first ones for a higher count.
        """
        if way[0] < 0 or self._hash is None:
            return self.ports(src, dst, way, count, dst_port, protocol)
        table = self._table(src, dst, dst_port, protocol)
        back = _Table(self._choices.between(dst, src), self._hash, lambda ports: table.fields(ports).reversed())
        before = table.bytes
        answer = table.ports_both_ways(way, count, back)
        if table.bytes != before:
            self._tables.grew(table.bytes - before)
        return answer

    def ways(self, src: int, dst: int, dst_port: int = ROCE_PORT) -> list[Way]:
        """The ways between two NICs on different ToRs, over live links, that some port takes. Not to be changed."""
        if self._hash is None:
            return list(every_way(self._choices.between(src, dst), self._no_core))
        table = self._table(src, dst, dst_port)
        before = table.bytes
        ways = table.ways(self._no_core)
        self._tables.grew(table.bytes - before)
        return ways

    def way(self, src: int, dst: int, port: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> Way | None:
        """The way that a source port takes between two NICs on different ToRs; None where nobody knows."""
        if self._hash is None:
            return None
        return self._table(src, dst, dst_port, protocol).way(port, self._no_core)

    def count(self, src: int, dst: int) -> int:
        """The number of ways between two NICs on different ToRs over live links, whether ports take them or not."""
        groups = self._choices.between(src, dst)
        return groups.ways if groups.up else 0

    def _table(self, src: int, dst: int, dst_port: int, protocol: int = IPPROTO_UDP) -> _Table:
        """The table of two NICs, which is then the one used last."""
        groups = self._choices.between(src, dst)
        table = self._tables.get(src, dst, dst_port, protocol, groups)
        if table is None:
            assert self._hash is not None
            begin, end = (address_at(self._addresses, nic) for nic in (src, dst))
            packets = partial(FlowFields.over_ports, begin, end, dst_port=dst_port, protocol=protocol)
            table = _Table(groups, self._hash, packets)
            self._tables.add(src, dst, dst_port, protocol, groups, table)
        return table
