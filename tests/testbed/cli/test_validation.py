# SPDX-License-Identifier: Apache-2.0
"""Calibration: the overhead of a message is found again in completion times that have it."""

from __future__ import annotations

import pytest

from testbed.cli.validation import message_delay_s
from testbed.progress import Silent
from testbed.simulate import fluid
from testbed.spec import Experiment, Spec, check


def made(delay_s: float, slices: int = 1) -> Experiment:
    return check(
        Spec.model_validate(
            {
                "name": "ring",
                "fabric": "fluid",
                "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}},
                "workload": {"kind": "ring_allreduce", "bytes": 409600, "slices": slices},
                "placement": {"rule": "cross_leaf"},
                "policies": [{"name": "pinned", "policy": "pinned"}, {"name": "lanes", "policy": "ecmp", "m": 4}],
                "seeds": 2,
                "fluid": {"message_delay_s": delay_s},
            }
        )
    )


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.05])
@pytest.mark.parametrize("slices", [1, 4])
def test_the_delay_of_a_message_is_found_again(delay_s: float, slices: int) -> None:
    runs = fluid.observe(made(delay_s, slices), Silent()).runs
    found = message_delay_s(made(0.0, slices), {(run.policy, run.seed): run.completion_s for run in runs})
    assert found == pytest.approx(delay_s, rel=0.02, abs=1e-9)


def test_no_delay_makes_up_for_a_model_that_is_too_slow() -> None:
    runs = fluid.observe(made(0.0), Silent()).runs
    assert message_delay_s(made(0.0), {(run.policy, run.seed): 0.9 * run.completion_s for run in runs}) == 0.0
