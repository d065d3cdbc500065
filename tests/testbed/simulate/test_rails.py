# SPDX-License-Identifier: Apache-2.0
"""Rails and HB domains on the models: hosts with two NICs, and a rail that dies in a run."""

from __future__ import annotations

from typing import Any

import pytest

from netmodel import PortRef, SpecError
from testbed.research.papers.rail_only import times
from testbed.spec import Experiment, Spec, check
from tests.testbed.experiments import first_of
from tests.testbed.simulate.small import observe

X, Y, SIZE = 4, 3, 1_200_000
RAIL, HB = 2_500_000, 10_000_000
GRID = times.Grid(X, Y, HB, RAIL)


def on_rails(fabric: str, kind: str, /, **changes: Any) -> Experiment:
    document = {
        "name": "rails",
        "fabric": fabric,
        "topology": {"rail_only": {"domains": Y, "gpus_per_domain": X, "rail_rate": RAIL, "hb_rate": HB}},
        "workload": {"kind": kind, "gpus_per_domain": X, "bytes": SIZE},
        "local_nic": "nic1",
        "policies": [{"name": "ecmp", "policy": "ecmp"}],
        "path_mtu": 4096,
        **changes,
    }
    return check(Spec.model_validate(document))


def completion_s(experiment: Experiment) -> float:
    return observe(experiment).runs[0].completion_s


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
@pytest.mark.parametrize("kind", ["hierarchical_allreduce", "hierarchical_allgather", "rail_alltoall"])
def test_hosts_send_by_the_nic_of_the_network_that_they_share(fabric: str, kind: str) -> None:
    made = on_rails(fabric, kind)
    (run,) = observe(made).runs
    assert first_of(made).ideal_s() < run.completion_s < 1.07 * first_of(made).ideal_s()
    first = first_of(made)
    for lane in run.lanes:
        (peer,) = (rank for rank in range(X * Y) for nic in (0, 1) if first.address(rank, nic) == lane.lane.peer)
        nic, _ = first.nics_between(lane.rank, peer)
        assert (lane.lane.local, lane.lane.peer) == (
            first.address(lane.rank, nic),
            first.address(peer, nic),
        )


@pytest.mark.parametrize("kind", ["hierarchical_allreduce", "rail_alltoall"])
def test_a_rail_that_dies_is_carried_by_the_others(kind: str) -> None:
    """A rail that dies later costs less."""
    whole_s = completion_s(on_rails("fluid", kind))
    early, late = (on_rails("fluid", kind, events=[{"at_s": at_s, "kill": "rail2"}]) for at_s in (0.0, 0.45 * whole_s))
    assert 1.01 * whole_s < completion_s(late) < completion_s(early) < 2.2 * whole_s
    (run,) = observe(early).runs
    sent = {load.port: load.tx_bytes for load in run.links}
    assert all(count == 0 for port, count in sent.items() if PortRef.parse(port).node == "rail2")
    assert [event.what for event in run.events] == ["kill rail2"]


def test_both_directions_of_a_pair_take_one_live_rail() -> None:
    made = on_rails("fluid", "hierarchical_allreduce")
    plan = first_of(made).detours(["rail2"])
    assert set(plan.ways) == {(f"d{a}g2", f"d{b}g2") for a in range(1, Y + 1) for b in range(1, Y + 1) if a != b}
    for (src, dst), (_, x, y, _) in plan.ways.items():
        assert plan.ways[dst, src] == (dst, y, x, src)
        assert (x[:2], y[:2]) == (src[:2], dst[:2])
        assert x[2:] == y[2:] != "g2"
    src, x, y, dst = plan.ways["d1g2", "d2g2"]
    rail = f"rail{x[-1]}"
    assert [port.node for port in plan.path(made.topology, src, dst)] == [src, "hb1", x, rail, y, "hb2"]
    with pytest.raises(ValueError, match="no live rail joins d1g1 and d2g1"):
        first_of(made).detours([f"rail{rail}" for rail in range(1, X + 1)])


@pytest.mark.parametrize(
    ("fabric", "changes", "expected"),
    [
        ("fluid", {"events": [{"at_s": 0, "kill": "rail9"}]}, "has no switch rail9"),
        ("fluid", {"events": [{"at_s": 0, "kill": "hb1"}]}, "while hb1 is dead; kill switches of rails"),
        ("packet", {"events": [{"at_s": 0, "kill": "rail1"}]}, "nor kill switches; use fluid"),
        (
            "fluid",
            {"events": [{"at_s": n, "kill": f"rail{n}"} for n in range(1, X + 1)]},
            "no live rail joins d1g1 and d2g1",
        ),
    ],
)
def test_kills_without_a_substitute_are_refused(fabric: str, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises((SpecError, ValueError), match=expected):
        on_rails(fabric, "hierarchical_allreduce", **changes)


JOINED = {
    "rail_optimised": {"domains": 4, "gpus_per_domain": X, "rail_rate": RAIL, "hb_rate": HB, "spines": 2},
    "rail_only": {"domains": 4, "gpus_per_domain": X, "rail_rate": RAIL, "hb_rate": HB, "spines": 2},
}
"""Fabrics with two leaves for each rail and spines, so that the planners serve them."""


def hb_bytes(experiment: Experiment) -> dict[str, int]:
    """By port of the HB domains' switches: the bytes that it sent."""
    (run,) = observe(experiment).runs
    return {load.port: load.tx_bytes for load in run.links if load.port.startswith("hb")}


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "controller", "elephant_bytes": 1},
        {"policy": "source_routing", "uplinks": {"rail1l1": {1: 3}}},
    ],
    ids=lambda policy: str(policy["policy"]),
)
def test_policies_leave_traffic_of_hb_domains_there(fabric: str, kind: str, policy: dict[str, Any]) -> None:
    topology = {kind: {**JOINED[kind], "leaves_per_rail": 2}}
    plain, planned = (
        on_rails(fabric, "hierarchical_allreduce", topology=topology, policies=[{"name": "it", **options}])
        for options in ({"policy": "ecmp"}, policy)
    )
    assert hb_bytes(planned) == hb_bytes(plain)
    assert min(hb_bytes(planned).values()) > 0
    assert completion_s(planned) < 1.07 * completion_s(plain)
