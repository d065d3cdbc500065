# SPDX-License-Identifier: Apache-2.0
"""Drains and pins by hand: elephants leave drained links, pinned pairs keep their path, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import CrcHash, EcmpHash, Topology
from sdn.path_service import routing
from sdn.path_service.constraints import Constraints
from sdn.path_service.links import links_named
from sdn.path_service.service import Options, PathService
from sdn.path_service.work import finished
from tests.sdn.path_service.sample import Hosts, address, fabric, three_tiers

FABRICS = [fabric(), fabric(parallel=2), three_tiers(aggs=3)]


def drained(topology: Topology, *names: str) -> Constraints:
    return Constraints(drained=frozenset(link for name in names for link in links_named(topology, name)))


def pinned(topology: Topology, src: int, dst: int, via: str) -> Constraints:
    ends = address(topology, src), address(topology, dst)
    return Constraints(pins={ends: (frozenset(links_named(topology, via)),)})


def busy(service: PathService) -> tuple[Hosts, list[tuple[int, int]]]:
    """Every host sends to all hosts of other leaves: the connection and the id of each elephant."""
    hosts = Hosts(service)
    topology = service.topology
    count = len(topology.hosts)
    conns = [hosts.connect(host) for host in range(count)]
    sent = []
    for host in range(count):
        for peer in range(count):
            if host != peer:
                hosts.announce(conns[host], peer, peer)
                sent.append((conns[host], peer))
    return hosts, sent


def change(hosts: Hosts, constraints: Constraints) -> None:
    hosts.hear(hosts.service.constrain(hosts.now_s, constraints))
    while hosts.service.busy:
        hosts.tick()


def ways(service: PathService) -> dict[tuple[str, str], list[str]]:
    return {(flow["device"], flow["peer"]): flow["path"] for flow in service.flows(1000)}


def load(service: PathService, name: str) -> float:
    ends = {str(end) for link in links_named(service.topology, name) for end in (link.a, link.b)}
    return sum(link["up"] + link["down"] for link in service.paths() if link["lower"] in ends)


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
@pytest.mark.parametrize("planner", ["optimal", "ecmp", "greedy"])
def test_a_drain_moves_the_elephants_on_it_and_no_others(topology: Topology, planner: str) -> None:
    service = PathService(topology, Options(planner))
    spine = topology.switches[-1].name
    hosts, _ = busy(service)
    before, on_it = ways(service), load(service, spine)
    assert on_it > 0
    change(hosts, drained(topology, spine))
    after = ways(service)
    assert load(service, spine) == 0
    hosts.check()
    moved = {ends for ends in before if before[ends] != after[ends]}
    on_spine = {ends for ends, path in before.items() if any(port.startswith(f"{spine}:") for port in path)}
    assert moved >= on_spine
    if planner != "greedy":  # which plans all anew
        assert moved == on_spine
    hosts.release(1, 3)
    hosts.announce(1, 77, 3)
    assert load(service, spine) == 0, "new elephants avoid it"
    change(hosts, Constraints())
    hosts.release(1, 77)
    for number in range(20):
        hosts.announce(1, 100 + number, 1 + number % (len(topology.hosts) - 1))
    assert service.status()["drained_links"] == []


def test_switches_hash_over_drained_links_and_not_over_dead_ones() -> None:
    """`Hosts.check` follows the ports over forwarding without the dead links, and so with the drained ones."""
    topology = fabric()
    service = PathService(topology)
    hosts, _ = busy(service)
    change(hosts, drained(topology, "spine2"))
    hosts.check()
    hosts.link(list(links_named(topology, "leaf1-spine1")), up=False)
    hosts.check()
    assert service.status()["drained_links"] != []
    for _ in range(500):
        service.prepare()
    hosts.link(list(links_named(topology, "leaf3-spine1")), up=False)
    hosts.check()
    assert load(service, "spine2") == 0
    hosts.link(list(links_named(topology, "leaf1-spine1")), up=True)
    hosts.check()
    assert load(service, "spine2") == 0


def test_elephants_without_another_path_get_random_ports() -> None:
    topology = fabric(spines=2)
    hosts, _ = busy(PathService(topology))
    change(hosts, drained(topology, "spine1", "spine2"))
    assert hosts.ports[1, address(topology, 5)] == []
    change(hosts, Constraints())
    hosts.check()


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
@pytest.mark.parametrize("planner", ["optimal", "ecmp", "greedy"])
def test_a_pinned_pair_takes_its_path_whatever_others_do(topology: Topology, planner: str) -> None:
    service = PathService(topology, Options(planner))
    spine = topology.switches[-1].name
    last = len(topology.hosts) - 1
    change(Hosts(service), pinned(topology, 0, last, spine))
    hosts, _ = busy(service)
    ends = address(topology, 0), address(topology, last)

    def on_it() -> bool:
        return any(port.startswith(f"{spine}:") for port in ways(service)[ends])

    assert on_it()
    for number in range(1, last):  # others come and go
        hosts.release(1, number)
        hosts.announce(2, 50 + number, last)
        assert on_it()
    hosts.check()
    change(hosts, replace(service.constraints, drained=drained(topology, spine).drained))
    assert not on_it(), "a drain goes before a pin"
    hosts.check()
    change(hosts, replace(service.constraints, drained=frozenset()))
    assert on_it()
    dead = list(links_named(topology, spine))
    for _ in range(500):
        service.prepare()
    hosts.link(dead, up=False)
    assert not on_it()
    hosts.check()
    hosts.link(dead, up=True)
    assert on_it()
    change(hosts, Constraints())
    assert on_it(), "what is pinned no more moves when there is reason to"
    hosts.check()


@pytest.mark.parametrize("ecmp_hash", [CrcHash("crc16")], ids=str)
def test_drains_and_pins_on_a_polarised_fabric(ecmp_hash: EcmpHash) -> None:
    topology = fabric(spines=2, parallel=2)
    service = PathService(topology, None, ecmp_hash)
    assert service.status()["polarised"]
    hosts, _ = busy(service)
    before = ways(service)
    ends = address(topology, 0), address(topology, 5)
    spine = next(port.split(":")[0] for port in before[ends] if port.startswith("spine"))
    other = "spine1" if spine == "spine2" else "spine2"
    change(hosts, pinned(topology, 0, 5, other))
    assert any(port.startswith(f"{other}:") for port in ways(service)[ends])
    assert sum(before[key] != path for key, path in ways(service).items()) == 1
    change(hosts, drained(topology, other))
    assert load(service, other) == 0


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
@pytest.mark.parametrize("planner", ["optimal", "ecmp", "greedy"])
def test_a_preview_is_what_then_happens_and_changes_nothing(topology: Topology, planner: str) -> None:
    service = PathService(topology, Options(planner))
    hosts, _ = busy(service)
    spine = topology.switches[-1].name
    last = len(topology.hosts) - 1
    wanted = replace(drained(topology, spine), pins=pinned(topology, 0, last, topology.switches[-2].name).pins)
    before = ways(service)
    preview = finished(service.preview(wanted))
    assert ways(service) == before
    change(hosts, wanted)
    after = ways(service)
    moves = {(move.pair.client.key[0], move.pair.peer.at[0]): move for move in preview.moves}
    assert moves
    for pair in preview.pairs:
        ends = pair.client.key[0], pair.peer.at[0]
        if ends in moves:
            assert [str(port) for path in moves[ends].before for port in path] == before[ends]
            assert [str(port) for path in moves[ends].after for port in path] == after[ends]
        assert (before[ends] != after[ends]) == (ends in moves)
    assert len(preview.pairs) == len(before)
    for rates_bps in (preview.rates_before_bps, preview.rates_after_bps):
        assert len(rates_bps) == len(before)
        assert min(rates_bps) > 0
    up, down = preview.loads_after
    links = {link["lower"]: link for link in service.paths()}
    assert up.sum() + down.sum() == sum(link["up"] + link["down"] for link in links.values())
    assert finished(service.preview(wanted)).loads_before.tolist() == preview.loads_after.tolist()


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_a_preview_is_right_after_elephants_have_come_and_gone(topology: Topology) -> None:
    service = PathService(topology, Options())
    hosts, sent = busy(service)
    for conn, peer in sent[::3]:
        hosts.release(conn, peer)
    for conn, peer in sent[::6]:
        hosts.announce(conn, peer, peer)
    before = ways(service)
    wanted = drained(topology, topology.switches[-1].name)
    moves = finished(service.preview(wanted)).moves
    change(hosts, wanted)
    after = ways(service)
    told = {(move.pair.client.key[0], move.pair.peer.at[0]): [str(port) for port in move.after[0]] for move in moves}
    assert told == {ends: path for ends, path in after.items() if before[ends] != path}


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
@pytest.mark.parametrize("fixed", [0, 3])
def test_events_between_two_steps_of_a_preview_do_not_change_it(
    topology: Topology, fixed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that cannot move are events too, with so many of them before."""
    monkeypatch.setattr(routing, "_COPIED", 7)
    service = PathService(topology, Options())
    hosts, sent = busy(service)
    last = len(topology.hosts) - 1
    before = [hosts.connect(host, instance=1, fixed=True) for host in range(fixed)]
    for conn in before:
        hosts.announce(conn, 100, last, size=0)
        hosts.announce(conn, 100, last)
        hosts.announce(conn, 101, last, size=0)
    wanted = drained(topology, topology.switches[-1].name)
    at_once = finished(service.preview(wanted))
    work = service.preview(wanted)
    next(work)
    for conn, peer in sent[::2]:
        hosts.release(conn, peer)
    for conn in before[1:]:
        hosts.release(conn, 100)
    begun = hosts.connect(0, instance=2, fixed=True)
    hosts.announce(begun, 200, last)
    change(hosts, drained(topology, topology.switches[-2].name))
    hosts.announce(begun, 200, last)
    hosts.disconnect(sent[0][0])
    in_steps = finished(work)
    assert in_steps.moves
    assert in_steps.moves == at_once.moves
    assert in_steps.rates_after_bps == at_once.rates_after_bps
    assert in_steps.loads_after.tolist() == at_once.loads_after.tolist()
    assert finished(service.preview(wanted)).pairs != at_once.pairs, "the events changed what is previewed next"


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_sequence_of_changes_keeps_ports_right(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(FABRICS))
    service = PathService(topology, Options(data.draw(st.sampled_from(["optimal", "ecmp"]))))
    hosts, _ = busy(service)
    uppers = [switch.name for switch in topology.switches if not topology.has_host(switch.name)]
    names = [name for name in uppers if not name.startswith("leaf")]
    for _ in range(6):
        kind = data.draw(st.sampled_from(["drain", "pin", "link", "prepare", "clear"]))
        some = data.draw(st.sampled_from(names))
        if kind == "drain":
            change(hosts, replace(service.constraints, drained=drained(topology, some).drained))
        elif kind == "pin":
            change(hosts, replace(service.constraints, pins=pinned(topology, 0, len(topology.hosts) - 1, some).pins))
        elif kind == "link":
            link = data.draw(st.sampled_from(links_named(topology, some)))
            hosts.link([link], up=link in service.constraints.dead)
        elif kind == "prepare":
            for _ in range(100):
                service.prepare()
        else:
            change(hosts, replace(service.constraints, drained=frozenset(), pins={}))
        if not any(row["path"] == [] for row in service.flows(1000)):
            hosts.check()
        if service.constraints.drained >= set(links_named(topology, some)):
            assert load(service, some) == 0
