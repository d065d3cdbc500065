# SPDX-License-Identifier: Apache-2.0
"""The data of a report's replay: a drawing of the fabric, and the utilisation of its links over each policy's run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from netmodel import PortRef
from testbed.analysis.link_history import utilisation
from testbed.analysis.metrics import PolicyResult, uplinks
from testbed.spec import Experiment

_SHORTEST_S = 0.05
"""Shortest interval of a measured utilisation, in seconds: over a few milliseconds it shows bursts only."""


def replay(experiment: Experiment, results: Sequence[PolicyResult]) -> dict[str, Any] | None:
    """What `replay.js` draws, as JSON; None where no run has a history.

    `lower` and `upper` name the switches of both tiers. `links` has, for each direction of a link, the index of its
    switch in either tier, and whether it leads up. `runs` has a run of each policy: its utilisation in percent by
    interval and link, and the end of each interval in seconds.
    """
    runs = [(result, run, run.history) for result in results for run in result.runs if run.history is not None]
    if not runs:
        return None
    up = {uplink.port: uplink for uplink in uplinks(experiment.topology)}
    lower = list(dict.fromkeys(uplink.port.node for uplink in up.values()))
    upper = list(dict.fromkeys(uplink.spine for uplink in up.values()))
    ports = [PortRef.parse(port) for port in runs[0][2].ports]
    links, rates_bps = [], []
    for port in ports:
        leads_up = port in up
        uplink = up[port if leads_up else experiment.topology.peer(port)]
        links.append([lower.index(uplink.port.node), upper.index(uplink.spine), int(leads_up)])
        rates_bps.append(float(uplink.rate_bps))
    shortest_s = 0.0 if experiment.spec.fabric_kind.modelled else _SHORTEST_S
    shown = []
    for result, run, history in runs:
        busy = utilisation(history, rates_bps, shortest_s)
        shown.append(
            {
                "name": result.name,
                "m": result.m,
                "seed": run.seed,
                "completion_s": run.completion_s,
                "until_s": busy.until_s,
                "percent": np.rint(100 * busy.shares).astype(int).tolist(),
            }
        )
    return {"lower": lower, "upper": upper, "links": links, "runs": shown}
