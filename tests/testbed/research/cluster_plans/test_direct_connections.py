# SPDX-License-Identifier: Apache-2.0
"""`paralet plan`: points of clusters whose hosts are connected directly, without switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from testbed.research.cluster_plans.all_to_all_circuits import Permutations
from testbed.research.cluster_plans.job import Job
from testbed.research.cluster_plans.points import Refused, cluster_of, points
from testbed.research.cluster_plans.prices import load_prices
from testbed.training.closed_form import estimate
from tests.testbed.research.cluster_plans.test_plan import MOE, SMALL, found


def test_direct_connections_are_as_fast_as_a_switch_for_rings_alone_and_need_no_switch() -> None:
    fabrics = [{"kind": "rail_only"}, {"kind": "topoopt"}]
    switched, direct = found(gpus=[64], fabrics=fabrics, strategies={"deepest_pipeline": 1})
    assert direct.iteration_s == pytest.approx(switched.iteration_s)
    assert direct.strategy == switched.strategy
    # For each of 64 NICs: the NIC, its transceiver, a fibre and a port of a panel.
    assert direct.network_usd == pytest.approx(64 * (1500 + 199 + 9 + 100))
    assert (direct.parts.switches, direct.leaf_failure_gpus, direct.label) == (0, 0, "topoopt K=8 400G")


def test_pipelines_share_the_nics_of_direct_connections() -> None:
    space = {"widest_tensor": 8, "zeros": [0], "microbatches": [1]}
    fabrics = [{"kind": "rail_only"}, {"kind": "topoopt"}]
    switched, direct = found(gpus=[512], model="gpt-175b", batch=512, fabrics=fabrics, strategies=space)
    assert switched.strategy.pipeline > 1
    assert direct.strategy.pipeline > 1
    assert direct.iteration_s > switched.iteration_s
    job = Job.model_validate({**SMALL, "model": "gpt-175b", "batch": 512})
    cluster = cluster_of(job, direct.fabric)
    shares = [(8 - 2 * each, each) for each in (1, 2, 3)]
    times = [
        estimate(job.transformer, direct.strategy, replace(cluster, ring_share=a / 8, chain_share=b / 8)).iteration_s
        for a, b in shares
    ]
    assert direct.iteration_s == pytest.approx(min(times))


def test_experts_share_the_nics_of_direct_connections() -> None:
    fabrics = [{"kind": "rail_only"}, {"kind": "topoopt"}]
    space, model = {"deepest_pipeline": 1, "widest_tensor": 1}, {**MOE, "layers": 24, "hidden": 4096}
    switched, direct = found(gpus=[64], model=model, fabrics=fabrics, strategies=space)
    assert (switched.strategy.expert, direct.strategy.expert) == (32, 32)
    assert direct.iteration_s > switched.iteration_s
    job = Job.model_validate({**SMALL, "model": model})
    times_s = [
        estimate(
            job.transformer,
            direct.strategy,
            replace(cluster_of(job, direct.fabric), ring_share=(8 - spent) / 16, all_to_all_load=Permutations(spent)),
        ).iteration_s
        for spent in range(1, 8)
    ]
    assert direct.iteration_s == pytest.approx(min(times_s))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpus": [8 * 1009]}, "1009 HB domains are more than a patch panel has ports, 1008"),
    ],
)
def test_what_direct_connections_cannot_carry_is_refused(changes: dict[str, Any], reason: str) -> None:
    job = Job.model_validate({**SMALL, "fabrics": [{"kind": "topoopt"}], **changes})
    (refused,) = list(points(job, load_prices()))
    assert isinstance(refused, Refused)
    assert refused.reason == reason


@pytest.mark.parametrize("key", ["radix", "tiers", "planes"])
def test_direct_connections_have_no_switches(key: str) -> None:
    with pytest.raises(ValueError, match="a fabric of kind topoopt has no switches; leave it out"):
        Job.model_validate({**SMALL, "fabrics": [{"kind": "topoopt", key: [2]}]})
