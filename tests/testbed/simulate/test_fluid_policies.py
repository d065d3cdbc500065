# SPDX-License-Identifier: Apache-2.0
"""Policies of the fluid fabric, lanes that move and degraded links: closed forms and invariants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.analysis.observations import RunRecord
from testbed.analysis.results import ideal_of
from testbed.policies import OURS
from testbed.spec import Experiment
from tests.testbed.simulate.small import LAST_S, PACKET_S, RATE_BPS, WIRE_S, document, observe, small


def made(*policies: dict[str, Any], **changes: Any) -> Experiment:
    named = [{"name": f"p{number}", **policy} for number, policy in enumerate(policies)]
    return small("fluid", policies=named, **changes)


def runs(experiment: Experiment) -> list[RunRecord]:
    return list(observe(experiment).runs)


def completion_s(policy: str, m: int = 1, **changes: Any) -> float:
    return runs(made({"policy": policy, "m": m}, **changes))[0].completion_s


def test_spraying_over_all_paths_is_limited_by_host_links_only() -> None:
    assert completion_s("spraying") == pytest.approx(WIRE_S + LAST_S)


def test_spraying_is_limited_by_its_slowest_path() -> None:
    """Half of the data of two hosts crosses each spine, so their sum is twice the rate of the slow uplink."""
    slow = [{"at_s": 0.0, "degrade": "leaf1:3", "part": 0.25}]
    assert completion_s("spraying", events=slow) == pytest.approx(WIRE_S / 0.25 + LAST_S)


def test_a_link_is_degraded_until_it_is_restored() -> None:
    events = [{"at_s": 0.0, "degrade": "leaf1:3", "part": 0.5}, {"at_s": WIRE_S / 2, "mend": "leaf1:3"}]
    topology = {"leaf_spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 1, "host_rate": "10 Mbit/s"}}
    events = [{**event, **{key: "leaf1:2" for key in ("degrade", "mend") if key in event}} for event in events]
    took = completion_s("ecmp", topology=topology, events=events)
    assert took == pytest.approx(1.25 * WIRE_S + LAST_S)


@pytest.mark.parametrize("policy", ["oblivious", "qp_scaling"])
def test_one_entropy_is_flow_level_ecmp(policy: str) -> None:
    flow, same = made({"policy": "ecmp"}, seeds=5), made({"policy": policy}, seeds=5)
    assert [run.completion_s for run in runs(same)] == pytest.approx([run.completion_s for run in runs(flow)])


def test_a_paced_lane_does_not_use_rate_that_others_leave() -> None:
    """Pacing makes no difference on equal paths; beside a slow path, unpaced lanes use the rate that it leaves."""
    topology = {"leaf_spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 1, "host_rate": "10 Mbit/s"}}
    slow = [{"at_s": 0.0, "degrade": "leaf1:2", "part": 0.25}]
    for paced, events, rate in ((True, [], 1.0), (False, slow, 0.25), (True, slow, 0.25)):
        policy = {"policy": "ecmp", "m": 4, "paced": paced}
        took = runs(made(policy, topology=topology, events=events))[0].completion_s
        assert took == pytest.approx(WIRE_S / rate + 3 * PACKET_S + LAST_S)
    spread = {"leaf_spine": {"leaves": 2, "spines": 4, "hosts_per_leaf": 1, "host_rate": "10 Mbit/s"}}
    slow = [{"at_s": 0.0, "degrade": port, "part": 0.1} for port in ("leaf1:2", "leaf2:2")]
    free, held = (
        runs(made({"policy": "ecmp", "m": 8, "paced": paced}, topology=spread, events=slow)) for paced in (False, True)
    )
    assert free[0].completion_s == pytest.approx(WIRE_S + 7 * PACKET_S + LAST_S)
    assert held[0].completion_s > 1.02 * free[0].completion_s


def test_queue_pairs_of_one_connection_share_its_hosts_link() -> None:
    took = completion_s("qp_scaling", 2, placement={"rule": "cross_leaf", "ranks": 2})
    assert took == pytest.approx(WIRE_S + PACKET_S + LAST_S)


def test_fixed_parts_wait_for_the_slow_path_and_pulling_lanes_do_not() -> None:
    """Two paths, one with a quarter of the rate: equal parts by queue pair, or lanes that share the message."""
    topology = {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 1, "host_rate": "10 Mbit/s"}}
    slow = [{"at_s": 0.0, "degrade": "leaf1:2", "part": 0.25}]
    for seed in range(20):  # until lanes of both hosts take different spines
        both = made(
            {"policy": "ecmp", "m": 2}, {"policy": "qp_scaling", "m": 2}, topology=topology, events=slow, seeds=[seed]
        )
        pulled, parts = runs(both)
        spines = {load.port: load.tx_bytes for load in parts.links}
        if len({spines[port] for port in ("leaf1:2", "leaf1:3", "leaf2:2", "leaf2:3")}) == 1:
            break
    else:
        pytest.fail("no seed has disjoint lanes")
    last_s = PACKET_S + LAST_S
    assert pulled.completion_s == pytest.approx(WIRE_S + last_s)  # a quarter and three quarters
    assert parts.completion_s == pytest.approx(WIRE_S / 2 / 0.25 + last_s)


@pytest.mark.parametrize(("policy", "m"), [("adaptive", 4), ("recycled", 4), ("plb", 1)])
def test_moving_lanes_leave_full_and_slow_paths(policy: str, m: int) -> None:
    """Messages take many round trips, so lanes have time to find free paths."""
    experiment = made(
        {"policy": "ecmp", "m": m},
        {"policy": policy, "m": m},
        topology={"leaf_spine": {"leaves": 4, "spines": 4, "hosts_per_leaf": 4, "host_rate": "10 Mbit/s"}},
        workload={**document("fluid")["workload"], "bytes": 4096 * 500},
        events=[{"at_s": 0.0, "degrade": "leaf1:5", "part": 0.5}],
        seeds=4,
    )
    found = runs(experiment)
    stays, moves = ([run.completion_s for run in found if run.policy == name] for name in ("p0", "p1"))
    assert sum(moves) < 0.9 * sum(stays)


@given(
    policy=st.sampled_from(
        [
            *(name for name, kind in OURS.items() if kind.lacking == {"mininet", "softroce"}),
            "qp_scaling",
            "adaptive",
            "ecmp",
        ]
    ),
    m=st.integers(1, 6),
    seed=st.integers(0, 1000),
    part=st.floats(0.05, 0.95),
    collective=st.sampled_from(["ring", "tree"]),
    cut=st.booleans(),
)
def test_no_link_is_overloaded_and_nothing_is_lost(
    policy: str, m: int, seed: int, part: float, collective: str, cut: bool
) -> None:
    event = {"cut": "leaf1:3"} if cut else {"degrade": "leaf1:3", "part": part}
    experiment = made(
        {"policy": policy, "m": m},
        workload={"kind": "snapshot", "collective": collective, "bytes": 4096 * 40, "slices": 1},
        events=[{"at_s": 0.01, **event}],
        seeds=[seed],
    )
    run = runs(experiment)[0]
    assert run.completion_s >= ideal_of(experiment)
    for load in run.links:
        assert 8 * load.tx_bytes <= RATE_BPS * run.completion_s * (1 + 1e-6) + 8
    sent = sum(entry.lane.tx_bytes for entry in run.lanes)
    assert sent == pytest.approx(sum(flow.bytes for flow in run.flows), rel=1e-6, abs=len(run.lanes))
