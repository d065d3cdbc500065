# SPDX-License-Identifier: Apache-2.0
"""Both models on three tiers and on planes: closed forms of the fluid model, and the packet simulation beside it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.analysis.results import ideal_of
from tests.testbed.simulate.small import HEADER_BYTES, PACKET_S, PACKETS, WIRE_BYTES, WIRE_S, observe, small

FAT_TREE: dict[str, Any] = {"fat_tree": {"k": 4, "host_rate": "10 Mbit/s"}}
CLOS: dict[str, Any] = {
    "clos": {
        "pods": 2,
        "leaves": 2,
        "aggs": 2,
        "cores_per_agg": 2,
        "hosts_per_leaf": 4,
        "host_rate": "10 Mbit/s",
        "core_rate": "10 Mbit/s",
    }
}
"""Oversubscribed: a leaf has four hosts and two uplinks."""
ACROSS = {"rule": "in_order"}
PINNED = [{"name": "pinned", "policy": "pinned"}]
HOPS_S = 5 * PACKET_S
"""Time for five switches to receive and forward the last packet of a flow between pods, in seconds."""


def changes(topology: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Half of the hosts are away from each host's partner, in another pod."""
    hosts = 16
    workload = {"kind": "permutation", "bytes": 4096 * PACKETS, "shift": hosts // 2, "slices": 1}
    return {"topology": topology, "placement": ACROSS, "workload": workload, **more}


def test_planned_flows_between_pods_take_the_serialisation_time() -> None:
    (run,) = observe(small("fluid", **changes(FAT_TREE, policies=PINNED))).runs
    assert [flow.completion_s for flow in run.flows] == pytest.approx([WIRE_S + HOPS_S] * 16)
    cores = {load.port: load.tx_bytes for load in run.links if load.port.startswith("core")}
    assert len(cores) == 16
    assert set(cores.values()) == {WIRE_BYTES}


def test_planned_flows_of_an_oversubscribed_fabric_share_it_evenly() -> None:
    (run,) = observe(small("fluid", **changes(CLOS, policies=PINNED))).runs
    assert [flow.completion_s for flow in run.flows] == pytest.approx([2 * WIRE_S + HOPS_S] * 16)


def test_delays_of_all_tiers_count() -> None:
    delayed = {"fat_tree": {**FAT_TREE["fat_tree"], "host_delay": "1 ms", "agg_delay": "2 ms", "core_delay": "4 ms"}}
    (run,) = observe(small("fluid", **changes(delayed, policies=PINNED))).runs
    assert run.completion_s == pytest.approx(WIRE_S + HOPS_S + 2 * 0.007)
    window = {"link_delay_s": 0, "window_bdp": 4}
    slow, plain = (
        observe(small("packet", **changes(topology, policies=PINNED, packet=window))).runs[0].completion_s
        for topology in (delayed, FAT_TREE)
    )
    assert slow - plain == pytest.approx(2 * 0.007, rel=0.1)


def test_ecmp_takes_the_time_of_its_most_loaded_link() -> None:
    runs = observe(small("fluid", **changes(FAT_TREE, seeds=6, policies=[{"name": "ecmp", "policy": "ecmp"}]))).runs
    most = []
    for run in runs:
        flows_on = max(load.tx_bytes for load in run.links) / WIRE_BYTES
        most.append(round(flows_on))
        # A flow on that link is never faster than its part, and may be slower where others take it elsewhere.
        assert run.completion_s >= most[-1] * WIRE_S
    assert max(most) > 2  # flows collide, or nothing is tested


@pytest.mark.parametrize("topology", [FAT_TREE, CLOS], ids=["fat tree", "clos"])
def test_packets_take_about_as_long_as_the_fluid_model_says(topology: dict[str, Any]) -> None:
    policies = [*PINNED, {"name": "paralet", "policy": "ecmp", "m": 8}]
    experiment = small("packet", **changes(topology, seeds=2, policies=policies))
    for run, flowing in zip(observe(experiment).runs, observe(experiment, "fluid").runs, strict=True):
        assert run.completion_s > ideal_of(experiment)
        assert run.completion_s == pytest.approx(flowing.completion_s, rel=0.15)
        assert [lane.lane.port for lane in run.lanes] == [lane.lane.port for lane in flowing.lanes]


def test_packets_that_do_not_collide_take_the_serialisation_time() -> None:
    (run,) = observe(small("packet", **changes(FAT_TREE, policies=PINNED))).runs
    assert (PACKETS + 5) * PACKET_S <= run.completion_s <= 1.02 * (PACKETS + 5) * PACKET_S
    data_bytes = PACKETS * (4096 + HEADER_BYTES)
    cores = [load for load in run.links if load.port.startswith("core")]
    assert all(data_bytes <= load.tx_bytes <= 1.02 * data_bytes and not load.dropped for load in cores)


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
@pytest.mark.parametrize(
    ("plane", "hosts"),
    [({"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}}, 4), (FAT_TREE, 16)],
    ids=["leaf spine", "fat tree"],
)
def test_traffic_of_a_nic_stays_in_its_plane_and_is_as_fast_as_without_others(
    fabric: str, plane: dict[str, Any], hosts: int
) -> None:
    (kind,) = plane
    workload = {"kind": "permutation", "bytes": 4096 * PACKETS, "shift": hosts // 2, "slices": 1}
    common: dict[str, Any] = {"workload": workload, "placement": ACROSS, "policies": PINNED}
    (alone,) = observe(small(fabric, topology=plane, **common)).runs
    planes = {kind: {**plane[kind], "planes": 2}}
    for nic, switches in (("nic0", "p1"), ("nic1", "p2")):
        (run,) = observe(small(fabric, topology=planes, nic=nic, **common)).runs
        assert run.completion_s == pytest.approx(alone.completion_s)
        own = f":{int(nic[-1]) + 1}"
        loaded = [load.port for load in run.links if load.tx_bytes]
        assert {port[:2] for port in loaded if not port.startswith("h")} == {switches}
        assert all(port.endswith(own) for port in loaded if port.startswith("h"))
