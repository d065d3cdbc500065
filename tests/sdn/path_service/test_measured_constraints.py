# SPDX-License-Identifier: Apache-2.0
"""Drains and pins by hand where hosts measure: lanes keep their ports until ports of the new paths were found."""

from __future__ import annotations

import pytest

from netmodel import LinuxL4Hash, Topology
from sdn.path_service.constraints import Constraints
from sdn.path_service.work import finished
from tests.sdn.path_service.sample import address
from tests.sdn.path_service.test_constraints import drained, load, pinned
from tests.sdn.path_service.test_measured import HOSTS, STEP_S, THREE_TIERS, TWO_TIERS, Probers, measured

FABRICS = [(TWO_TIERS, "spine2"), (THREE_TIERS, THREE_TIERS.switches[-1].name)]


def running(topology: Topology, **options: object) -> Probers:
    probers = measured(topology, LinuxL4Hash(), router_answers=0.0, **options)
    probers.answer = lambda host, peer, port, ttl, peer_port=4791: unlimited(probers, host, peer, port, ttl, peer_port)  # type: ignore[method-assign]
    for host in range(HOSTS):
        probers.connect(host)
    for host in range(HOSTS):
        probers.announce(host, (host + HOSTS // 2) % HOSTS)
    probers.run(1.0)
    assert not probers.misplaced()
    return probers


def unlimited(probers: Probers, *asked: object) -> object:
    probers._left.clear()
    return Probers.answer(probers, *asked)  # type: ignore[arg-type]


def change(probers: Probers, constraints: Constraints) -> None:
    probers.hear(probers.service.constrain(probers.now_s, constraints))


@pytest.mark.parametrize(("topology", "spine"), FABRICS, ids=["two tiers", "three tiers"])
@pytest.mark.parametrize("lanes", ["distinct", "together"])
def test_a_drained_switch_is_empty_when_ports_of_other_paths_were_found(
    topology: Topology, spine: str, lanes: str
) -> None:
    probers = running(topology, lanes=lanes)
    assert load(probers.service, spine) > 0
    preview = finished(probers.service.preview(drained(topology, spine)))
    change(probers, drained(topology, spine))
    assert all(len(ports) == 4 for ports in probers.ports.values()), "lanes keep ports meanwhile"
    for _ in range(300):
        if load(probers.service, spine) == 0:
            break
        probers.run(STEP_S)
    assert load(probers.service, spine) == 0
    assert not probers.misplaced()
    assert all(port.node != spine for port, some in probers.load().items() if some)
    links = [probers.service.cables.link_number(link) for link in drained(topology, spine).drained]
    assert preview.loads_before[:, links].any()
    assert not preview.loads_after[:, links].any()
    assert preview.moves
    assert all(move.before != move.after for move in preview.moves)
    assert all(port.node != spine for move in preview.moves for path in move.after for port in path)
    assert min(preview.rates_before_bps + preview.rates_after_bps) > 0
    change(probers, Constraints())
    probers.run(1.0)
    assert not probers.misplaced()
    assert load(probers.service, spine) > 0 or lanes == "together"


@pytest.mark.parametrize(("topology", "spine"), FABRICS, ids=["two tiers", "three tiers"])
def test_a_pinned_pair_gets_ports_of_its_path(topology: Topology, spine: str) -> None:
    probers = running(topology)
    half = HOSTS // 2
    peer = address(topology, half)
    change(probers, pinned(topology, 0, half, spine))
    probers.run(2.0)
    (flow,) = [flow for flow in probers.service.flows(1000) if flow["device"] == address(topology, 0)]
    paths = flow["lane_paths"] or [flow["path"]]
    assert all(any(port.startswith(f"{spine}:") for port in path) for path in paths)
    assert all(any(port.node == spine for port in probers.path(0, peer, port)) for port in probers.ports[0, peer])
    assert not probers.misplaced()
    change(probers, Constraints())
    probers.run(1.0)
    assert not probers.misplaced()
