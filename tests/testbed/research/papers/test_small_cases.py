# SPDX-License-Identifier: Apache-2.0
"""Small cases of what is too slow for a test: a number of a page that changes by ten per cent changes one of these.

The values are those of the commit that made the pages; where one changes, `make papers` computes the pages again.
TopoOpt's searches are in `test_topoopt`.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest

from sim.cluster import Scenario, simulate
from testbed.research.papers.paralet import evaluation, tuning
from testbed.research.papers.routing.evaluation import BLOOM, Point, measure
from testbed.research.papers.routing.evaluation import Case as Snapshot
from testbed.research.papers.topoopt import reconfiguration, sharing
from testbed.research.papers.vclos import simulated
from testbed.research.papers.vclos.trace import CLUSTER512, FITTED, jobs_of
from testbed.research.topoopt.reconfigured import SIP_ML, Reconfiguration

RING = evaluation.Case(2, 4, "ring")
SLOW_LINK = evaluation.Case(2, 4, "ring", degraded=1)


def routed(planner: str, value: Callable[[Point], float]) -> float:
    points, _ = measure(Snapshot(BLOOM, 4, 2), (planner,), 2, 1)
    return value(points[0])


def cluster(name: str, value: Callable[[simulated.Means], float]) -> float:
    return value(simulated._run(jobs_of(FITTED, 5)[:250], CLUSTER512, name, "fifo"))


def on_testbed(name: str) -> float:
    """Mean JRT of one trace of section 8.1."""
    placement, network = {"ECMP": ("packed", "ecmp"), "SR": ("scattered", "source_routing")}[name]
    scenario = Scenario(simulated.TESTBED, placement, network, fidelity="steps", rounds=10)  # type: ignore[arg-type]
    outcomes = simulate(simulated.testbed_jobs(1, 75.0, 20.0), scenario).outcomes
    return fmean(outcome.running_s or 0.0 for outcome in outcomes)


def flows(case: evaluation.Case, schemes: tuple[evaluation.Scheme, ...], name: str) -> float:
    """Mean and slowest completion time in microseconds, added, with the scheme of this name."""
    scheme = next(scheme for scheme in schemes if scheme.name == name)
    point = evaluation.measure(case, scheme, 1)
    return 1e6 * (point.fct_mean_s + point.fct_max_s)


def of_host() -> float:
    point = evaluation.measure(evaluation.Case(2, 4, "tree"), tuning.of_lanes(4, "host"), 1)
    return 1e6 * (point.fct_mean_s + point.fct_max_s)


def changing_s(how: Reconfiguration | None) -> float:
    return reconfiguration.seconds("DLRM", how, 4, 100, 8)


def shared_s(tree: sharing.Name) -> float:
    return fmean(map(fmean, sharing._shared(["B", "C"], sharing._TREES[tree], 1)))


SMALL: dict[str, tuple[Callable[[], float], float]] = {
    "000: ECMP, all-reduce": (lambda: routed("ecmp", lambda point: point.allreduce_s), 7.04),
    "000: ECMP, FCT": (lambda: routed("ecmp", lambda point: point.fct_s), 0.54666),
    "000: ECMP, throughput": (lambda: routed("ecmp", lambda point: point.throughput_bps / 1e9), 69.387),
    "000: annealing, all-reduce": (lambda: routed("annealing", lambda point: point.allreduce_s), 3.52),
    "000: annealing, FCT": (lambda: routed("annealing", lambda point: point.fct_s), 0.34222),
    "000: greedy, FCT": (lambda: routed("greedy", lambda point: point.fct_s), 0.29333),
    "000: greedy, throughput": (lambda: routed("greedy", lambda point: point.throughput_bps / 1e9), 100),
    "001: vClos, JCT": (lambda: cluster("vClos", lambda means: means.completion_s), 5468),
    "001: OCS-vClos, JCT": (lambda: cluster("OCS-vClos", lambda means: means.completion_s), 5466.5),
    "001: vClos, JRT": (lambda: cluster("vClos", lambda means: means.running_s), 4459.2),
    "001: vClos, lack of GPUs": (lambda: cluster("vClos", lambda means: means.gpu_failures), 123),
    "001: vClos, lack of a shape": (lambda: cluster("vClos", lambda means: means.shape_failures), 12),
    "001: ECMP, JCT": (lambda: cluster("ECMP", lambda means: means.completion_s), 5751.1),
    "001: OCS-Relax, JCT": (lambda: cluster("OCS-Relax", lambda means: means.completion_s), 5557.7),
    "001: testbed, ECMP, JRT": (lambda: on_testbed("ECMP"), 79.807),
    "001: testbed, SR, JRT": (lambda: on_testbed("SR"), 81.814),
    "002: OCS-reconfig": (
        lambda: 1e3 * changing_s(reconfiguration.ocs(1e-3, forwarding=True)),
        51.033,
    ),
    "002: SiP-ML": (lambda: 1e3 * changing_s(SIP_ML), 60.887),
    "002: TopoOpt": (lambda: 1e3 * changing_s(None), 48.152),
    "002: shared, Fat-tree": (lambda: 1e3 * shared_s("Fat-tree"), 54.686),
    "002: shared, Oversub. Fat-tree": (lambda: 1e3 * shared_s("Oversub. Fat-tree"), 18.057),
    "004: LetFlow": (lambda: flows(RING, evaluation.PACKETS, evaluation.LETFLOW), 1390.8),
    "004: ConWeave": (lambda: flows(RING, evaluation.PACKETS, evaluation.CONWEAVE), 1671.9),
    "004: DRILL": (lambda: flows(RING, evaluation.PACKETS, evaluation.DRILL), 2302.4),
    "004: DRILL, selective repeat": (lambda: flows(RING, evaluation.PACKETS, evaluation.DRILL_SR), 1391.8),
    "004: E-ECMP": (lambda: flows(SLOW_LINK, evaluation.SINCE, "E-ECMP, 4 QPs"), 5256.7),
    "004: PLB": (lambda: flows(SLOW_LINK, evaluation.SINCE, "PLB"), 1897.4),
    "004: UEC-like": (lambda: flows(SLOW_LINK, evaluation.SINCE, "UEC-like, 256 entropies"), 4083.7),
    "004: REPS-like": (lambda: flows(SLOW_LINK, evaluation.SINCE, "REPS-like, 32 entropies"), 1411.4),
    "004: planned paths": (lambda: flows(SLOW_LINK, evaluation.SINCE, "planned paths"), 3981.1),
    "004: lanes of a host": (of_host, 6120.8),
}


@pytest.mark.parametrize("what", SMALL)
def test_a_small_case_has_its_number(what: str) -> None:
    compute, known = SMALL[what]
    assert compute() == pytest.approx(known, rel=0.02)
