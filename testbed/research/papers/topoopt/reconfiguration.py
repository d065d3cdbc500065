# SPDX-License-Identifier: Apache-2.0
"""OCS-reconfig and SiP-ML on a dedicated cluster (sections 5.3 and 5.7, Figures 11 and 17), on the fluid model.

The cluster has 32 servers, and for CANDLE the paper's 128: there a measurement costs 8 times as much. The strategy is
the shorter one of those that section 5.1 names. The paper measures every 50 ms at a latency of 10 ms, and does not
print the interval at others. Here it is five times the latency, and at least 1 ms to bound the time of a simulation.
"""

from dataclasses import replace
from itertools import product

from testbed.research.papers.ahead import Case, Remembered
from testbed.research.papers.topoopt.forwarding import SERVERS as PAPERS_SERVERS
from testbed.research.papers.topoopt.iterations import MODELS, SINGLE_PRECISION, fitting, job
from testbed.research.topoopt.estimates import Strategy
from testbed.research.topoopt.fabrics import direct
from testbed.research.topoopt.iterations import shortest_s, simulate_s
from testbed.research.topoopt.reconfigured import OCS, SIP_ML, Reconfiguration, iteration_s
from testbed.training.hardware import A100, Accelerator

SERVERS = 32
LATENCIES_S = (1e-6, 1e-3, 1e-2)
_SHORTEST_S = 1e-3


def ocs(latency_s: float, *, forwarding: bool) -> Reconfiguration:
    """OCS-reconfig with another latency."""
    return replace(OCS, latency_s=latency_s, period_s=max(5 * latency_s, _SHORTEST_S), forwarding=forwarding)


CLUSTERS = {model: PAPERS_SERVERS if model == "CANDLE" else SERVERS for model in MODELS}
"""Servers by model of Figure 11."""
MANY_TO_MANY = ("DLRM", "NCF")
"""Models whose iterations the paper finds no shorter on SiP-ML with faster links."""
DEDICATED = (None, ocs(1e-2, forwarding=True), SIP_ML)
"""TopoOpt, OCS-reconfig and SiP-ML of Figure 11."""
_ENDS = [ocs(latency_s, forwarding=forwarding) for latency_s in (1e-6, 1e-2) for forwarding in (True, False)]
KEPT = {said: replace(ocs(1e-2, forwarding=said == "with"), always=False) for said in ("with", "without")}
"""OCS-reconfig with and without forwarding, with circuits kept while nothing waits."""

OFTEN = replace(ocs(1e-6, forwarding=False), period_s=3e-4)
"""Measured more often, without forwarding."""


def cases() -> list[Case]:
    """All iterations that the claims and Figure 17 compare, the slowest first."""
    found: list[Case] = [
        (seconds, (model, ocs(latency_s, forwarding=forwarding)))
        for latency_s, model, forwarding in product(LATENCIES_S, ("DLRM", "BERT"), (False, True))
    ]
    found += [(seconds, (model, how, 4, 100, servers)) for model, servers in CLUSTERS.items() for how in DEDICATED]
    found += [(seconds, (model, SIP_ML, 4, 200)) for model in MANY_TO_MANY]
    found += [(seconds, (model, how)) for model in ("DLRM", "BERT") for how in (None, *KEPT.values())]
    found += [(seconds, ("BERT", how, 8, 100, SERVERS, SINGLE_PRECISION)) for how in (None, *_ENDS)]
    found[:0] = [(seconds, ("DLRM", how, 8, 100, 16)) for how in (OFTEN, None)]
    return found


@Remembered
def seconds(
    model: str,
    how: Reconfiguration | None,
    degree: int = 8,
    gbps: int = 100,
    servers: int = SERVERS,
    gpu: Accelerator = A100,
) -> float:
    """An iteration on circuits that change, or on TopoOpt's where `how` is None."""
    of, rate_bps = job(MODELS[model](), servers, gpu), 1e9 * gbps

    def simulated_s(strategy: Strategy) -> float:
        if how is None:
            return simulate_s(of, strategy, direct(of.demand(strategy), degree, rate_bps))
        return iteration_s(of, strategy, degree, rate_bps, how)

    return shortest_s(of, fitting(of), degree * rate_bps, simulated_s)
