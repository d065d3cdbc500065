# SPDX-License-Identifier: Apache-2.0
"""Simulations of the paper's clusters, by its rule for contention (fidelity `steps`)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np

from sim.cluster import Job, NetworkName, Outcome, Pattern, PlacementName, QueueName, Scenario, Shape, simulate
from sim.cluster.trace import MEDIAN_S, SIGMA, collectives
from testbed.analysis.clusters import metrics
from testbed.research.papers.ahead import Case, Remembered
from testbed.research.papers.vclos.printed import GAPS_S, TABLE_6, TABLE_7
from testbed.research.papers.vclos.trace import CLUSTER512, CLUSTER2048, FITTED, jobs_of, one_switch

STRATEGIES: Mapping[str, tuple[PlacementName, NetworkName]] = {
    "Best": ("packed", "ideal"),
    "OCS-vClos": ("ocs_vclos", "reserved"),
    "vClos": ("vclos", "reserved"),
    "SR": ("scattered", "source_routing"),
    "Balanced": ("scattered", "balanced"),
    "ECMP": ("scattered", "ecmp"),
    "OCS-Relax": ("relaxed", "ecmp"),
}
"""Placement and network. The released simulator places jobs of SR, Balanced and ECMP on any idle GPUs. The paper does
not define the network of OCS-Relax."""

TESTBED = Shape(leaves=4, spines=8, servers_per_leaf=2, gpus_per_server=4)
"""Section 8.1: 8 servers with 4 GPUs each under 4 leaves; 4 spine switches, split as the rate of 8 NICs needs."""


@dataclass(frozen=True, slots=True)
class Means:
    """Means over the jobs of one simulation, in seconds, and its failed placements by cause."""

    completion_s: float
    waiting_s: float
    running_s: float
    gpu_failures: int
    """Too few GPUs are idle, or not in whole servers."""
    shape_failures: int
    """Idle servers are on leaves that suit no l x s, were all links free."""
    network_failures: int
    """Placements that would not have failed had all links been free."""
    head_s: float
    """The longest time for which a job was the first of a FIFO queue."""
    behind_s: float
    """The waiting of all other jobs in that time, divided by the number of jobs."""
    late_s: float
    """The waiting time that 1 % of the jobs exceed."""
    instability: float
    """The standard deviation, among jobs of one size, of JRT over the duration without contention: a mean over jobs."""


@Remembered
def table_5(name: str, gap_s: float, queue: QueueName = "fifo") -> Means:
    """A strategy on CLUSTER512 with the fitted trace."""
    return _run(jobs_of(FITTED, gap_s), CLUSTER512, name, queue)


@Remembered
def cluster2048(name: str) -> Means:
    """A strategy on CLUSTER2048 with lambda = 15 s (section 9.5) and the fitted trace."""
    return _run(jobs_of(FITTED, 15.0), CLUSTER2048, name, "fifo")


LARGE = ("vClos", "SR", "Balanced", "ECMP")
LARGE_SIZES = (64, 128, 256)
LARGE_WAITS = TABLE_7["Best"][0] / (TABLE_7["Best"][1] - TABLE_7["Best"][0])
"""Waiting over running time of table 7's column Best, to which the arrivals of large jobs are set."""
LARGE_JOBS = 300


def large_jobs(gap_s: float) -> list[Job]:
    """Jobs that are large, as those of section 9.8, whose sizes and arrivals are not printed.

    Durations and collectives are those of the fitted trace's distributions.
    """
    rng = np.random.default_rng(FITTED)
    arrivals = np.cumsum(rng.exponential(gap_s, LARGE_JOBS)).tolist()
    sizes = rng.choice(LARGE_SIZES, LARGE_JOBS).tolist()
    times = np.clip(MEDIAN_S * np.exp(SIGMA * rng.standard_normal(LARGE_JOBS)), 1_000.0, 100_000.0).tolist()
    drawn = collectives(rng, sizes, None)
    return [
        Job(f"job{number}", *job, *how)
        for number, (job, how) in enumerate(zip(zip(arrivals, sizes, times, strict=True), drawn, strict=True))
    ]


@Remembered
def table_7(name: str, gap_s: float) -> Means:
    """A strategy on CLUSTER512 with large jobs."""
    return _run(large_jobs(gap_s), CLUSTER512, name, "fifo")


def large_gap_s(waits: float) -> float:
    """The mean time between arrivals at which large jobs wait so many times their running time with Best; to 1 %."""
    least, most = 500.0, 20_000.0
    while most / least > 1.01:
        middle = (least * most) ** 0.5
        found = table_7("Best", middle)
        if found.waiting_s > waits * found.running_s:
            least = middle
        else:
            most = middle
    return float((least * most) ** 0.5)


def cases() -> list[Case]:
    """All simulations of the 5,000 jobs, for `ahead`: the slowest first."""
    found: list[Case] = [(cluster2048, (name,)) for name in ("vClos", "OCS-vClos", "SR")]
    found += [(table_5, (name, gap_s)) for name, gap_s in product(reversed([*STRATEGIES]), GAPS_S)]
    queues: tuple[QueueName, ...] = ("edf", "fewest_first")
    found += [(table_7, (name, large_gap_s(LARGE_WAITS))) for name in LARGE]
    found += [(table_5, (name, 120, queue)) for queue, name in product(queues, TABLE_6["FF"])]
    found += [(table_5, (name, gap_s, "backfill")) for name, gap_s in product(("OCS-vClos", "Best"), GAPS_S)]
    return sorted(found, key=lambda case: case[1][0] != "OCS-vClos")


def _run(jobs: Iterable[Job], shape: Shape, name: str, queue: QueueName) -> Means:
    placement, network = STRATEGIES[name]
    if name == "Best":
        shape = one_switch(shape)
    result = simulate(list(jobs), Scenario(shape, placement, network, queue, "steps"))
    failures, seen = result.failures, metrics([result], shape.gpus)
    return Means(
        fmean(outcome.completion_s or 0.0 for outcome in result.outcomes),
        fmean(outcome.waiting_s or 0.0 for outcome in result.outcomes),
        fmean(outcome.running_s or 0.0 for outcome in result.outcomes),
        failures["busy"] + failures["locality"],
        failures["shape"],
        failures["network"],
        *longest_at_head(result.outcomes),
        seen.waiting_s.p99,
        seen.instability,
    )


def longest_at_head(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """`head_s` and `behind_s` of `Means`, for jobs in the order of arrival that have all started in this order."""
    arrivals, starts = np.array([(one.job.arrival_s, one.start_s) for one in outcomes]).T
    first = np.maximum(arrivals, np.concatenate([[0.0], np.maximum.accumulate(starts)[:-1]]))
    at_head = starts - first
    job = int(at_head.argmax())
    waiting = np.clip(np.minimum(starts, starts[job]) - np.maximum(arrivals, first[job]), 0.0, None)
    return float(at_head[job]), float((waiting.sum() - waiting[job]) / len(outcomes))


TESTBED_TRACES = 10
_TESTBED_SIZES = (2, 4, 8, 16)
_TESTBED_SHARES = (0.16, 0.10, 0.02, 0.05, 0.12, 0.60, 0.60)
"""Shares of communication of table 3's jobs: VGG16 at batches 16 and 32, ResNet, BERT; MoE and DLRM lose 60 % to two
flows on a link (figure 6), which no share explains by equal rates, so their share is taken to be 0.6."""
_PATTERNS: tuple[Pattern, ...] = ("ring", "hierarchical_ring", "halving_doubling")


def testbed_jobs(seed: int, run_s: float, gap_s: float) -> list[Job]:
    """100 jobs as section 8.1 draws them, each `run_s` long without contention."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(gap_s, 100)).tolist()
    jobs = []
    for number, arrival_s in enumerate(arrivals):
        model = int(rng.integers(len(_TESTBED_SHARES)))
        drawn = _PATTERNS[int(rng.integers(len(_PATTERNS)))]
        pattern: Pattern = "pairwise_alltoall" if model >= 5 else drawn
        gpus = int(rng.choice(_TESTBED_SIZES))
        jobs.append(Job(f"job{number}", arrival_s, gpus, run_s, _TESTBED_SHARES[model], pattern))
    return jobs


@Remembered
def table_4(name: str, run_s: float, gap_s: float) -> tuple[tuple[Outcome, ...], ...]:
    """The outcomes of `TESTBED_TRACES` traces: one of the columns of table 4."""
    network: NetworkName = {"vClos": "reserved", "SR": "source_routing"}.get(name, "ecmp")  # type: ignore[assignment]
    placement: PlacementName = "vclos" if name == "vClos" else "packed"
    spines = TESTBED.spines * 3 // 2 if name == "Redundance" else TESTBED.spines
    shape = Shape(TESTBED.leaves, spines, TESTBED.servers_per_leaf, TESTBED.gpus_per_server)
    runs = (
        simulate(testbed_jobs(seed, run_s, gap_s), Scenario(shape, placement, network, fidelity="steps", rounds=10))
        for seed in range(1, TESTBED_TRACES + 1)
    )
    return tuple(tuple(run.outcomes) for run in runs)


def testbed_gap_s(run_s: float, waiting_s: float) -> float:
    """The mean time between arrivals at which jobs wait for `waiting_s` with vClos; by bisection to 1 %."""
    least, most = run_s / 20, run_s * 2
    while most / least > 1.01:
        middle = (least * most) ** 0.5
        if mean_of(table_4("vClos", run_s, middle), lambda outcome: outcome.waiting_s) > waiting_s:
            least = middle
        else:
            most = middle
    return float((least * most) ** 0.5)


def mean_of(runs: Iterable[Iterable[Outcome]], value: Callable[[Outcome], float | None], gpus: int = 0) -> float:
    """The mean over all jobs, or over those with `gpus` GPUs."""
    return float(fmean(value(outcome) or 0.0 for run in runs for outcome in run if gpus in (0, outcome.job.gpus)))
