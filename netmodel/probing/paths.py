# SPDX-License-Identifier: Apache-2.0
"""The paths of each pair of hosts, the source ports that take them, and why ports cannot be pinned where they cannot.

A path is known by the routers that answered, by TTL. Not every port needs a probe of every TTL: a port whose answers
agree with one path only is on that path.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from netmodel.probing.observations import Observation, Protocol
from netmodel.probing.steadiness import Steadiness, steadiness

Hops: TypeAlias = tuple[str | None, ...]
"""The addresses of a path's routers by TTL, from 1; None where no answer came."""

_Answers: TypeAlias = tuple[tuple[int, str], ...]
"""What is known of a port: (TTL, router), by ascending TTL."""

MOST_PATHS = 4_096
"""Paths of a pair, at most: more than any fabric has. Beyond this, finding them would take long, and mean nothing."""
_FEW_PORTS = 8
"""With two equal paths this many ports all take one of them with a probability below 1 %: 2 * (1/2)^8."""
_UNEVEN = 4.75
"""Standard deviations: ports that are spread evenly look so uneven once in a million times."""


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """The part of a 5-tuple that all ports of one table share."""

    source: str
    destination: str
    protocol: Protocol
    destination_port: int

    def __str__(self) -> str:
        return f"{self.source} to {self.destination} ({self.protocol} port {self.destination_port})"


@dataclass(frozen=True, slots=True)
class FoundPath:
    """A path and the ports that take it."""

    hops: Hops
    ports: tuple[int, ...]
    """Source ports, in ascending order."""
    probes: int
    """Probes of these ports, of any TTL."""
    answers: int
    """How many of them were answered. Routers limit their answers, so a missing one need not be a lost packet."""
    rtt_s: float | None
    """The median round trip to the farthest node that answered; None where none was measured."""

    @property
    def unanswered(self) -> float:
        """The part of its probes that was not answered."""
        return 1 - self.answers / self.probes


Kind: TypeAlias = Literal[
    "no answers", "first router", "few answers", "scattered", "sprayed", "unclear", "moved", "one path", "uneven"
]


@dataclass(frozen=True, slots=True)
class Finding:
    """What an operator should know about a pair."""

    kind: Kind
    blocks: bool
    """Whether no port of the pair can be pinned because of it."""
    statement: str
    """One sentence: what was seen, what still works, what can be changed."""


@dataclass(frozen=True, slots=True)
class PairPaths:
    """All that observations tell about one pair."""

    pair: Pair
    paths: tuple[FoundPath, ...]
    """Those with most ports first. After a change of routes, from what was seen since."""
    undecided: tuple[int, ...]
    """Ports whose answers fit several paths, ascending."""
    silent: tuple[int, ...]
    """Ports without an answer of a router, ascending."""
    routers: int | None
    """The number of routers on the way; None if no probe reached the destination."""
    steadiness: Steadiness
    findings: tuple[Finding, ...]

    @property
    def pinnable(self) -> bool:
        """Whether a flow can be pinned to a path by its source port."""
        return bool(self.paths) and not any(finding.blocks for finding in self.findings)

    def shares(self) -> list[float]:
        """The part of the ports that each path has, in the order of `paths`. They sum to 1."""
        ports = sum(len(path.ports) for path in self.paths)
        return [len(path.ports) / ports for path in self.paths]


def paths_of(observations: Iterable[Observation]) -> tuple[PairPaths, ...]:
    """The paths of every pair in `observations`, which come in any order, by pair. All are from one host's clock.

    A port of the destination may take probes in silence. Then an answer of another port tells whether the destination
    is right behind the first router.
    """
    pairs: dict[Pair, list[Observation]] = {}
    near: set[tuple[str, str]] = set()
    for observation in observations:
        if observation.answer == "destination" and observation.ttl <= 2:
            near.add((observation.source, observation.destination))
        pair = Pair(observation.source, observation.destination, observation.protocol, observation.destination_port)
        pairs.setdefault(pair, []).append(observation)
    return tuple(_pair_paths(pair, pairs[pair], (pair.source, pair.destination) in near) for pair in sorted(pairs))


def _pair_paths(pair: Pair, observations: list[Observation], near: bool) -> PairPaths:
    steady = steadiness(observations)
    if steady.verdict == "moved":
        observations = [observation for observation in observations if observation.at_s >= steady.changes_s[-1]]
    observations.sort(key=lambda observation: observation.at_s)
    by_port: dict[int, list[Observation]] = {}
    for observation in observations:
        by_port.setdefault(observation.source_port, []).append(observation)
    known: dict[_Answers, list[int]] = {}
    for port, own in by_port.items():  # a later answer of the same TTL counts
        answers = {
            observation.ttl: observation.router
            for observation in own
            if observation.answer == "hop" and observation.router is not None
        }
        known.setdefault(tuple(sorted(answers.items())), []).append(port)
    silent = known.pop((), [])
    fitting = _completed(known)
    ports_of: dict[_Answers, list[int]] = {}
    undecided: list[int] = []
    for answered, ports in known.items():
        fit = fitting.get(answered)
        (undecided if fit is None else ports_of.setdefault(fit, [])).extend(ports)
    paths = [_found(answered, sorted(ports), by_port) for answered, ports in ports_of.items()]
    paths.sort(key=lambda path: (-len(path.ports), path.ports))
    arrived = [observation.ttl for observation in observations if observation.answer == "destination"]
    routers = min(arrived) - 1 if arrived else None
    findings = _findings(pair, paths, observations, routers, near, steady)
    if known and not fitting:
        findings = (_scattered(pair, len(known)), *findings)
    return PairPaths(pair, tuple(paths), tuple(sorted(undecided)), tuple(sorted(silent)), routers, steady, findings)


def _completed(known: Iterable[_Answers]) -> dict[_Answers, _Answers | None]:
    """For what is known of ports, the one path that it fits; None where it fits several.

    Paths are what is known most fully: answers that no others contain. With more than `MOST_PATHS` there is no answer.
    """
    with_answer: dict[tuple[int, str], int] = {}  # the paths that have an answer, as bits
    paths: list[_Answers] = []
    found: dict[_Answers, _Answers | None] = {}
    for answers in sorted(known, key=lambda answers: (-len(answers), answers)):
        fits = -1
        for answer in answers:
            fits &= with_answer.get(answer, 0)
        if not fits:
            if len(paths) == MOST_PATHS:
                return {}
            for answer in answers:
                with_answer[answer] = with_answer.get(answer, 0) | 1 << len(paths)
            paths.append(answers)
            found[answers] = answers
        else:
            found[answers] = paths[fits.bit_length() - 1] if fits & (fits - 1) == 0 else None
    return found


def _found(answers: _Answers, ports: list[int], by_port: dict[int, list[Observation]]) -> FoundPath:
    routers = dict(answers)
    hops = tuple(routers.get(ttl) for ttl in range(1, answers[-1][0] + 1))
    probes = [observation for port in ports for observation in by_port[port]]
    answered = [observation for observation in probes if observation.answer != "none"]
    timed = [(observation.ttl, observation.rtt_s) for observation in answered if observation.rtt_s is not None]
    farthest = max((ttl for ttl, _ in timed), default=0)
    rtt_s = median(rtt_s for ttl, rtt_s in timed if ttl == farthest) if timed else None
    return FoundPath(hops, tuple(ports), len(probes), len(answered), rtt_s)


def _findings(
    pair: Pair,
    paths: list[FoundPath],
    observations: list[Observation],
    routers: int | None,
    near: bool,
    steady: Steadiness,
) -> tuple[Finding, ...]:
    found = []
    probes, answers = len(observations), sum(observation.answer == "hop" for observation in observations)
    asked = sum(1 for observation in observations if routers is None or observation.ttl <= routers)
    if not answers and asked:
        found.append(
            Finding(
                "no answers",
                True,
                f"no router answered the {probes} probes from {pair}: random ports still work, and to pin paths the "
                "switches must send ICMP time exceeded and the way back must let it pass",
            )
        )
    elif not near and paths and all(len(path.hops) == 1 for path in paths):
        found.append(
            Finding(
                "first router",
                True,
                f"only the first router, {' or '.join(str(path.hops[0]) for path in paths)}, answered probes from "
                f"{pair}, so it is not known which ports take which path, unless the host is right behind it: random "
                "ports still work, and to pin paths the routers behind it must send ICMP time exceeded and the way "
                "back must let it pass",
            )
        )
    elif 2 * answers < asked:
        found.append(
            Finding(
                "few answers",
                False,
                f"routers answered {answers} of {asked} probes from {pair}: ports with an answer can be pinned, and "
                "slower probing or a higher ICMP limit finds the paths of more",
            )
        )
    changes = len(steady.changes_s)
    match steady.verdict:
        case "sprayed":
            found.append(
                Finding(
                    "sprayed",
                    True,
                    f"ports from {pair} change their path all the time ({changes} times, {steady.stays} stays): "
                    "switches spray or route adaptively, which spreads traffic without pinning; only static hashing "
                    "can be pinned",
                )
            )
        case "unclear":
            found.append(
                Finding(
                    "unclear",
                    True,
                    f"ports from {pair} changed their path {changes} times and stayed only {steady.stays} times: probe "
                    "some ports several times in a row, to tell a change of routes from spraying",
                )
            )
        case "moved":
            found.append(
                Finding(
                    "moved",
                    False,
                    f"the routes from {pair} changed {changes} times, last {steady.changes_s[-1]:.3f} s after probing "
                    "began: ports that were not probed since have to be probed again",
                )
            )
        case "steady":
            found += _shape_findings(pair, paths)
    return tuple(found)


def _scattered(pair: Pair, ways: int) -> Finding:
    return Finding(
        "scattered",
        True,
        f"ports from {pair} saw {ways:,} different rows of routers, more than any fabric has: packets are sprayed, or "
        "answers are forged; probe fewer TTLs, or some ports several times in a row, to tell which",
    )


def _shape_findings(pair: Pair, paths: list[FoundPath]) -> list[Finding]:
    ports = sum(len(path.ports) for path in paths)
    if len(paths) == 1 and ports >= _FEW_PORTS and len(paths[0].hops) > 1:
        return [
            Finding(
                "one path",
                False,
                f"all {ports} ports from {pair} take one path: there is no other one, or the switches' hash leaves "
                "out the ports of layer 4; data pass all the same, and ports can choose once they are among its fields",
            )
        ]
    counts = [len(path.ports) for path in paths]
    if len(counts) > 1 and _deviations(counts) > _UNEVEN:
        return [
            Finding(
                "uneven",
                False,
                f"the paths from {pair} have between {min(counts)} and {max(counts)} of {ports} ports: next hops have "
                "weights, or a path stands for several links (a LAG, which probes cannot see); pinning works, and "
                "rates of links have to be told",
            )
        ]
    return []


def _deviations(counts: list[int]) -> float:
    """How uneven counts are, in standard deviations: chi-squared as a normal variate (Wilson and Hilferty, 1931)."""
    mean, freedom = sum(counts) / len(counts), len(counts) - 1
    squared = sum((count - mean) ** 2 for count in counts) / mean
    return float(((squared / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)))
