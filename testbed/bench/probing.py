# SPDX-License-Identifier: Apache-2.0
"""Measured paths at scale, simulated: how long until jobs can be pinned, and what routers have to answer meanwhile.

All hosts of a fabric of three tiers announce their peers at once. `sdn.measured.discovery` decides what to probe; the
routers of the topmost tier answer as Linux and SONiC do by default. Ours is four lanes on one planned way, and switches
with an affine hash, which a model learns; on the largest fabric, a way for each lane. The peers are a way for each
lane, and another hash, whose ports are sampled.
"""

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from netmodel.flow import ROCE_PORT
from sdn.measured.discovery import Ask, Discovery, Hop, PairKey, Sight
from sdn.measured.tables import MeasuredTables
from testbed.bench.frame import Measurement, Result, result
from testbed.progress import Steps

_ROUTER_PER_S = 600.0
"""Answers of one router: SONiC's control-plane policing of TTL errors (files/image_config/copp/copp_cfg.j2)."""
_HOST_PER_S, _HOST_BURST = 1.0, 6.0
"""Answers of one router to one host: Linux, net.ipv4.icmp_ratelimit 1000 (net/ipv4/inetpeer.c, XRLIM_BURST_FACTOR)."""
_ROUND_TRIP_S = 0.001
_TIMEOUT_S = 0.3
_STEP_S = 0.01
_PART = 0.95
_GIVE_UP_S = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    """A fabric of three tiers: numbers of pods, leaves of a pod, hosts of a leaf and cores; and peers of a host."""

    pods: int
    leaves: int
    hosts: int
    cores: int
    """A power of two, or an affine hash would be none."""
    peers: int = 4
    """Hosts in as many other pods, to which each host sends."""

    @property
    def all_hosts(self) -> int:
        return self.pods * self.leaves * self.hosts

    @property
    def case(self) -> str:
        return f"{self.all_hosts:,} hosts, {self.cores:,} cores, {self.peers} peers each"

    def pairs(self) -> Iterator[PairKey]:
        """Every host and its peers."""
        pod = self.leaves * self.hosts
        for host in range(self.all_hosts):
            for peer in range(1, self.peers + 1):
                yield PairKey(host, (host + peer * pod) % self.all_hosts, ROCE_PORT)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one simulation shows."""

    pinned_s: float
    """Until 95 % of the pairs know enough ways to plan."""
    probes: float
    """Per pair."""
    lost: float
    """The part of the probes that limits left unanswered."""
    router_per_s: float
    """The most that any router was asked in one second."""
    pair_bytes: float
    """Memory of the tables, per pair."""
    decision_s: float
    """Processor time of the service, per probe."""


LANES = 4
SIZES = (Size(16, 8, 8, 64), Size(16, 40, 16, 256), Size(50, 64, 32, 1024))


def measure() -> Result:
    """Simulates every size. The largest takes minutes and 3 GB of memory."""
    with Steps(7, every_s=3.0) as steps:
        steps.now("simulating")

        def simulated(size: Size, *, affine: bool, lanes: int = 0) -> Outcome:
            outcome = simulate(size, affine=affine, lanes=lanes)
            steps.now(size.case)
            return outcome

        small, middle, large = SIZES
        measurements = []
        for size in (small, middle):
            shared = simulated(size, affine=True, lanes=LANES)
            measurements += compared(size, shared, simulated(size, affine=True), "a way per lane")
            if size == small:  # of larger ones sampling would take hours
                measurements += compared(size, shared, simulated(size, affine=False, lanes=LANES), "other hash")
        each = simulated(large, affine=True)
        measurements += compared(large, each, simulated(large, affine=False), "other hash")
        return result("probing", measurements)


def compared(size: Size, ours: Outcome, peer: Outcome, name: str) -> list[Measurement]:
    """Two outcomes, metric by metric."""
    metrics = (
        ("until 95 % can be pinned", "s", ours.pinned_s, peer.pinned_s),
        ("probes per pair", "", ours.probes, peer.probes),
        ("most asked of a router", "1/s", ours.router_per_s, peer.router_per_s),
        ("memory per pair", "B", ours.pair_bytes, peer.pair_bytes),
        ("processor time per probe", "us", 1e6 * ours.decision_s, 1e6 * peer.decision_s),
    )
    return [Measurement(metric, size.case, unit, mine, other, name) for metric, unit, mine, other in metrics]


def simulate(size: Size, *, affine: bool, lanes: int = 0, seed: int = 1) -> Outcome:
    """All hosts of a fabric announce their peers at time 0, and get a way for each lane, or one for so many `lanes`.

    Raises RuntimeError if not enough pairs can be pinned.
    """
    core = _affine(size, seed) if affine else _scattered(size, seed)
    limits = _Limits(size)
    discovery: Discovery[int] = Discovery(MeasuredTables(), seed=seed)
    sights: list[Sight[int]] = [
        Sight(hops=(Hop(3, "cores", size.cores),), ways=size.cores, group=leaf)
        for leaf in range(size.pods * size.leaves)
    ]
    clock = time.process_time
    began_s = clock()
    pairs = list(size.pairs())
    for pair in pairs:
        discovery.announce(0.0, pair, sights[pair.src // size.hosts])
    spent_s = clock() - began_s
    wanting = set(pairs)
    aimed: set[PairKey] = set()
    under_way: list[tuple[float, int, Ask, dict[int, int]]] = []
    asked: Counter[tuple[int, int]] = Counter()
    probes, lost, number, now_s = 0, 0, 0, 0.0
    pinned_s = 0.0
    while wanting and now_s < _GIVE_UP_S:
        began_s = clock()
        due = discovery.due(now_s)
        spent_s += clock() - began_s
        for ask in due:
            answers = {}
            for port in ask.ports:
                one = core(ask.pair, port)
                asked[one, int(now_s)] += 1
                if limits.answers(now_s, ask.pair.src, one):
                    answers[port] = one
            probes += len(ask.ports)
            lost += len(ask.ports) - len(answers)
            number += 1
            done_s = now_s + (_ROUND_TRIP_S if len(answers) == len(ask.ports) else _TIMEOUT_S)
            heapq.heappush(under_way, (done_s, number, ask, answers))
        while under_way and under_way[0][0] <= now_s:
            _, _, ask, answers = heapq.heappop(under_way)
            began_s = clock()
            discovery.answered(now_s, ask, answers)
            spent_s += clock() - began_s
            if ask.pair in wanting and discovery.ready(ask.pair):
                if lanes and ask.pair not in aimed:  # the planner takes any of the ways
                    aimed.add(ask.pair)
                    ways = discovery.tables.ways(*ask.pair)
                    discovery.aim(now_s, ask.pair, {ways[ask.pair.src % len(ways)]: lanes})
                    if not discovery.ready(ask.pair):
                        continue
                wanting.discard(ask.pair)
                if len(wanting) <= (1 - _PART) * len(pairs) and not pinned_s:
                    pinned_s = max(now_s, _STEP_S)
        if not due and not under_way and not discovery.waiting:
            break
        now_s += _STEP_S
    if not pinned_s:
        raise RuntimeError(f"{len(wanting)} of {len(pairs)} pairs cannot be pinned")
    return Outcome(
        pinned_s,
        probes / len(pairs),
        lost / probes,
        max(asked.values()),
        discovery.tables.bytes / len(pairs),
        spent_s / probes,
    )


class _Limits:
    """The limits of every router, for all hosts and for each: by when all that it has answered would be at its rate."""

    def __init__(self, size: Size) -> None:
        self._hosts = size.all_hosts
        self._busy_s: dict[int, float] = {}

    def answers(self, now_s: float, host: int, router: int) -> bool:
        """Whether a router answers a host."""
        own = ((-1 - router, _ROUTER_PER_S, _ROUTER_PER_S), (router * self._hosts + host, _HOST_PER_S, _HOST_BURST))
        busy = [(key, max(self._busy_s.get(key, now_s), now_s) + 1 / per_s, burst / per_s) for key, per_s, burst in own]
        if any(until_s - now_s > lead_s + 1e-9 for _, until_s, lead_s in busy):
            return False
        self._busy_s.update((key, until_s) for key, until_s, _ in busy)
        return True


def _affine(size: Size, seed: int) -> Callable[[PairKey, int], int]:
    """Each leaf has a random linear map from the 14 bits of a port to a core, and each pair an offset."""
    bits = size.cores.bit_length() - 1
    if 1 << bits != size.cores:
        raise ValueError(f"{size.cores} cores are no power of two")
    chance = random.Random(seed)
    tables = []
    for _ in range(size.pods * size.leaves):
        row = [0]
        for _ in range(14):
            change = chance.getrandbits(bits)
            row += [value ^ change for value in row]
        tables.append(row)

    def core(pair: PairKey, port: int) -> int:
        return tables[pair.src // size.hosts][port & 0x3FFF] ^ _scatter(pair.src, pair.dst, seed) % size.cores

    return core


def _scattered(size: Size, seed: int) -> Callable[[PairKey, int], int]:
    return lambda pair, port: _scatter(pair.src << 24 | pair.dst, port, seed) % size.cores


def _scatter(one: int, other: int, seed: int) -> int:
    """SplitMix64 of three numbers."""
    z = (one * 0x9E3779B97F4A7C15 + other * 0xD1B54A32D192ED03 + seed) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return z ^ (z >> 31)
