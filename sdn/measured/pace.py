# SPDX-License-Identifier: Apache-2.0
"""How fast to probe: limits on what each router has to answer, and on what each host sends."""

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

Routers = TypeVar("Routers", bound=Hashable)
Item = TypeVar("Item")

_BURST_S = 0.1  # of answers that routers give at once, beyond the rate


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates in probes per second. The defaults stay below what Linux and SONiC answer by default."""

    router_per_s: float = 300.0
    """That one router answers, to all hosts: half of what SONiC's control-plane policing lets pass (600)."""
    host_router_per_s: float = 0.5
    """That one router answers to one host: half of `net.ipv4.icmp_ratelimit`, for ports fall on routers by chance."""
    host_router_burst: float = 2.0
    """At once, beyond that: a router gets more than the kernel's 6 of a chance mean of 2 in one case of 200."""
    host_router_urgent: float = 2.0
    """At once, beyond that burst, where lanes wait for it: the kernel's 6 are full again some seconds later. Where
    chance has one router asked for more, the host waits until that one can answer."""
    host_per_s: float = 200.0
    """That one host sends."""

    @classmethod
    def for_answers(cls, per_s: float) -> "Pace":
        """The pace where a router gives one host so many answers a second; 0: without limit."""
        if per_s == 0:
            host_per_s = cls().host_per_s
            return cls(host_router_per_s=host_per_s, host_router_burst=host_per_s)
        burst = max(2.0, per_s / 2)
        return cls(host_router_per_s=per_s / 2, host_router_burst=burst, host_router_urgent=burst)


class Schedule(Generic[Routers, Item]):
    """Items of work, each some probes from one host, and when each may be sent.

    The probes of an item are answered by routers of one set, by each with the same chance, such as all cores. Sets do
    not overlap, and the caller gives them names. Urgent items go first. Among others the host that has waited longest
    goes first, and the items of a host are in order.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._sets: dict[Routers, _Set[Item]] = {}

    def __len__(self) -> int:
        """The number of items that wait."""
        return sum(lane.count for each in self._sets.values() for lane in each.lanes)

    def add(
        self, now_s: float, routers: Routers, count: int, host: int, item: Item, probes: float, *, urgent: bool = False
    ) -> None:
        """Adds an item of so many probes of a host. `count` is the number of routers in the set `routers`.

        Ports that nobody will watch count half: the rates leave as much to watching as to finding.
        """
        own = self._sets.get(routers)
        if own is None:
            own = self._sets[routers] = _Set(count, self._pace, now_s)
        own.lanes[0 if urgent else 1].add(max(now_s, own.free_s(host, urgent=urgent)), host, item, probes)

    def free_s(self, now_s: float, routers: Routers, host: int) -> float:
        """When the routers of a set may be asked for something urgent by a host that has nothing waiting there."""
        own = self._sets.get(routers)
        return now_s if own is None else max(now_s, own.free_s(host, urgent=True))

    def due(self, now_s: float, is_wanted: Callable[[Item], bool] = lambda _: True) -> list[Item]:
        """The items to send now. Those that are not wanted any more are dropped, and take no other's turn."""
        return [item for each in self._sets.values() for item in each.due(now_s, is_wanted)]


class _Set(Generic[Item]):
    """One set of routers: what they may still answer, and the hosts that wait for it."""

    def __init__(self, count: int, pace: Pace, now_s: float) -> None:
        self._per_s = count * pace.router_per_s
        self._most = max(1.0, self._per_s * _BURST_S)
        self._left = self._most
        self._at_s = now_s
        self._host_per_s = min(pace.host_per_s, count * pace.host_router_per_s)
        self._host_burst_s = max(0.0, count * pace.host_router_burst - 1) / self._host_per_s
        self._host_urgent_s = count * pace.host_router_urgent / self._host_per_s
        self._busy_s: dict[int, float] = {}  # by host: when all that it has sent would be sent at its rate
        self.lanes: tuple[_Lane[Item], _Lane[Item]] = (_Lane(), _Lane())

    def free_s(self, host: int, *, urgent: bool = False) -> float:
        """When a host may send."""
        return self._busy_s.get(host, 0.0) - self._host_burst_s - (self._host_urgent_s if urgent else 0.0)

    def due(self, now_s: float, is_wanted: Callable[[Item], bool]) -> list[Item]:
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        found = []
        for lane in self.lanes:
            free_s = partial(self.free_s, urgent=lane is self.lanes[0])
            while self._left > 0 and (taken := lane.take(now_s, free_s)) is not None:
                host, item, probes = taken
                if is_wanted(item):
                    self._left -= probes
                    self._busy_s[host] = max(self._busy_s.get(host, 0.0), now_s) + probes / self._host_per_s
                    found.append(item)
                lane.again(host, free_s(host))
        return found


class _Lane(Generic[Item]):
    """The hosts with items, by the time since which each waits, or from which it may send."""

    def __init__(self) -> None:
        self.count = 0
        """Items that wait."""
        self._waiting: dict[int, deque[tuple[Item, float]]] = {}
        self._heap: list[tuple[float, int]] = []

    def add(self, at_s: float, host: int, item: Item, probes: float) -> None:
        queue = self._waiting.get(host)
        if queue is None:
            self._waiting[host] = queue = deque()
            heapq.heappush(self._heap, (at_s, host))
        queue.append((item, probes))
        self.count += 1

    def take(self, now_s: float, free_s: Callable[[int], float]) -> tuple[int, Item, float] | None:
        """The first item of the host that has waited longest, if one may send now."""
        while self._heap and self._heap[0][0] <= now_s:
            host = heapq.heappop(self._heap)[1]
            if (free := free_s(host)) > now_s:  # it has sent something urgent
                heapq.heappush(self._heap, (free, host))
                continue
            self.count -= 1
            return host, *self._waiting[host].popleft()
        return None

    def again(self, host: int, free_s: float) -> None:
        """A host has sent an item, and may send its next one at this time."""
        if self._waiting[host]:
            heapq.heappush(self._heap, (free_s, host))
        else:
            del self._waiting[host]
