# SPDX-License-Identifier: Apache-2.0
"""What runs sent, for the words of arrangements about them. Pure."""

from collections.abc import Iterable, Iterator

from testbed.analysis.observations import RunRecord
from testbed.arrangements import RunTraffic
from testbed.spec import Experiment


def traffic_of(experiment: Experiment, runs: Iterable[RunRecord]) -> Iterator[RunTraffic]:
    """The traffic of each run. It is made one run at a time, because schedules are large."""
    for run in runs:
        placed = experiment.at(run.seed)
        decided = placed.path_arrangement is not None
        yield RunTraffic(
            policy=run.policy,
            sent={(placed.hosts[flow.src], placed.hosts[flow.dst]): flow.bytes for flow in run.flows},
            carried=placed.carried(placed.transfers(run.seed)) if decided else [],
            counted={load.port: load.tx_bytes for load in run.links},
        )
