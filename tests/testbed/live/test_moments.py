# SPDX-License-Identifier: Apache-2.0
"""Moments of running devices: rates, their history, and the events between two surveys."""

from __future__ import annotations

import json
from dataclasses import replace

from hostlib.stats import PathClient, Survey
from netmodel import OvsHash, PortRef, leaf_spine
from testbed.live.events import events
from testbed.live.fabric_view import FabricView
from testbed.live.link_counters import PortRates
from testbed.live.moments import HISTORY, Moments, as_json
from tests.testbed.live.snapshots import device, lane, survey

CLIENT = PathClient(True, 97.5, *range(2, 20))


def test_rates_have_a_history_of_bounded_length() -> None:
    moments = Moments(None)
    for second in range(2 * HISTORY):
        moment = moments.take(survey(device(lane(0, 1000 * second), time_s=float(second))), float(second))
        assert list(moment.history[0]) == [8000.0] * min(second, HISTORY)
    assert (moment.devices, moment.tx_bps) == (1, 8000.0)


def test_the_history_of_a_lane_survives_its_move_and_not_its_end() -> None:
    moments = Moments(None)
    moments.take(survey(device(lane(0, 0), time_s=0.0)), 0.0)
    moments.take(survey(device(lane(0, 1000), time_s=1.0)), 1.0)
    moved = moments.take(survey(device(lane(0, 500, qpn=7, port=60_000), time_s=2.0)), 2.0)
    assert list(moved.history[0]) == [8000.0, 4000.0]
    moments.take(survey(device(time_s=3.0)), 3.0)
    again = moments.take(survey(device(lane(0, 600), time_s=4.0)), 4.0)
    assert len(again.history[0]) == 1


def test_events_are_moves_timeouts_failures_and_path_services() -> None:
    before = device(lane(0), lane(1), lane(2), path_client=CLIENT)
    lanes = (lane(0, port=60_000, qpn=7, timeouts=9), lane(1, timeouts=1), lane(2), lane(3, timeouts=4))
    now = replace(
        before, lanes=lanes, messages=replace(before.messages, failed=7), path_client=replace(CLIENT, connected=False)
    )
    assert list(events(survey(before), survey(now))) == [
        "10.0.0.1 lane 0 to 10.0.0.2 moved from port 50000 to 60000",  # the new QP's timeouts are not new
        "10.0.0.1 lane 1 to 10.0.0.2 timed out",
        "10.0.0.1: 2 messages failed",
        "10.0.0.1 lost the path service",
    ]
    assert list(events(survey(now), survey(now))) == []


def test_plans_of_the_path_service_are_events() -> None:
    before = device(path_client=CLIENT)
    now = device(path_client=replace(CLIENT, assigns=CLIENT.assigns + 2, reverted=CLIENT.reverted + 1))
    assert list(events(survey(before), survey(now))) == [
        "10.0.0.1 took 2 plans of the path service",
        "10.0.0.1: lanes left their planned ports 1 time",
    ]


def test_processes_come_and_go() -> None:
    assert list(events(survey(device(), pid=1), survey(device(), pid=2))) == [
        "process 2 opened its first device",
        "process 1 has closed its devices",
    ]
    assert list(events(survey(device()), Survey((), (), (), ()), lambda pid: False)) == [
        "process 42 has ended, with 3 connections open at the last look"
    ]
    assert list(events(survey(device(connections=0)), Survey((), (), (), ()), lambda pid: False)) == [
        "process 42 has ended"
    ]


def test_json_has_lanes_and_loaded_links() -> None:
    topology = leaf_spine(leaves=2, spines=2, hosts_per_leaf=2, host_rate_bps=10**7)
    view = FabricView(topology, OvsHash())
    near, far = (str(topology.host(name).nics[0].address) for name in ("h1", "h3"))
    moments = Moments(view)
    for second in range(2):
        there = device(lane(0, 10_000 * second, peer=far), time_s=float(second), address=near)
        moment = moments.take(survey(there), float(second))
    update = json.loads(json.dumps(as_json(moment, view)))
    assert [(row["peer"], row["tx_bps"], row["port"]) for row in update["lanes"]] == [(far, 80_000.0, 50_000)]
    assert len(update["links"]) == 2  # up and down
    assert all(row["utilisation"] > 0 for row in update["links"])
    assert update["advice"].startswith("Busiest: ")
    assert as_json(Moments(None).take(Survey((), (), (), ()), 0.0), None) == {
        "lanes": [],
        "links": [],
        "advice": "",
        "events": [],
        "ports": [],
        "operations": [],
        "pinned": [],
        "unmapped": {},
    }


def test_measured_interfaces_that_are_no_known_ports_are_listed_once() -> None:
    topology = leaf_spine(leaves=2, spines=2, hosts_per_leaf=2, host_rate_bps=10**7)
    view = FabricView(topology, OvsHash())
    moments = Moments(view)
    names = {"Ethernet1/3/1": 5e6, "Ethernet1/4/1": 0.0, "Ethernet1/40/1": 1.0, "Vlan10": 9e6}
    ports = [PortRates("leaf1", name, bps, None, 0, None) for name, bps in names.items()]
    nothing = Survey((), (), (), ())
    first = moments.take(nothing, 0.0, ports)
    assert first.unmapped == {
        "leaf1 Ethernet1/40/1": "the topology has no link at such a port",
        "leaf1 Vlan10": "it is no port with a cable",
    }
    assert set(first.events) == {f"no load of links from {name}: {why}" for name, why in first.unmapped.items()}
    assert first.load is not None
    assert first.load.utilisation[view.link(PortRef("leaf1", 3))] == 0.5
    second = moments.take(nothing, 1.0, [*ports, PortRates("leaf7", "swp1", 1.0, None, 0, None)])
    assert second.events == ["no load of links from leaf7 swp1: its switch is not in the topology"]
    assert as_json(second, view)["unmapped"] == second.unmapped
