# SPDX-License-Identifier: Apache-2.0
"""What runs sent, for the words of arrangements about them. Pure."""

from collections.abc import Iterable, Iterator

from testbed.analysis.flows import RunFlows
from testbed.arrangements import RunTraffic


def traffic_of(runs: Iterable[RunFlows]) -> Iterator[RunTraffic]:
    """The traffic of each run. It is made one run at a time, because schedules are large."""
    for run_flows in runs:
        instance, run = run_flows.instance, run_flows.run
        decided = instance.decided_paths is not None
        yield RunTraffic(
            policy=run.policy,
            sent={(instance.hosts[flow.src], instance.hosts[flow.dst]): flow.bytes for flow in run.flows},
            carried=instance.carried(instance.transfers) if decided else [],
            counted={load.port: load.tx_bytes for load in run.links},
        )
