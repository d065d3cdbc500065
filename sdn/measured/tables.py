# SPDX-License-Identifier: Apache-2.0
"""Source ports by way for each pair of NICs, as probes saw them: what `sdn.path_service.ports` computes from a hash.

A port is given out only if it was probed itself. When a port of a pair is seen on another way, the routes have changed:
no port of that pair is given out again before it has been probed again.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from netmodel import IPPROTO_UDP, ROCE_PORT

Way = TypeVar("Way", bound=Hashable)

MOST_BYTES = 1 << 30
"""Memory of all tables; beyond this the ones that were used least recently are forgotten."""
_TABLE_BYTES = 650  # of a table and its key, without ports
_PORT_BYTES = 15  # of a port: its number, way, time and generation, and room to grow


class _Table:
    """The ports of one pair, ascending, as columns."""

    __slots__ = ("generation", "generations", "ports", "seen_s", "ways")

    def __init__(self) -> None:
        self.generation = 0
        self.ports = array("H")
        self.ways = array("H")
        self.seen_s = array("d")
        self.generations = array("B")  # modulo 256

    def place(self, port: int) -> int:
        """Where the port is, or would be."""
        return bisect_left(self.ports, port)

    def has(self, place: int, port: int) -> bool:
        return place < len(self.ports) and self.ports[place] == port

    def renew(self) -> None:
        """Begins a generation, of which no port is yet. Ports of the one 256 before it are forgotten."""
        self.generation += 1
        now = self.generation & 0xFF
        if now in self.generations:
            kept = [place for place, its in enumerate(self.generations) if its != now]
            self.ports = array("H", (self.ports[place] for place in kept))
            self.ways = array("H", (self.ways[place] for place in kept))
            self.seen_s = array("d", (self.seen_s[place] for place in kept))
            self.generations = array("B", (self.generations[place] for place in kept))

    def current(self) -> Iterator[tuple[int, int]]:
        """(Port, number of its way), for ports that were seen since the last change of routes."""
        now = self.generation & 0xFF
        for port, way, generation in zip(self.ports, self.ways, self.generations, strict=True):
            if generation == now:
                yield port, way


class MeasuredTables(Generic[Way]):
    """What probes have seen of all pairs. NICs have numbers; ways are any hashable values, of which few are distinct.

    Times are seconds of one clock. `most_bytes` bounds the memory.
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._tables: OrderedDict[tuple[int, int, int, int], _Table] = OrderedDict()
        self._ways: list[Way] = []
        self._numbers: dict[Way, int] = {}
        self._most_bytes = most_bytes
        self.bytes = 0
        """Memory that the tables take, about."""

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self._tables)

    def saw(
        self,
        now_s: float,
        src: int,
        dst: int,
        port: int,
        way: Way,
        dst_port: int = ROCE_PORT,
        protocol: int = IPPROTO_UDP,
    ) -> Way | None:
        """A probe of a port found it on `way`. Returns its former way, if that was another one.

        The pair's other ports are then `doubtful`. Raises ValueError for more than 65,536 distinct ways.
        """
        number = self._numbers.get(way)
        if number is None:
            if len(self._ways) > 0xFFFF:
                raise ValueError("more than 65,536 distinct ways were seen: this is no fabric")
            number = self._numbers[way] = len(self._ways)
            self._ways.append(way)
        table = self._used(src, dst, dst_port, protocol)
        if table is None:
            table = self._tables[src, dst, dst_port, protocol] = _Table()
            self.bytes += _TABLE_BYTES
        place = table.place(port)
        former = None
        if table.has(place, port):
            before = table.ways[place]
            if before != number:
                former = self._ways[before]
                if table.generations[place] == table.generation & 0xFF:
                    self._renew(table)
                    place = table.place(port)
        if not table.has(place, port):
            table.ports.insert(place, port)
            table.ways.insert(place, number)
            table.seen_s.insert(place, now_s)
            table.generations.insert(place, 0)
            self.bytes += _PORT_BYTES
            self._make_room()
        table.ways[place] = number
        table.seen_s[place] = now_s
        table.generations[place] = table.generation & 0xFF
        return former

    def ports(
        self, src: int, dst: int, way: Way, count: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP
    ) -> list[int]:
        """The lowest `count` ports that are known to lead along `way`, ascending; empty when fewer are known."""
        table = self._used(src, dst, dst_port, protocol)
        number = self._numbers.get(way)
        if table is None or number is None:
            return []
        found = [port for port, its in table.current() if its == number]
        return found[:count] if len(found) >= count else []

    def ways(self, src: int, dst: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> list[Way]:
        """The ways on which ports are known, those with the lowest port first."""
        table = self._used(src, dst, dst_port, protocol)
        numbers = () if table is None else dict.fromkeys(way for _, way in table.current())
        return [self._ways[number] for number in numbers]

    def known(self, src: int, dst: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> dict[int, Way]:
        """The way of every port that is known, by ascending ports."""
        table = self._tables.get((src, dst, dst_port, protocol))
        return {} if table is None else {port: self._ways[way] for port, way in table.current()}

    def doubtful(self, src: int, dst: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> list[int]:
        """The ports that were seen before the last change of routes only, ascending. They need another probe."""
        return list(self.doubted(src, dst, dst_port, protocol))

    def doubted(self, src: int, dst: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> dict[int, Way]:
        """The way of every port that is doubtful, as it was seen last, by ascending ports."""
        table = self._tables.get((src, dst, dst_port, protocol))
        if table is None:
            return {}
        now = table.generation & 0xFF
        return {
            port: self._ways[way]
            for port, way, its in zip(table.ports, table.ways, table.generations, strict=True)
            if its != now
        }

    def doubt(self, src: int, dst: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> None:
        """Routes of a pair may have changed: all its ports are doubtful until they are probed again."""
        table = self._tables.get((src, dst, dst_port, protocol))
        if table is not None:
            self._renew(table)

    def generation(self, src: int, dst: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> int:
        """How often the routes of a pair have changed; 0 for an unknown pair."""
        table = self._tables.get((src, dst, dst_port, protocol))
        return 0 if table is None else table.generation

    def seen_s(
        self, src: int, dst: int, port: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP
    ) -> float | None:
        """When a port was probed last; None if it never was."""
        table = self._tables.get((src, dst, dst_port, protocol))
        if table is None:
            return None
        place = table.place(port)
        return table.seen_s[place] if table.has(place, port) else None

    def drop(self, src: int, dst: int, port: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> None:
        """Forgets one port, whose probes are not answered any more."""
        table = self._tables.get((src, dst, dst_port, protocol))
        if table is not None and table.has(place := table.place(port), port):
            for column in (table.ports, table.ways, table.seen_s, table.generations):
                del column[place]
            self.bytes -= _PORT_BYTES

    def forget(self, src: int, dst: int, dst_port: int = ROCE_PORT, protocol: int = IPPROTO_UDP) -> None:
        """Drops a pair, of which probes are not answered any more, for example."""
        table = self._tables.pop((src, dst, dst_port, protocol), None)
        if table is not None:
            self.bytes -= _bytes_of(table)

    def _used(self, src: int, dst: int, dst_port: int, protocol: int) -> _Table | None:
        """The table of a pair, which is then the one used last."""
        key = src, dst, dst_port, protocol
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
        return table

    def _renew(self, table: _Table) -> None:
        self.bytes -= _bytes_of(table)
        table.renew()
        self.bytes += _bytes_of(table)

    def _make_room(self) -> None:
        while self.bytes > self._most_bytes and len(self._tables) > 1:
            self.bytes -= _bytes_of(self._tables.popitem(last=False)[1])


def _bytes_of(table: _Table) -> int:
    return _TABLE_BYTES + _PORT_BYTES * len(table.ports)
