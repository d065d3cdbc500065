# SPDX-License-Identifier: Apache-2.0
"""Section 6: snapshots of ring and double-binary-tree all-reduce on leaf-spine fabrics, and schemes published since.

Every run is a spec, as for `paralet run`: 100 Gbit/s, links of 1 us, as many spines as hosts per leaf. The paper states
neither the shapes of its fabrics, nor message sizes, nor the placement. Ranks are on random hosts here, because a ring
in the order of hosts would hardly cross leaves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from netmodel import dump_topology, leaf_spine
from testbed.analysis.observations import RunRecord
from testbed.analysis.results import ideal_of
from testbed.progress import Silent, Steps
from testbed.simulate import fluid, packet
from testbed.spec import Spec, check

RATE_BPS = 100e9
MESSAGE_BYTES = {"ring": 8 << 20, "tree": 8 << 20, "alltoall": 64 << 10}
"""Bytes on each connection, by collective."""
LANES = (2, 4, 8, 16, 32, 64)
DEGRADED = 4
LEFT = 0.25
"""Rate of a degraded link as a fraction of its full rate."""

ECMP, PARALET, PACED, SPRAYING = "ECMP", "ParaLet m = 32", "ParaLet m = 32, paced", "ideal spraying"


@dataclass(frozen=True, slots=True)
class Scheme:
    """A policy of a spec, and its name in figures."""

    name: str
    policy: str
    m: int = 1
    paced: bool = False
    """Whether each lane sends at most at 1 / m of the line rate (section 5.1). Otherwise only its path limits it."""

    fabric: str = "fluid"
    receiver: str | None = None
    """For fabric packet: the receiver's kind; None is go-back-N."""
    lanes_per: str = "peer"
    """For fabric packet: whether m lanes are for each `peer` of a host or for the whole `host` (section 5.3)."""
    flowlet_bytes: int | None = None
    """For fabric packet: the size of flowlets; None is 4 BDP / m."""
    gap_s: float = 100e-6
    """For fabric packet: the idle time in seconds after which LetFlow starts a new flowlet."""

    def document(self) -> dict[str, Any]:
        """The policy as in a spec."""
        policy = {"name": "scheme", "policy": self.policy, "m": self.m, "paced": self.paced}
        policy |= {"lanes_per": self.lanes_per, "flowlet_bytes": self.flowlet_bytes}
        return policy if self.receiver is None else {**policy, "receiver": self.receiver}


FIGURE_5 = (
    Scheme(ECMP, "ecmp"),
    *(Scheme(f"ParaLet m = {m}", "ecmp", m) for m in LANES),
    Scheme(PACED, "ecmp", 32, paced=True),
    Scheme(SPRAYING, "spraying"),
)
SINCE = (
    Scheme(ECMP, "ecmp"),
    Scheme("E-ECMP, 4 QPs", "qp_scaling", 4),
    Scheme("E-ECMP, 32 QPs", "qp_scaling", 32),
    Scheme("PLB", "plb"),
    Scheme("planned paths", "pinned"),
    Scheme("UEC-like, 256 entropies", "oblivious", 256),
    Scheme(SPRAYING, "spraying"),
    Scheme(PARALET, "ecmp", 32),
    Scheme("REPS-like, 32 entropies", "recycled", 32),
    Scheme("ParaLet m = 32, adaptive", "adaptive", 32),
)

LETFLOW, CONWEAVE, DRILL, DRILL_SR = "LetFlow", "ConWeave", "DRILL", "DRILL, selective repeat"
PACKETS = (
    Scheme(ECMP, "ecmp", fabric="packet"),
    *(Scheme(LETFLOW, "letflow", fabric="packet", gap_s=gap_s) for gap_s in (50e-6, 100e-6, 200e-6)),
    Scheme(CONWEAVE, "conweave", 32, fabric="packet"),
    Scheme(DRILL, "drill", fabric="packet"),
    Scheme(DRILL_SR, "drill", fabric="packet", receiver="selective_repeat"),
    Scheme(PARALET, "ecmp", 32, fabric="packet"),
)
"""Schemes that need a packet simulation, with ECMP and ParaLet. The paper shows LetFlow with the best of three gaps."""


@dataclass(frozen=True, slots=True)
class Case:
    """A fabric and a snapshot of a collective."""

    leaves: int
    hosts_per_leaf: int
    collective: str
    """`ring`, `tree` or `alltoall`."""
    degraded: int = 0
    """Number of leaves with one uplink at `LEFT` of its rate."""
    loss: float = 0.0
    """For fabric packet: the probability with which an uplink of a leaf loses a packet."""

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.leaves * self.hosts_per_leaf

    def __str__(self) -> str:
        name = {"ring": "ring", "tree": "DBT", "alltoall": "all-to-all"}[self.collective]
        return f"{name}, {self.hosts} hosts" + (
            f", {self.degraded} slow links" if self.degraded else f", {100 * self.loss:g} % lost" if self.loss else ""
        )

    def document(self, scheme: Scheme, seed: int) -> dict[str, Any]:
        """The spec of one run."""
        slow = [f"leaf{n}:{self.hosts_per_leaf + n}" for n in range(1, self.degraded + 1)]
        packets = scheme.fabric == "packet"
        size = MESSAGE_BYTES[self.collective]
        return {
            "name": "paralet-004",
            "fabric": scheme.fabric,
            "topology": self._topology(slow if packets else []),  # events degrade links on fabric fluid only
            "workload": {"kind": "snapshot", "collective": self.collective, "bytes": size, "slices": 1},
            "placement": {"rule": "random", "redraw": True},
            "policies": [scheme.document()],
            "packet": {"flowlet_gap_s": scheme.gap_s},
            "links": {port: {"loss": self.loss} for port in self._uplinks() if self.loss},
            "events": [{"at_s": 0.0, "degrade": port, "part": LEFT} for port in slow if not packets],
            "seeds": [seed],
        }

    def _uplinks(self) -> list[str]:
        spines = range(self.hosts_per_leaf + 1, 2 * self.hosts_per_leaf + 1)
        return [f"leaf{leaf}:{port}" for leaf in range(1, self.leaves + 1) for port in spines]

    def _topology(self, slow: Sequence[str]) -> Any:
        """As in a spec, with as many spines as hosts per leaf. Links at the ports `slow` have `LEFT` of the rate."""
        spines = self.hosts_per_leaf
        if not slow:
            rate = f"{RATE_BPS / 1e9:g} Gbit/s"
            shape = {"leaves": self.leaves, "spines": spines, "hosts_per_leaf": spines, "host_rate": rate}
            return {"leaf_spine": shape}
        whole = leaf_spine(self.leaves, spines, self.hosts_per_leaf, int(RATE_BPS))
        links = [
            replace(link, rate_bps=int(LEFT * link.rate_bps)) if {str(link.a), str(link.b)} & {*slow} else link
            for link in whole.links
        ]
        return yaml.safe_load(dump_topology(replace(whole, links=tuple(links))))


SMALL = tuple(Case(8, 16, collective) for collective in ("ring", "tree"))
LARGE = tuple(Case(32, 32, collective) for collective in ("ring", "tree"))


@dataclass(frozen=True, slots=True)
class Point:
    """Results of a scheme on a case: those of one seed, or means over several seeds."""

    case: Case
    scheme: Scheme
    ideal_s: float
    """Seconds to send the busiest host's payload at the rate of its link."""
    fct_mean_s: float
    fct_max_s: float
    peak_bps: float
    """Maximum Total Throughput: the highest rate to all hosts in one interval, in bits per second with headers."""
    throughput: tuple[tuple[float, float], ...]
    """Total Throughput of the first seed: the end of each interval and the rate in it."""


def measure(case: Case, scheme: Scheme, seed: int) -> Point:
    """Run one scheme with one seed."""
    experiment = check(Spec.model_validate(case.document(scheme, seed)))
    observe = packet.observe if scheme.fabric == "packet" else fluid.observe
    run = observe(experiment, Silent()).runs[0]
    times = [flow.completion_s for flow in run.flows]
    throughput = tuple(_throughput(run))
    return Point(
        case=case,
        scheme=scheme,
        ideal_s=ideal_of(experiment),
        fct_mean_s=fmean(times),
        fct_max_s=max(times),
        peak_bps=max(rate for _, rate in throughput),
        throughput=throughput,
    )


def _throughput(run: RunRecord) -> Iterator[tuple[float, float]]:
    at_s, count = 0.0, 0
    for sample in run.samples:
        total = sum(sample.tx_bytes.values())
        if sample.at_s > at_s:
            yield sample.at_s, 8 * (total - count) / (sample.at_s - at_s)
            at_s, count = sample.at_s, total


def measured(wanted: Sequence[tuple[Case, Scheme]], seeds: Sequence[int]) -> list[Point]:
    """Run all cases and schemes on all cores and show progress. Returns means over seeds."""
    from joblib import Parallel, delayed

    asked = [(case, scheme, seed) for case, scheme in wanted for seed in seeds]
    found = []
    workers = Parallel(n_jobs=-1 if len(asked) > 8 else 1, return_as="generator")
    with Steps(len(asked), every_s=2.0) as steps:
        for (case, scheme, seed), point in zip(asked, workers(delayed(measure)(*run) for run in asked), strict=True):
            steps.now(f"{case}: {scheme.name}, seed {seed}")
            steps.advance()
            found.append(point)
    return [_mean(found[start : start + len(seeds)]) for start in range(0, len(found), len(seeds))]


def _mean(points: Sequence[Point]) -> Point:
    first = points[0]
    return Point(
        case=first.case,
        scheme=first.scheme,
        ideal_s=fmean(point.ideal_s for point in points),
        fct_mean_s=fmean(point.fct_mean_s for point in points),
        fct_max_s=fmean(point.fct_max_s for point in points),
        peak_bps=float(np.mean([point.peak_bps for point in points])),
        throughput=first.throughput,
    )
