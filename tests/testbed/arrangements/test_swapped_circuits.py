# SPDX-License-Identifier: Apache-2.0
"""Circuits that a swap has set stay as they are, whatever happens to cables later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.arrangements import FibreState
from testbed.arrangements.circuits import DirectCircuits
from testbed.run.events import after
from tests.testbed.experiments import experiment, first_of


@pytest.mark.parametrize(
    ("strides", "events"),
    [
        ([1, 3, 5], [{"cut": "ocs1:3"}, {"cut": "ocs3:3"}, {"swap": "ocs1:3"}, {"mend": "ocs3:3"}]),
        ([1, 3], [{"cut": "ocs1:3"}, {"swap": "ocs1:3"}, {"cut": "ocs2:3"}]),
    ],
    ids=["mend of a NIC that could not take the place", "cut of the NIC that took the place"],
)
def test_a_later_cut_or_mend_leaves_swapped_circuits_alone(
    tmp_path: Path, strides: list[int], events: list[dict[str, Any]]
) -> None:
    made = experiment(
        tmp_path,
        topology={"direct_connect": {"hosts": 8, "degree": len(strides), "rate": "10 Mbit/s"}},
        optical={"strides": strides},
        placement={"rule": "in_order"},
        policies=[{"name": "direct", "policy": "ecmp"}],
        seeds=1,
        fabric="fluid",
        events=[{"at_s": float(number), **event} for number, event in enumerate(events)],
    )
    (placed,) = first_of(made).arrangements
    assert isinstance(placed, DirectCircuits)
    states = [FibreState()]
    for event in made.spec.events:
        states.append(after(states[-1], event, made.cable))
    whole, swapped, last = (placed.after(state).setting.circuits for state in (states[0], states[-2], states[-1]))
    assert swapped != whole
    assert last == swapped
