# SPDX-License-Identifier: Apache-2.0
"""Jobs that share a fabric: their speeds and fairness. Pure."""

from collections.abc import Sequence

from testbed.analysis.flows import RunFlows
from testbed.analysis.metrics import balance
from testbed.analysis.observations import RunRecord


def speeds(flows: RunFlows) -> list[float]:
    """For each job, its ideal time alone divided by its completion time. 1 is optimal."""
    jobs = zip(flows.instance.experiment.jobs, flows.run.jobs, strict=True)
    return [flows.instance.ideal_s(job) / record.completion_s for job, record in jobs]


def fairness(flows: RunFlows) -> float:
    """Jain's fairness index of the jobs' speeds: 1 when all slow down equally, 1 / n when one of n gets everything."""
    return balance(speeds(flows)).jain


def slowdowns(runs: Sequence[RunRecord], reference: Sequence[RunRecord]) -> list[float]:
    """Completion times relative to the runs in `reference` with the same seed. Other seeds are left out."""
    times = {run.seed: run.completion_s for run in reference}
    return [run.completion_s / times[run.seed] for run in runs if run.seed in times]
