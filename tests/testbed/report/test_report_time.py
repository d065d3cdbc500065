# SPDX-License-Identifier: Apache-2.0
"""The processor time of a report beside that of its simulation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.analysis import results
from testbed.analysis.observations import Observations
from testbed.cli.outcome import evaluate
from testbed.spec import Experiment, Spec, check
from tests.testbed.simulate.small import observe

pytestmark = pytest.mark.long


def training(iterations: int, *, replicas: int, rule: str, **fabric: int) -> Experiment:
    """GPT-3 with 64 ranks a replica, on 8 lanes."""
    document = {
        "name": "training",
        "fabric": "fluid",
        "topology": {"leaf_spine": {**fabric, "host_rate": "100 Gbit/s"}},
        "workload": {"kind": "training", "iterations": iterations, "models": [{"model": "gpt3", "data": replicas}]},
        "placement": {"rule": rule, "ranks": 64 * replicas},
        "policies": [{"name": "paralet", "policy": "ecmp", "m": 8}],
    }
    return check(Spec.model_validate(document))


def small(iterations: int) -> Experiment:
    return training(iterations, replicas=2, rule="random", leaves=8, spines=16, hosts_per_leaf=16)


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first report of a process also takes imports, and fonts of the figures."""
    timed(small(1), tmp_path_factory.mktemp("first"), enough=math.inf)


def timed(experiment: Experiment, folder: Path, enough: float = 0.0) -> tuple[float, float]:
    """Processor time in seconds of the simulation, and of the report: the lesser of two.

    What else runs on the machine can only add to it. A report that takes less than the part `enough` of the simulation
    is not repeated.
    """
    seen = list[Observations]()
    simulated_s = _cpu_s(lambda: seen.append(observe(experiment)))
    results.prepare(folder)
    report_s = _cpu_s(lambda: evaluate(experiment, seen[0], folder))
    if report_s >= enough * simulated_s:
        report_s = min(report_s, _cpu_s(lambda: evaluate(experiment, seen[0], folder)))
    return simulated_s, report_s


def test_a_report_takes_under_a_fifth_of_what_further_iterations_take_to_simulate(tmp_path: Path) -> None:
    """A report of one iteration has a fixed part, its figures; what is asserted is what 15 more iterations add."""
    (short_s, short_report_s), (long_s, long_report_s) = (timed(small(n), tmp_path / str(n)) for n in (1, 16))
    assert long_report_s - short_report_s < (long_s - short_s) / 5


def test_a_report_takes_under_a_fifth_of_two_iterations_of_1664_ranks(tmp_path: Path) -> None:
    """All of a report, of 36,608 lanes and 6,144 ports."""
    large = training(2, replicas=26, rule="in_order", leaves=64, spines=32, hosts_per_leaf=32)
    simulated_s, report_s = timed(large, tmp_path / "2", enough=1 / 5)
    assert report_s < simulated_s / 5


def _cpu_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
