# SPDX-License-Identifier: Apache-2.0
"""The spines of each job, and the links that jobs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.analysis.flows import RunFlows
from testbed.analysis.link_sharing import sharing
from tests.testbed.experiments import experiment, first_of
from tests.testbed.run.fake_fabric import made_up

TOPOLOGY = {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "100 Mbit/s"}}


@pytest.mark.parametrize(("policy", "jobs_by_spine"), [("vclos", [1, 1]), ("source_routing", [2, 2])])
def test_jobs_of_a_virtual_clos_share_no_spine(tmp_path: Path, policy: str, jobs_by_spine: list[int]) -> None:
    """h1 and h4 are one job, h2 and h3 the other: by ingress port h1 and h3 both go by spine1, h2 and h4 by spine2."""
    made = experiment(
        tmp_path,
        topology=TOPOLOGY,
        placement={"hosts": ["h1", "h4", "h2", "h3"]},
        jobs=2,
        policies=[{"name": "ecmp", "policy": "ecmp"}],
        seeds=1,
    )
    (run,) = made_up(made).runs
    steered = experiment(
        tmp_path,
        topology=TOPOLOGY,
        placement={"hosts": ["h1", "h4", "h2", "h3"]},
        jobs=2,
        policies=[{"name": "it", "policy": policy}],
        seeds=1,
    )
    first = first_of(made)
    lanes = [
        entry.model_copy(update={"lane": entry.lane.model_copy(update={"peer": first.address(entry.rank ^ 1)})})
        for entry in run.lanes
    ]
    run = run.model_copy(update={"policy": "it", "lanes": lanes, "strays": {"leaf1:1": 2}})
    found = sharing(RunFlows(first_of(steered), run))
    assert [len(jobs) for jobs in found.by_spine.values()] == jobs_by_spine
    assert (found.links, found.most_flows, found.shared_links, found.strays) == (8, 1, 0, 2)
