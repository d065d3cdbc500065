# SPDX-License-Identifier: Apache-2.0
"""How hosts that pace their probes as the agent does find ports along planned paths, while connections wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from netmodel import LinuxL4Hash, Topology
from sdn.measured.router_names import names_of
from sdn.path_service.messages import Answer, Probe, Probed
from sdn.path_service.places import SENT
from sdn.path_service.port_search import PLANNED_HOLD_S
from sdn.path_service.service import Options
from tests.sdn.path_service.test_measured import STEP_S, THREE_TIERS, TWO_TIERS, measured, permuted
from tests.sdn.path_service.test_measured_connections import SLOTS, Connection, Programs, ring

BURST = 6.0  # answers that a router gives a host at once; then one a second
TIMEOUT_S, ONCE_S = 0.5, 0.2  # `prober::Limits`
ATTEMPTS, SOUGHT = 3, 2  # `path_client::Asks`
TELLS_S = 0.05  # an ask and its answer on a machine whose ranks spin


@dataclass
class _Probe:
    """A port of an ask that waits, or is under way."""

    ask: Probe
    port: int
    attempts: int = 0
    charged: tuple[str, ...] = ()
    ends_s: float = 0.0


@dataclass
class _Schedule:
    """What `prober::Schedule` knows: what each router can still answer, and who answers at which place."""

    tokens: dict[str, tuple[float, float]] = field(default_factory=dict)
    at_target: dict[tuple[str, int, int], dict[str, None]] = field(default_factory=dict)
    at_ttl: dict[int, dict[str, None]] = field(default_factory=dict)
    waiting: deque[_Probe] = field(default_factory=deque)
    under_way: list[_Probe] = field(default_factory=list)

    def left(self, router: str, now_s: float) -> float:
        tokens, at_s = self.tokens.get(router, (BURST, 0.0))
        return min(BURST, tokens + now_s - at_s)

    def take(self, router: str, now_s: float, count: float) -> None:
        self.tokens[router] = self.left(router, now_s) - count, now_s

    def routers_of(self, ask: Probe) -> tuple[str, ...]:
        at_ttl = self.at_ttl.get(ask.ttl, {})
        if ask.once and at_ttl:
            return tuple(at_ttl)
        return tuple(self.at_target.get((ask.peer, ask.peer_port, ask.ttl), {}) or at_ttl)

    def may_leave(self, ask: Probe, now_s: float) -> bool:
        left = [self.left(router, now_s) + 1e-6 for router in self.routers_of(ask)]
        if ask.once:
            return not left or max(left) >= 1
        return not left or min(left) >= 1 / len(left)


class PacedPrograms(Programs):
    """Hosts that hold probes back until routers can answer them, and wait for the answers."""

    def __init__(self, topology: Topology, options: Options | None = None) -> None:
        super().__init__(topology, options)
        self.asks: list[Probe] = []
        self._schedules: dict[int, _Schedule] = {}
        self._answers: dict[tuple[int, int], list[Answer]] = {}
        self._done: list[Answer] = []  # instead of the answers to an ask that is answered
        self._told: list[tuple[float, int, Probed]] = []

    def probe(self, conn: int, ask: Probe) -> None:
        self.asks.append(ask)
        schedule = self._schedules.setdefault(conn, _Schedule())
        schedule.waiting.extend(_Probe(ask, port) for port in ask.ports)

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            super().run(min(STEP_S, end_s - self.now_s))
            for conn, schedule in self._schedules.items():
                self._expire(conn, schedule)
                self._send(conn, schedule)
            told = [each for each in self._told if each[0] <= self.now_s]
            self._told = [each for each in self._told if each[0] > self.now_s]
            for _, conn, probed in told:
                self.say(conn, probed)

    def router_beside(self, connection: Connection) -> str:
        """The address of a router at the topmost tier that is not on the path of a connection."""
        (schedule, own) = self._schedules[connection.host * SLOTS], {link.node for link in self.taken(connection)}
        return next(at for at in schedule.at_ttl[3] if names_of(self.topology)[at].partition(":")[0] not in own)

    def _send(self, conn: int, schedule: _Schedule) -> None:
        for probe in list(schedule.waiting):
            ask, now_s = probe.ask, self.now_s
            if self._answers.get((conn, ask.ask)) is self._done:
                schedule.waiting.remove(probe)
                continue
            sought = sum(each.ask is ask for each in schedule.under_way)
            if (ask.until and sought >= SOUGHT) or not schedule.may_leave(ask, now_s):
                continue
            schedule.waiting.remove(probe)
            routers = schedule.routers_of(ask)
            answer = self.answer(conn, ask.peer, probe.port, ask.ttl, ask.peer_port)
            if answer.router is not None:
                name = answer.router
                schedule.take(name, now_s, 1)
                schedule.at_target.setdefault((ask.peer, ask.peer_port, ask.ttl), {})[name] = None
                schedule.at_ttl.setdefault(ask.ttl, {})[name] = None
            if answer.answer != "none":
                self._settle(conn, ask, answer)
                continue
            for router in routers:
                schedule.take(router, now_s, 1 / len(routers))
            probe.attempts, probe.charged = probe.attempts + 1, routers
            probe.ends_s = now_s + (ONCE_S if ask.once else TIMEOUT_S)
            schedule.under_way.append(probe)

    def _expire(self, conn: int, schedule: _Schedule) -> None:
        for probe in [each for each in schedule.under_way if each.ends_s <= self.now_s]:
            schedule.under_way.remove(probe)
            if probe.ask.once:
                for router in probe.charged:
                    schedule.take(router, self.now_s, -1 / len(probe.charged))
            elif probe.attempts < ATTEMPTS:
                schedule.waiting.append(probe)
                continue
            self._settle(conn, probe.ask, Answer(probe.port, "none"))

    def _settle(self, conn: int, ask: Probe, answer: Answer) -> None:
        answers = self._answers.setdefault((conn, ask.ask), [])
        if answers is self._done:
            return
        answers.append(answer)
        if len(answers) == len(ask.ports) or answer.router in ask.until:
            self._answers[conn, ask.ask] = self._done
            self._told.append((self.now_s + TELLS_S, conn, Probed(ask.ask, tuple(answers))))

    def exhaust(self, host: int, router: str) -> None:
        """A router has given a host all answers that it can, as both know. `router` is its address."""
        self._schedules[host * SLOTS].tokens[router] = 0.0, self.now_s
        self.spend(host, router)


def test_a_router_without_answers_holds_up_no_search_for_a_port_through_another() -> None:
    """Chance ports of a connection before had met it six times."""
    programs = PacedPrograms(THREE_TIERS)
    for host in range(1, 16):  # the host gets to know all routers
        if programs.leaf(host) != programs.leaf(0):
            programs.end(programs.connected([(0, host, 2000)]))
    (setup,) = programs.connected([(0, 8, 3000)])
    programs.sent(setup, 500)
    programs.run(5.0)
    (first,) = programs.connected([(0, 8, 4000)])
    for channel in range(1, 9):
        programs.run(5.0)
        programs.exhaust(0, programs.router_beside(first))
        (made,) = programs.connected([(0, 8, 4000 + channel)])
        assert programs.taken(made) == programs.taken(first)
        assert made.waited_s is not None
        assert made.waited_s < PLANNED_HOLD_S / 2


def test_agents_of_an_earlier_version_are_asked_for_one_port_by_a_message() -> None:
    """They would answer a longer one only when they have probed all its ports, three times where nobody answers."""
    programs = PacedPrograms(THREE_TIERS)
    programs.searches = False
    (setup,) = programs.connected([(0, 8, 3000)])
    programs.sent(setup, 500)
    programs.run(5.0)
    del programs.asks[:]
    made = programs.connected([(0, 8, 4000)] * 4)  # they wait for ports along planned paths
    assert all(each.port for each in made)
    assert {(len(ask.ports), ask.once, *ask.until) for ask in programs.asks} == {(1, False)}


@pytest.mark.parametrize("seed", [1, 2])
def test_hardly_any_connection_for_data_begins_on_another_path_than_the_planned_one(seed: int) -> None:
    """Those of a program that starts as fast as NCCL."""
    programs = PacedPrograms(THREE_TIERS)
    made = ring(programs, seed, pause_s=0.4)
    for each in made.data:
        programs.sent(each, SENT)
    assert sum(each.waited_s is None or each.waited_s >= PLANNED_HOLD_S for each in made.data) <= 1
    assert max(programs.load_of(made.data).values()) <= 3


def test_the_ports_that_a_host_has_probed_are_counted_once_and_no_others() -> None:
    programs, asks = PacedPrograms(THREE_TIERS), list[Probe]()
    programs.probe = lambda _, ask: asks.append(ask)  # type: ignore[method-assign]  # nobody answers
    for _ in range(2):
        programs.begin(0, 8, 3000)
    programs.run(0.1)
    for each in [each for each in asks if not each.until]:  # those of the first connection, while it was alone
        programs.say(0, Probed(each.ask, tuple(Answer(port, "none") for port in each.ports)))
    programs.run(0.1)
    ask = next(each for each in asks if each.until)
    counts, before = programs.service.counts, programs.service.counts["probes"]
    silent, other = Answer(ask.ports[0], "none"), Answer(ask.ports[1], "none")
    programs.say(0, Probed(ask.ask, (silent, silent, other, Answer(1, "none"))))
    assert counts["probes"] == before + 2
    assert counts["probes answered"] == 0


@pytest.mark.parametrize("topology", [TWO_TIERS, THREE_TIERS], ids=["two", "three"])
@pytest.mark.parametrize("seed", [5, 6, 9, 16])
def test_all_hosts_are_planned_without_conflict_soon(seed: int, topology: Topology) -> None:
    """Under the limits of Linux, although each has to find a port along each of four paths by chance."""
    probers = measured(topology, LinuxL4Hash())
    permuted(probers, seed)
    probers.run(0.2)
    assert max(probers.load().values()) == pytest.approx(1)
