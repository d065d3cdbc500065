# SPDX-License-Identifier: Apache-2.0
"""`PathService`: after any events, open elephants are on live paths, and hosts have the ports."""

from __future__ import annotations

import random
from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from netmodel import (
    Flow,
    LinuxL4Hash,
    OvsHash,
    PortRef,
    Topology,
    XorHash,
    forwarding,
    path_of,
    tiers,
)
from sdn.path_service import routing
from sdn.path_service.expected import AHEAD_S
from sdn.path_service.links import links_named
from sdn.path_service.messages import (
    Announce,
    Assign,
    Error,
    Measured,
    MeasuredFlow,
    Ping,
    Pong,
    Release,
    Report,
)
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import LANES, Hosts, address, fabric, three_tiers

HOSTS = 6


class Life(RuleBasedStateMachine):
    """Hosts come and go, announce and release, links fail and come back, in any order."""

    @initialize(
        planner=st.sampled_from(["optimal", "optimal", "greedy", "ecmp"]),
        topology=st.sampled_from([fabric(), fabric(parallel=2), three_tiers(), three_tiers(3, 1, 2, 2, 2)]),
        forecast=st.booleans(),
        rates=st.booleans(),
    )
    def begin(self, planner: str, topology: Topology, forecast: bool, rates: bool) -> None:
        self.hosts = Hosts(PathService(topology, Options(planner, forecast, rates), OvsHash()))
        self.tier = tiers(topology)
        self.between = [link for link in topology.links if link.a.node in self.tier and link.b.node in self.tier]

    @rule(host=st.integers(0, HOSTS - 1), instance=st.integers(0, 1))
    def connect(self, host: int, instance: int) -> None:
        self.hosts.connect(host, instance)

    @precondition(lambda self: self.hosts.device)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        self.hosts.disconnect(data.draw(st.sampled_from(sorted(self.hosts.device))))

    @precondition(lambda self: self.hosts.device)
    @rule(
        data=st.data(),
        number=st.integers(0, 3),
        peer=st.integers(0, HOSTS - 1),
        job=st.sampled_from(["", "a"]),
        after=st.lists(st.integers(0, 3), max_size=2),
    )
    def announce(self, data: st.DataObject, number: int, peer: int, job: str, after: list[int]) -> None:
        conn = data.draw(st.sampled_from(sorted(self.hosts.device)))
        answer = self.hosts.announce(conn, number, peer, job=job, after=after)
        assert answer.peer == address(self.hosts.topology, peer)

    @precondition(lambda self: self.hosts.device)
    @rule(data=st.data(), number=st.integers(0, 3))
    def release(self, data: st.DataObject, number: int) -> None:
        self.hosts.release(data.draw(st.sampled_from(sorted(self.hosts.device))), number)

    @rule(data=st.data(), up=st.booleans())
    def link(self, data: st.DataObject, up: bool) -> None:
        self.hosts.link(data.draw(st.lists(st.sampled_from(self.between), min_size=1, max_size=3)), up)

    @rule(data=st.data(), up=st.booleans())
    def switch(self, data: st.DataObject, up: bool) -> None:
        name = data.draw(st.sampled_from([name for name, tier in self.tier.items() if tier > 1]))
        self.hosts.link(list(links_named(self.hosts.topology, name)), up)

    @rule(passed_s=st.sampled_from([0.0, 0.05, 1.0]))
    def time_passes(self, passed_s: float) -> None:
        self.hosts.now_s += passed_s
        self.hosts.tick()

    @rule(times=st.integers(1, 40))
    def prepare(self, times: int) -> None:
        while times and self.hosts.service.prepare():
            times -= 1

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        self.hosts.check()
        status = self.hosts.service.status()
        assert status["hosts"] == len(self.hosts.device)
        assert status["elephants"] == len(self.hosts.open)
        expected = status["commodities"] - len({(conn, peer) for (conn, _), peer in self.hosts.open.items()})
        ahead = self.hosts.service._expected
        planned_ahead = 0 if ahead is None else len(ahead.pairs)
        assert expected == planned_ahead, "releases free"


Life.TestCase.settings = settings(
    derandomize=True, max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase


@pytest.fixture
def hosts() -> Hosts:
    made = Hosts(PathService(fabric()))
    for host in range(HOSTS):
        made.connect(host)
    return made


def test_a_release_removes_the_elephant(hosts: Hosts) -> None:
    hosts.announce(1, 7, 4)
    assert hosts.service.status()["commodities"] == 1
    assert sum(link["up"] + link["down"] for link in hosts.service.paths()) == 2
    hosts.release(1, 7)
    assert hosts.service.status()["commodities"] == 0
    assert list(hosts.service.flows(10)) == []
    hosts.release(1, 7)  # again, as after a reconnect
    assert hosts.service.counts["unknown releases"] == 1


def test_two_elephants_to_one_peer_are_one_commodity(hosts: Hosts) -> None:
    first, second = hosts.announce(1, 7, 4), hosts.announce(1, 8, 4)
    assert first.ports == second.ports
    (flow,) = hosts.service.flows(10)
    assert flow["ids"] == [7, 8]
    hosts.release(1, 7)
    assert next(hosts.service.flows(10))["ids"] == [8]


def test_an_elephant_announced_with_the_release_of_the_last_keeps_its_path() -> None:
    hosts = Hosts(PathService(fabric(leaves=2, spines=4, hosts=4), Options("ecmp")))  # which draws one for each arrival
    for host in range(8):
        hosts.connect(host)
    first = hosts.announce(2, 1, 5)
    hosts.service.handle(0, 2, [Measured((MeasuredFlow(1, 1_000_000, 0.1),))])
    generation = hosts.generation[6]
    for number in range(2, 8):
        hosts.now_s = float(number)
        assert hosts.announce(2, number, 5, after=[number - 1]).ports == first.ports
        (flow,) = hosts.service.flows(10)
        assert (flow["ids"], flow["since_s"], flow["measured_bps"]) == ([number], hosts.now_s, None)
    assert hosts.generation[6] == generation, "for its peer nothing has changed"
    hosts.release(2, 7)
    assert hosts.service.status()["commodities"] == 0


def test_released_elephants_make_room_for_those_announced_in_the_same_messages() -> None:
    hosts = Hosts(PathService(fabric(leaves=3, spines=2, hosts=2)))
    for host in range(6):
        hosts.connect(host)
    hosts.announce(1, 1, 2)
    hosts.announce(2, 1, 3)  # the first leaf's links to both spines are taken
    hosts.announce(1, 2, 4, after=[1])
    assert hosts.service.status()["commodities"] == 2
    assert max(link["up"] for link in hosts.service.paths()) == 1
    assert hosts.service.counts["moved"] == 0
    hosts.check()


def test_peers_outside_the_fabric_stay_on_ecmp(hosts: Hosts) -> None:
    for peer in ("192.168.0.1", address(hosts.topology, 0), "nonsense"):
        assert hosts.announce(1, 7, peer).ports == []
    assert hosts.service.status()["commodities"] == 0


def test_a_restarted_process_replaces_its_predecessor(hosts: Hosts) -> None:
    hosts.announce(1, 7, 4)
    again = hosts.connect(0, instance=0)
    assert hosts.service.status()["hosts"] == HOSTS
    assert hosts.service.status()["commodities"] == 0
    beside = hosts.connect(0, instance=1)
    assert hosts.service.status()["hosts"] == HOSTS + 1
    hosts.announce(again, 7, 4)
    hosts.announce(beside, 7, 4)
    assert hosts.service.status()["commodities"] == 2


def test_a_late_connection_is_assigned_ports_for_acknowledgements() -> None:
    hosts = Hosts(PathService(fabric()))
    conn = hosts.connect(0)
    hosts.announce(conn, 1, 4)
    other = hosts.connect(4)
    assert len(hosts.ports[other, address(hosts.topology, 0)]) == LANES
    hosts.check()


def test_a_dead_link_moves_only_the_elephants_that_it_carried(hosts: Hosts) -> None:
    for host in range(3):
        hosts.announce(host + 1, 1, host + 3)
    before = {flow["device"]: flow["path"] for flow in hosts.service.flows(10)}
    dead = before[address(hosts.topology, 0)][1]
    hosts.link(list(links_named(hosts.topology, dead)), up=False)
    after = {flow["device"]: flow["path"] for flow in hosts.service.flows(10)}
    assert dead not in {port for path in after.values() for port in path}
    assert after[address(hosts.topology, 2)] == before[address(hosts.topology, 2)]
    hosts.check()


@pytest.mark.parametrize("name", ["spine2", "leaf1:4", "leaf2-spine1"])
def test_a_prepared_plan_equals_one_made_at_the_failure(name: str) -> None:
    ports = []
    for prepared in (True, False):
        hosts = Hosts(PathService(fabric(hosts=3)))
        for host in range(9):
            hosts.connect(host)
        for host in range(9):
            hosts.announce(host + 1, 1, (host + 4) % 9)
        while prepared and hosts.service.prepare():
            pass
        hosts.link(list(links_named(hosts.topology, name)), up=False)
        assert hosts.service.counts["prepared plans used"] == prepared
        hosts.check()
        hosts.release(1, 1)
        hosts.announce(2, 2, 8)
        hosts.check()
        ports.append(hosts.ports)
    assert ports[0] == ports[1]


def test_prepared_plans_stay_valid_while_the_same_elephants_repeat() -> None:
    hosts = Hosts(PathService(fabric(hosts=3)))
    for host in range(9):
        hosts.connect(host)
    for host in range(9):
        hosts.announce(host + 1, 1, (host + 4) % 9)
    while hosts.service.prepare():
        pass
    for host in (2, 5, 5, 7):  # nobody had a moment since
        hosts.release(host + 1, 1)
        hosts.announce(host + 1, 1, (host + 4) % 9)
    dead = next(hosts.service.flows(1))["path"][1]
    hosts.link(list(links_named(hosts.topology, dead)), up=False)
    assert hosts.service.counts["prepared plans used"] == 1
    failover = hosts.service.status()["failover"]
    assert failover["ready"] == failover["cut"] >= 1
    hosts.check()


def test_a_prepared_plan_that_lacks_an_elephant_is_repaired() -> None:
    hosts = Hosts(PathService(fabric(leaves=2, spines=2, hosts=3)))
    for host in range(6):
        hosts.connect(host)
    hosts.announce(1, 1, 3)
    hosts.announce(2, 1, 4)
    while hosts.service.prepare():
        pass
    hosts.announce(3, 1, 5)  # shares a spine with one of them
    dead = next(flow for flow in hosts.service.flows(9) if flow["device"] == address(hosts.topology, 2))["path"][2]
    hosts.link(list(links_named(hosts.topology, PortRef.parse(dead).node)), up=False)
    assert hosts.service.counts["prepared plans mended"] == 1
    assert hosts.service.status()["failover"] == {"cut": 2, "ready": 1, "rate": 0.5}
    hosts.check()


def test_prepare_replans_after_changes_and_ends(hosts: Hosts) -> None:
    def prepared() -> int:
        steps = 0
        while hosts.service.prepare():
            steps += 1
        return steps

    cases = 3 + 9  # spines and links
    assert prepared() == cases
    assert prepared() == 0
    hosts.announce(1, 1, 4)
    assert prepared() >= cases
    assert prepared() == 0
    assert hosts.service.status()["prepared_failures"] == cases


def test_only_cut_elephants_are_assigned_with_cut_and_only_once(hosts: Hosts) -> None:
    for host in range(3):
        hosts.announce(host + 1, 1, host + 3)
    dead = next(hosts.service.flows(1))["path"][1]
    sent = hosts.service.link(0.0, links_named(hosts.topology, dead), up=False)
    while hosts.service.busy:
        sent += hosts.service.tick(0.0)
    assigned = [(conn, message) for conn, message in sent if isinstance(message, Assign)]
    assert [(conn, message.id) for conn, message in assigned if message.cut] == [(1, 1)]
    assert assigned[0][1].cut, "they are told first"
    back = hosts.service.link(0.0, links_named(hosts.topology, dead), up=True)
    assert not any(message.cut for _, message in back if isinstance(message, Assign))


def test_without_any_spine_all_elephants_use_ecmp_until_spines_return(hosts: Hosts) -> None:
    hosts.announce(1, 1, 4)
    every = [link for spine in (1, 2, 3) for link in links_named(hosts.topology, f"spine{spine}")]
    hosts.link(every, up=False)
    assert hosts.ports[1, address(hosts.topology, 4)] == []
    assert hosts.service.status()["unreachable"] == 1
    hosts.link(every, up=True)
    assert len(hosts.ports[1, address(hosts.topology, 4)]) == LANES


def test_too_few_ports_for_a_path_mean_ecmp() -> None:
    class One(XorHash):
        """Everything to the first member."""

        def select(self, fields, seed, members):  # type: ignore[no-untyped-def]
            return super().select(fields, seed, 1)

    hosts = Hosts(PathService(fabric(), ecmp_hash=One()))
    for host in range(3):
        hosts.connect(host)
    ports = [hosts.announce(1, number, number).ports for number in (2, 3, 4)]
    assert [] in ports


def test_the_rate_of_reroutes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "REROUTES_PER_S", 2.0)
    hosts = Hosts(PathService(fabric(leaves=4, spines=4, hosts=4)))
    for host in range(16):
        hosts.connect(host)
    for turn in range(6):  # nobody's time passes
        for host in range(16):
            hosts.release(host + 1, turn)
            hosts.announce(host + 1, turn + 1, (host + 4 + 5 * turn) % 16 if turn % 3 else (host + 9) % 16)
    assert hosts.service.counts["moved"] <= 2
    hosts.check()


def test_repeating_elephants_get_their_path_before_they_are_announced() -> None:
    hosts = Hosts(PathService(fabric(), Options(forecast=True)))
    for host in range(HOSTS):
        hosts.connect(host)
    for step in range(8):
        hosts.announce(1, step, 4, job="bert")
        hosts.now_s += 0.3
        hosts.release(1, step)
        hosts.now_s += 0.65
        hosts.tick()
        ahead = hosts.service.status()["commodities"]
        hosts.now_s += 0.05
    assert ahead == 1, f"{AHEAD_S} s before it is due"
    assert next(hosts.service.flows(1))["ids"] == []
    answer = hosts.announce(1, 9, 4, job="bert")
    assert next(hosts.service.flows(1))["ids"] == [9]
    assert answer.ports
    assert hosts.service.status()["forecast"]["rate"] == 1
    hosts.release(1, 9)
    for _ in range(30):  # it never comes again
        hosts.now_s += 0.1
        hosts.tick()
    assert hosts.service.status()["commodities"] == 0


def test_rates_are_sent_when_they_change() -> None:
    hosts = Hosts(PathService(fabric(), Options(rates=True)))
    for host in range(HOSTS):
        hosts.connect(host)
    assert hosts.announce(1, 1, 4).rate_bps is None
    hosts.tick()
    assert hosts.answered[1, 1].rate_bps == 1e9
    hosts.announce(2, 1, 4)  # both into one NIC
    hosts.tick()
    assert [hosts.answered[conn, 1].rate_bps for conn in (1, 2)] == [5e8, 5e8]
    generation = hosts.generation[1]
    hosts.tick()
    assert hosts.generation[1] == generation
    hosts.release(2, 1)
    hosts.tick()
    assert hosts.answered[1, 1].rate_bps == 1e9


def test_measurements_and_reports_are_recorded(hosts: Hosts) -> None:
    hosts.announce(1, 1, 4)
    for message in (
        Measured((MeasuredFlow(1, 1_000_000, 0.1), MeasuredFlow(99, 1, 1.0), MeasuredFlow(1, 5, 0.0))),
        Report(1, 2, 50_000, "loss", 0.5),
    ):
        assert hosts.service.handle(0, 1, [message]) == []
    assert next(hosts.service.flows(1))["measured_bps"] == 8e7
    assert hosts.service.counts["left by loss"] == 1
    assert hosts.service.handle(0, 1, [Ping(5)]) == [(1, Pong(5))]


def test_the_elephants_of_a_client_that_leaves_end_some_at_a_time(hosts: Hosts) -> None:
    for number in range(200):
        said = Announce(number, address(hosts.topology, 4), 1, peer_port=1000 + number)
        hosts.hear(hosts.service.handle(0, 1, [said]))
    hosts.announce(2, 1, 4)
    hosts.disconnect(1)
    assert 1 < hosts.service.status()["commodities"] < 200
    hosts.connect(0)  # again, while elephants of its predecessor are left
    rounds = 0
    while hosts.service.busy:
        hosts.tick()
        rounds += 1
    assert rounds > 1
    assert hosts.service.status()["commodities"] == 1
    hosts.check()


def test_many_senders_get_the_ports_of_acknowledgements_some_at_a_time() -> None:
    hosts = Hosts(PathService(fabric(hosts=20)))
    for host in range(1, 60):
        conn = hosts.connect(host)
        hosts.announce(conn, 1, 0)
    late = hosts.connect(0)
    notified = len([conn for conn, _ in hosts.ports if conn == late])
    assert 0 < notified < 59
    while hosts.service.busy:
        hosts.tick()
    assert len([conn for conn, _ in hosts.ports if conn == late]) == 59
    hosts.check()


def test_a_client_with_many_lanes_may_have_fewer_elephants() -> None:
    hosts = Hosts(PathService(fabric(spines=2)))
    conn = hosts.connect(0, lanes=1024)
    said = [Announce(number, address(hosts.topology, 4), 1) for number in range(257)]
    *served, (_, refused) = hosts.service.handle(0, conn, said)
    assert [len(message.ports) for _, message in served if isinstance(message, Assign)] == [1024] * 256
    assert isinstance(refused, Error)
    assert refused.text.startswith("256 elephants are open")


def test_open_elephants_per_connection_are_limited(hosts: Hosts) -> None:
    hosts.service._parties.clients[1].most_open = 2
    for number in (1, 2):
        hosts.announce(1, number, 4)
    ((conn, refused),) = hosts.service.handle(0, 1, [Announce(3, address(hosts.topology, 5), 1)])
    assert conn == 1
    assert isinstance(refused, Error)
    assert refused.code == "busy"
    hosts.announce(1, 2, 4, size=5)  # an open one may still change
    assert hosts.service.handle(0, 1, [Release(3)]) == []


def test_an_unknown_planner_is_refused() -> None:
    with pytest.raises(ValueError, match="planner 'best' is none of optimal"):
        Options("best")


@pytest.mark.parametrize(
    ("name", "links"), [("leaf1:3", 1), ("spine1:2", 1), ("leaf2-spine1", 2), ("spine3-leaf1", 2), ("leaf1", 6)]
)
def test_links_are_found_by_name(name: str, links: int) -> None:
    assert len(links_named(fabric(parallel=2), name)) == links


@pytest.mark.parametrize("name", ["h1:1", "leaf1:1", "leaf1:99", "leaf1-leaf2", "", "-", "spine9"])
def test_an_unknown_link_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(KeyError, match="such a link is leaf1:3 or leaf1-spine1"):
        links_named(fabric(), name)


def test_elephants_follow_the_next_hops_that_were_read() -> None:
    """The order of each group is another one for each address, and other again after a core has died."""
    topology, ecmp_hash = three_tiers(), LinuxL4Hash()
    hosts = Hosts(PathService(topology, ecmp_hash=ecmp_hash), ecmp_hash)
    conns = [hosts.connect(host) for host in range(8)]
    turn = random.Random(3)
    for dead in ("", "core1", "agg2", ""):
        links = frozenset(links_named(topology, dead)) if dead else frozenset()
        routes = forwarding(topology, links)
        read = {
            name: {to: tuple(turn.sample(ports, len(ports))) for to, ports in own.items()}
            for name, own in routes.groups.items()
        }
        hosts.hear(hosts.service.next_hops(0.0, read))
        while hosts.service.busy:
            hosts.tick()
        for host in range(8):
            hosts.announce(conns[host], 1, (host + 4) % 8)
        for flow in hosts.service.flows(9):
            ways = {
                path_of(topology, Flow(*map(IPv4Address, (flow["device"], flow["peer"])), port), ecmp_hash,
                        routes=replace(routes, groups=read))
                for port in flow["ports"]
            }  # fmt: skip
            assert [[str(port) for port in path] for path in ways] == [flow["path"]]
            assert not [port for port in flow["path"] if dead and port.startswith(f"{dead}:")]
        assert hosts.service.status()["unreachable"] == 0
    assert hosts.service.status()["dead_links"] == []
    assert hosts.service.status()["gap"] == 0
