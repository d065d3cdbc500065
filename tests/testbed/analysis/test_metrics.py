# SPDX-License-Identifier: Apache-2.0
"""Numbers from observations."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.analysis import metrics
from testbed.analysis.flows import check_flows, flows_of
from testbed.analysis.metrics import Balance, balance
from testbed.analysis.observations import Observations
from tests.testbed.experiments import experiment
from tests.testbed.run.fake_fabric import made_up


def test_balance_of_known_loads() -> None:
    assert balance([5, 5, 5, 5]) == Balance(1.0, 1.0)
    assert balance([4, 0, 0, 0]) == Balance(4.0, 0.25)
    assert balance([0, 0]) == Balance(1.0, 1.0)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_balance_stays_in_its_bounds(loads: list[int]) -> None:
    found = balance(loads)
    assert 1 - 1e-9 <= found.max_over_mean <= len(loads) + 1e-9
    assert 1 / len(loads) - 1e-9 <= found.jain <= 1 + 1e-9


def test_uplinks_are_all_leaf_to_spine_links_in_order(tmp_path: Path) -> None:
    links = metrics.uplinks(experiment(tmp_path).topology)
    assert [str(link.port) for link in links] == ["leaf1:3", "leaf1:4", "leaf2:3", "leaf2:4"]
    assert [link.spine for link in links] == ["spine1", "spine2", "spine1", "spine2"]


def test_steps_end_with_their_last_rank(tmp_path: Path) -> None:
    run = made_up(experiment(tmp_path)).runs[0].model_copy(update={"step_finished_s": [[1.0, 4.0], [2.0, 3.0]]})
    assert metrics.step_durations_s(run) == [2.0, 2.0]


def test_throughput_is_the_growth_between_samples(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    run = made_up(made).runs[0]
    points = metrics.goodput_bps(run)
    carried = sum(rate * width for (_, rate), width in zip(points, [0.25, 0.25, 0.5], strict=True))
    assert carried * run.completion_s / 8 == pytest.approx(sum(run.samples[-1].tx_bytes.values()))


def test_flows_that_went_as_predicted_match(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    checks = check_flows(made, flows_of(made, made_up(made)))
    assert len(checks) == 2 * 2 * 4
    assert all(check.checked and check.matched and check.tx_bytes == 10_000 for check in checks)


def test_a_flow_that_went_elsewhere_does_not_match(tmp_path: Path) -> None:
    made = experiment(tmp_path, seeds=1)
    first, *others = made_up(made).runs
    moved = first.seen[0].model_copy(update={"ports": ["leaf1:3", "leaf1:4"]})
    first = first.model_copy(update={"seen": [moved, *first.seen[1:]]})
    checks = check_flows(made, flows_of(made, Observations(runs=[first, *others])))
    assert [check.matched for check in checks].count(False) == 1


def test_an_unobserved_flow_is_not_checked(tmp_path: Path) -> None:
    made = experiment(tmp_path, seeds=1)
    blind = [run.model_copy(update={"seen": []}) for run in made_up(made).runs]
    assert not any(check.checked for check in check_flows(made, flows_of(made, Observations(runs=blind))))


def test_a_flow_seen_in_an_earlier_run_counts_as_seen(tmp_path: Path) -> None:
    """The datapath's table keeps flows, and the runner reports each of them once."""
    made = experiment(tmp_path, seeds=1, policies=[{"name": "a", "policy": "ecmp"}])
    (run,) = made_up(made).runs
    checks = check_flows(made, flows_of(made, Observations(runs=[run, run.model_copy(update={"seen": []})])))
    assert len(checks) == 8
    assert all(check.matched for check in checks)


def test_flows_beyond_the_counters_are_checked_too(tmp_path: Path) -> None:
    made = experiment(tmp_path, seeds=1)
    silent = [run.model_copy(update={"lanes": []}) for run in made_up(made).runs]
    checks = check_flows(made, flows_of(made, Observations(runs=silent)))
    assert {check.tx_bytes for check in checks} == {0}
    assert all(check.matched for check in checks)


def test_predicted_loads_are_the_bytes_of_the_flows(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    links = metrics.uplinks(made.topology)
    for flows in flows_of(made, made_up(made)):
        predicted = flows.predicted_loads(link.port for link in links)
        assert sum(predicted) == 4 * 10_000  # every hop of the ring crosses leaves
        assert [round(load * 1.01) for load in predicted] == metrics.loads(flows.run, links)
