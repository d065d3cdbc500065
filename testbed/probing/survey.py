# SPDX-License-Identifier: Apache-2.0
"""The probes of one destination, step by step: how far it is, what each port takes, how paths go on, what they lose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hostlib.probing import Failure, Prober, Target
from netmodel.probing.affine import Judgement, judge
from netmodel.probing.observations import Observation
from testbed.probing.reply_ports import vague_hops

MOST_HOPS = 30
_SAMPLES = 16
"""Ports that are followed along the whole way, two of each path at least."""
_SCOUTS = 3
"""Ports that look for the destination."""
_CLOSED_PORT = 33434  # where traceroute begins: no program listens there, so the host says that it was reached
_SEED = 1  # of the ports that verify whether a hash is affine
_UNBOUNDED_S = 1e6

Ttl = int | Literal["top", "all"]


@dataclass(frozen=True, slots=True)
class Questions:
    """What to ask.

    ports: source ports, one at least. ttl: the hop at which routers tell paths apart; `top` is the middle of the way,
    where the topmost routers of a Clos are, `all` is every hop. repeats: further probes for each path, which tell loss,
    round trip, and whether a port keeps to its path. time_s: how long each step may take; what is left then is not
    asked. linear: also whether the hash is affine in the bits of the port.
    """

    ports: tuple[int, ...]
    ttl: Ttl = "top"
    repeats: int = 5
    time_s: float = 60.0
    linear: bool = False


@dataclass(slots=True)
class Survey:
    """What was observed on the way to one destination."""

    target: Target
    asked: tuple[int, ...]
    """Source ports."""
    hops: int = 0
    """Routers on the way, 0 if none answered."""
    told_by: tuple[int, ...] = ()
    """The hops at which all ports were asked."""
    repeated_at: int = 0
    """The hop of the repeats."""
    reached: bool = False
    """Whether the destination is known to be the next after the last router."""
    left_out: int = 0
    """Probes that did not leave in time."""
    vague: tuple[int, ...] = ()
    """Hops at which routers name the port by which their answer leaves (`testbed.probing.reply_ports`)."""
    linear: Judgement[str] | None = None
    observations: list[Observation] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def own(self) -> list[Observation]:
        """The observations of the target itself: without those of a closed port of the destination."""
        target = self.target
        return [
            one
            for one in self.observations
            if one.protocol == target.protocol and one.destination_port == target.destination_port
        ]


def survey(prober: Prober, target: Target, questions: Questions) -> Survey:
    """Probe the paths to a destination.

    Raises ValueError for addresses that are none, or of two IP versions.
    """
    found = Survey(target, questions.ports)
    _measure(prober, found, questions.ports[:_SCOUTS])
    if found.hops == 0:
        return found
    found.repeated_at = questions.ttl if isinstance(questions.ttl, int) else found.hops // 2 + 1
    found.told_by = tuple(range(1, found.hops + 1)) if questions.ttl == "all" else (found.repeated_at,)
    for ttl in found.told_by:
        prober.ask(target, ttl, _unanswered(found, ttl, questions.ports))
    _run(prober, found, questions.time_s)
    firsts, samples = _samples(found)
    for ttl in range(1, found.hops + 1 + found.reached):
        prober.ask(target, ttl, _unanswered(found, ttl, samples))
    for _ in range(questions.repeats):
        prober.ask(target, found.repeated_at, firsts)
    _run(prober, found, questions.time_s)
    if parting := _parting(found):
        for ttl in parting:
            prober.ask(target, ttl, _unanswered(found, ttl, questions.ports))
        _run(prober, found, questions.time_s)
        found.told_by = tuple(sorted({*found.told_by, *parting}))
    found.vague = vague_hops(_ways(found), found.hops // 2 + 1)
    found.told_by = tuple(ttl for ttl in found.told_by if ttl not in found.vague) or found.told_by[:1]
    if questions.linear:
        _learn(prober, found, questions.time_s)
    return found


def _measure(prober: Prober, found: Survey, scouts: Sequence[int]) -> None:
    """Find how many routers are on the way: go on until the destination answers, or two hops are silent."""
    silent = 0
    for ttl in range(1, MOST_HOPS + 1):
        prober.ask(found.target, ttl, scouts)
        before = len(found.observations)
        _run(prober, found)
        answers = {one.answer for one in found.observations[before:]}
        if "hop" in answers:
            found.hops, silent = ttl, 0
        if "destination" in answers or (answers == {"none"} and _is_at(prober, found, ttl, scouts[0])):
            found.reached = True
            return
        silent += "hop" not in answers
        if silent == 2 or not answers:
            return


def _is_at(prober: Prober, found: Survey, ttl: int, port: int) -> bool:
    """Whether the destination is there: its port may take probes in silence, a closed one does not."""
    prober.ask(replace(found.target, protocol="udp", destination_port=_CLOSED_PORT), ttl, [port])
    before = len(found.observations)
    _run(prober, found)
    return any(one.answer == "destination" for one in found.observations[before:])


def _learn(prober: Prober, found: Survey, time_s: float) -> None:
    """Ask for the ports that show whether the hash is affine, until that is decided or a port stays silent."""
    ttl = found.repeated_at
    while True:
        seen = {port: way[ttl] for port, way in _ways(found).items() if ttl in way}
        found.linear = judge(seen, _SEED)
        if not found.linear.wanted:
            return
        prober.ask(found.target, ttl, found.linear.wanted)
        _run(prober, found, time_s)
        if not all(ttl in _ways(found).get(port, {}) for port in found.linear.wanted):
            return


def _run(prober: Prober, found: Survey, time_s: float = _UNBOUNDED_S) -> None:
    if not prober.run(time_s):
        found.left_out += prober.drop_waiting()
        prober.run(_UNBOUNDED_S)
    found.observations += prober.take_observations()
    found.failures += prober.take_failures()


def _unanswered(found: Survey, ttl: int, ports: Sequence[int]) -> list[int]:
    answered = {one.source_port for one in found.own() if one.ttl == ttl and one.answer != "none"}
    return [port for port in ports if port not in answered]


def _ways(found: Survey) -> dict[int, dict[int, str]]:
    """By source port and hop: the router that answered."""
    ways: dict[int, dict[int, str]] = {}
    for one in found.own():
        if one.answer == "hop" and one.router is not None:
            ways.setdefault(one.source_port, {})[one.ttl] = one.router
    return ways


def _groups(ways: Mapping[int, Mapping[int, str]], told_by: Sequence[int]) -> list[list[int]]:
    """The source ports that agree at the hops which tell paths apart, and were answered there."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for port, way in ways.items():
        groups.setdefault(tuple(way.get(ttl) for ttl in told_by), []).append(port)
    return [ports for key, ports in groups.items() if any(key)]


def _samples(found: Survey) -> tuple[list[int], list[int]]:
    """One port of each path, and some: enough to notice where paths part that agree at these hops."""
    groups = _groups(_ways(found), found.told_by)
    each = max(2, -(-_SAMPLES // len(groups))) if groups else 0
    return [ports[0] for ports in groups], [port for ports in groups for port in ports[:each]]


def _parting(found: Survey) -> list[int]:
    """Other hops at which ports differ that agree where paths are told apart. Parallel links make such."""
    ways = _ways(found)
    hops: set[int] = set()
    for ports in _groups(ways, found.told_by):
        for ttl in {ttl for port in ports for ttl in ways[port]} - set(found.told_by):
            if len({ways[port][ttl] for port in ports if ttl in ways[port]}) > 1:
                hops.add(ttl)
    return sorted(hops)
