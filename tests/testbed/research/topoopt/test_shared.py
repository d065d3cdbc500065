# SPDX-License-Identifier: Apache-2.0
"""Clusters that jobs share: routes of fat-trees, contention in closed form, and when shards are set."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest

from testbed.research.topoopt.shared import FatTree, PlacedJob, QueuedJob, shared_iterations_s, starts_s
from testbed.training.hardware import Collective
from testbed.training.tasks import TaskGraph

RATE_BPS = 8e9


@pytest.mark.parametrize(("ports", "uplinks"), [(4, 2), (4, 1), (6, 3)])
def test_routes_use_the_links_of_every_tier_evenly(ports: int, uplinks: int) -> None:
    tree = FatTree(ports, RATE_BPS, uplinks)
    used: Counter[int] = Counter()
    for src, dst in permutations(range(tree.servers), 2):
        ways = {tuple(tree.route(src, dst, choice)) for choice in range(uplinks * ports // 2)}
        half = ports // 2
        same_edge, same_pod = src // half == dst // half, src // half**2 == dst // half**2
        assert len(ways) == (1 if same_edge else uplinks if same_pod else uplinks * half)
        assert {len(way) for way in ways} == {2 if same_edge else 4 if same_pod else 6}
        for choice in range(uplinks * half):
            way = tree.route(src, dst, choice)
            used.update(way)
            # A route back by the same choice takes the other direction of the same cables.
            size = tree.servers
            mirrored = [link + size if link // size % 2 == 0 else link - size for link in reversed(way)]
            assert mirrored == tree.route(dst, src, choice)
    for tier in range(6):
        counts = {used[link] for link in range(tier * tree.servers, (tier + 1) * tree.servers)}
        assert len(counts - {0}) == 1
        assert sum(used[link] > 0 for link in range(tier * tree.servers, (tier + 1) * tree.servers)) == (
            tree.servers if tier < 2 else tree.servers * uplinks * 2 // ports
        )


def ring_of(members: int) -> TaskGraph:
    graph = TaskGraph(members)
    graph.collective(Collective("all_reduce", 1e9), range(members))
    return graph


def test_jobs_contend_for_uplinks_only() -> None:
    """Two servers of one pod exchange with two of another: a ring of two sends 1 GB each way, which takes 1 s."""
    alone_s = 1.0
    near = [PlacedJob(ring_of(2), (0, 1), alone_s), PlacedJob(ring_of(2), (4, 5), alone_s)]
    for own in shared_iterations_s(near, FatTree(4, RATE_BPS, 1), seed=1):
        assert own == pytest.approx([1.0] * len(own))
    far = [PlacedJob(ring_of(2), (0, 4), alone_s), PlacedJob(ring_of(2), (1, 5), alone_s)]
    for own in shared_iterations_s(far, FatTree(4, RATE_BPS, 1), seed=1):
        assert own == pytest.approx([2.0] * len(own))


@pytest.mark.parametrize(
    ("seconds", "look_ahead", "starts"),
    [
        (10.0, False, [3.0, 16.0, 29.0]),
        (10.0, True, [3.0, 13.0, 23.0]),  # set while the job before runs
        (1.0, True, [3.0, 6.0, 9.0]),  # jobs are shorter than setting circuits, and a server has two ports
    ],
)
def test_look_ahead_hides_the_time_of_patch_panels_behind_longer_jobs(
    seconds: float, look_ahead: bool, starts: list[float]
) -> None:
    jobs = [QueuedJob(0.0, 2, seconds)] * 3
    assert starts_s(jobs, 2, 3.0, look_ahead=look_ahead) == starts


def test_a_job_takes_the_servers_that_are_free_first() -> None:
    jobs = [QueuedJob(0.0, 2, 10.0), QueuedJob(0.0, 2, 4.0), QueuedJob(1.0, 3, 1.0), QueuedJob(1.0, 1, 1.0)]
    # The third needs a server of the first, and the fourth does not overtake it.
    assert starts_s(jobs, 4, 0.0, look_ahead=True) == [0.0, 0.0, 10.0, 10.0]
    with pytest.raises(ValueError, match="a job on 5 servers does not fit on 4"):
        starts_s([QueuedJob(0.0, 5, 1.0)], 4, 0.0, look_ahead=True)
