# SPDX-License-Identifier: Apache-2.0
"""Task graphs in phases on a Clos: steps of collectives, and plans when jobs begin and end communication."""

from __future__ import annotations

import numpy as np
import pytest

from sdn.planners import Clos, Commodities, Plan, optimal
from testbed.simulate.phases import run_phases
from testbed.training.hardware import Collective, Kind
from testbed.training.tasks import Phase, TaskGraph

FABRIC = Clos.of(4, 4, 4, 8e9)
RATE_BPS = 8e9


def one_phase(kind: Kind, members: tuple[int, ...]) -> TaskGraph:
    graph = TaskGraph(FABRIC.nics)
    begin = graph.compute_together(members, 0.5)
    graph.phases.append(Phase(0, begin, graph.join([graph.collective(Collective(kind, 1e9), members, [begin])])))
    return graph


@pytest.mark.parametrize(("kind", "steps"), [("all_reduce", 6), ("all_gather", 3), ("reduce_scatter", 3)])
def test_a_ring_takes_its_steps_one_after_the_other(kind: Kind, steps: int) -> None:
    found = run_phases(FABRIC, one_phase(kind, (0, 4, 8, 12)), optimal)
    assert found.message_s[0] == pytest.approx(np.full(4 * steps, 0.25))
    assert found.phase_s[0] == pytest.approx([steps / 4])
    assert found.simulation.now_s == pytest.approx(0.5 + steps / 4)
    assert found.plans == 1


def test_an_all_to_all_sends_to_all_at_once() -> None:
    found = run_phases(FABRIC, one_phase("all_to_all", (0, 4, 8, 12)), optimal)
    assert found.message_s[0] == pytest.approx(np.full(12, 0.75))


def test_jobs_are_planned_whenever_the_set_of_those_that_communicate_changes() -> None:
    graph = TaskGraph(FABRIC.nics)
    for job, (delay_s, nics) in enumerate([(0.0, (0, 4)), (0.5, (1, 5))]):
        last = graph.join((), delay_s=delay_s)
        for _ in range(2):
            begin = graph.compute_together(nics, 0.25, [last])
            sent = graph.collective(Collective("all_reduce", 1e9), nics, [begin])
            last = graph.join([sent])
            graph.phases.append(Phase(job, begin, last))
    planned: list[tuple[int, ...]] = []

    def planner(fabric: Clos, commodities: Commodities) -> Plan:
        planned.append(tuple(np.unique(commodities.job).tolist()))
        return optimal(fabric, commodities)

    found = run_phases(FABRIC, graph, planner)
    # Job 0 sends from 0.25 to 1.25 and from 1.5 to 2.5, job 1 from 0.75 to 1.75 and from 2 to 3.
    assert planned[1:] == [(0,), (0, 1), (1,), (0, 1), (0,), (0, 1), (1,)]
    assert found.plans == len(planned) - 1
    assert [own.tolist() for own in found.phase_s] == [pytest.approx([1.0, 1.0])] * 2


def test_what_is_sent_belongs_to_a_phase() -> None:
    graph = one_phase("all_reduce", (0, 4))
    graph.send(0, 4, 1e9)
    with pytest.raises(ValueError, match="task 3 sends, but no phase of its job has begun"):
        run_phases(FABRIC, graph, optimal)
    with pytest.raises(ValueError, match="no task sends anything"):
        run_phases(FABRIC, TaskGraph(FABRIC.nics), optimal)
