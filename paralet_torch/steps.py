# SPDX-License-Identifier: Apache-2.0
"""The loop of a training script, timed, and started by workload ``torch`` of an experiment where there is one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

STARTED_BY = "PARALET_STEPS"
"""Set to ``stdin`` by the agent of an experiment: it tells by a line on standard input when the loop begins."""


@dataclass(slots=True)
class Step:
    """One step. Set `loss`, and it is reported."""

    number: int
    """From 0; negative in the warm-up."""
    loss: float | None = None


def steps(count: int, warm_up: int = 1) -> Iterator[Step]:
    """The steps of a training loop: `warm_up` that are not measured, then `count` that are.

    ::

        for step in paralet_torch.steps(100):
            ...
            step.loss = loss.item()

    After each measured step every rank prints a line with a JSON object: ``step``, its ``loss``, the ``seconds`` it
    took and the time of its end, ``at_s``, of the monotonic clock.
    """
    for number in range(-warm_up, 0):
        yield Step(number)
    in_experiment = os.environ.get(STARTED_BY) == "stdin"
    if in_experiment:
        print(json.dumps({"ready": True}), flush=True)
        at_s = float(json.loads(sys.stdin.readline())["at_s"])
        time.sleep(max(0.0, at_s - time.monotonic()))
    began_s = time.monotonic()
    for number in range(count):
        step = Step(number)
        yield step
        ended_s = time.monotonic()
        report = {"step": number, "loss": step.loss, "seconds": ended_s - began_s, "at_s": ended_s}
        print(json.dumps(report), flush=True)
        began_s = ended_s
    if in_experiment:
        print(json.dumps({"done": True}), flush=True)
        sys.stdin.readline()  # the agent reads the device's counters
