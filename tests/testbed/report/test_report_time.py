# SPDX-License-Identifier: Apache-2.0
"""The processor time of a report beside that of its simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from testbed.analysis import results
from testbed.analysis.observations import Observations
from testbed.cli.outcome import evaluate
from testbed.spec import Experiment, Spec, check
from tests.testbed.simulate.small import observe


def training(iterations: int) -> Experiment:
    document = {
        "name": "training",
        "fabric": "fluid",
        "topology": {"leaf_spine": {"leaves": 8, "spines": 16, "hosts_per_leaf": 16, "host_rate": "100 Gbit/s"}},
        "workload": {"kind": "training", "iterations": iterations, "models": [{"model": "gpt3", "data": 2}]},
        "placement": {"rule": "random", "ranks": 128},
        "policies": [{"name": "paralet", "policy": "ecmp", "m": 8}],
    }
    return check(Spec.model_validate(document))


def test_a_report_takes_under_a_fifth_of_what_further_iterations_take_to_simulate(tmp_path: Path) -> None:
    """A report of one iteration has a fixed part, its figures; what is asserted is what 30 more iterations add."""

    def timed(iterations: int, repetitions: int = 3) -> tuple[float, float]:
        experiment, seen = training(iterations), list[Observations]()
        simulated_s = _cpu_s(lambda: seen.append(observe(experiment)))
        folder = tmp_path / str(iterations)
        results.prepare(folder)
        seen[0].save(folder / results.OBSERVATIONS)
        return simulated_s, median(_cpu_s(lambda: evaluate(experiment, folder)) for _ in range(repetitions))

    timed(1, repetitions=1)  # imports, and fonts of the figures
    (short_s, short_report_s), (long_s, long_report_s) = timed(1), timed(31)
    assert long_report_s - short_report_s < (long_s - short_s) / 5


def _cpu_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
