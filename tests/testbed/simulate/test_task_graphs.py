# SPDX-License-Identifier: Apache-2.0
"""Task graphs on the fluid model."""

import numpy as np
import pytest
from hypothesis import given

from testbed.simulate.task_graphs import LoadedGraph, run_fluid, run_ideal
from testbed.training import ideal
from testbed.training.hardware import Collective
from testbed.training.schedule import Exchange, Work, iteration
from testbed.training.strategies import Strategy
from testbed.training.tasks import TaskGraph
from tests.testbed.training.graphs import graphs

RATE_BPS = 8e9


@given(graphs(blocking=False))
def test_no_run_is_shorter_than_its_longest_chain_or_any_device_or_link(graph: TaskGraph) -> None:
    seconds = run_ideal(graph, RATE_BPS).max()
    slack = 1 - 1e-6
    assert seconds >= slack * graph.longest_chain_s(RATE_BPS)
    assert seconds >= slack * 8 * graph.sent_bytes().max() / RATE_BPS
    assert seconds >= slack * 8 * graph.received_bytes().max() / RATE_BPS
    assert seconds >= slack * graph.computed_s().max()


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_pipeline_takes_as_long_as_on_the_list_scheduler(chunks: int) -> None:
    strategy = Strategy(pipeline=4, microbatches=8, interleave=chunks, overlap_transfers=True)
    graph = iteration(strategy, Work(1.0, 2.0, 2, activations=Exchange(0.3e9)))
    assert run_ideal(graph, RATE_BPS).max() == pytest.approx(ideal.run(graph, RATE_BPS).seconds)


def test_transfers_on_one_link_share_it_and_engines_do_not() -> None:
    graph = TaskGraph(3)
    graph.send(0, 1, 1e9)
    graph.send(0, 2, 1e9)
    graph.compute(0, 1.0)
    graph.compute(0, 1.0)
    assert run_ideal(graph, RATE_BPS) == pytest.approx([2, 2, 1, 2])


def test_a_collective_over_a_shared_uplink_takes_longer_than_on_the_ideal_switch() -> None:
    """Two pairs of devices on two leaves; ring 0, 2, 1, 3 crosses the uplinks with every hop."""
    graph = TaskGraph(4)
    graph.collective(Collective("all_reduce", 1e9), (0, 2, 1, 3))
    leaf = (0, 0, 1, 1)

    def route(src: int, dst: int) -> tuple[int, ...]:
        return (src, 8 + leaf[src], 10 + leaf[dst], 4 + dst)

    uplinks = np.full(12, RATE_BPS)
    assert run_ideal(graph, RATE_BPS)[0] == pytest.approx(1.5)
    assert run_fluid(graph, uplinks, route)[0] == pytest.approx(3.0)


def test_an_all_to_all_sends_to_every_other_member() -> None:
    """Two of each member's three blocks of 0.25 GB cross the uplinks, which two members share."""
    graph = TaskGraph(4)
    graph.collective(Collective("all_to_all", 1e9), (0, 1, 2, 3))
    leaf = (0, 0, 1, 1)

    def route(src: int, dst: int) -> tuple[int, ...]:
        return (src, 4 + dst) if leaf[src] == leaf[dst] else (src, 8 + leaf[src], 10 + leaf[dst], 4 + dst)

    assert run_fluid(graph, np.full(12, RATE_BPS), route)[0] == pytest.approx(1.0)


def test_blocking_transfers_are_refused() -> None:
    graph = TaskGraph(2)
    graph.send(0, 1, 8, blocking=True)
    with pytest.raises(ValueError, match="does not compute"):
        run_ideal(graph, RATE_BPS)


def test_transfers_continue_on_links_to_which_they_are_moved() -> None:
    graph = TaskGraph(2)
    first = graph.send(0, 1, 1e9)
    graph.send(0, 1, 1e9, [first])
    loaded = LoadedGraph(graph, [RATE_BPS, RATE_BPS / 2], lambda src, dst, number: (0,))
    loaded.simulation.advance(0.5)
    assert loaded.unsent_bits() == pytest.approx([4e9, 0.0])
    loaded.move(np.array([[1], [1]], dtype=np.int32))
    assert loaded.unsent_bits() == pytest.approx([4e9, 0.0])
    loaded.simulation.advance(1.0)
    assert loaded.unsent_bits() == pytest.approx([2e9, 0.0])
    loaded.simulation.advance()
    assert loaded.ends_s() == pytest.approx([1.5, 3.5])
    assert loaded.unsent_bits() == pytest.approx([0.0, 0.0])
