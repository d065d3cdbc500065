# SPDX-License-Identifier: Apache-2.0
"""The points of a plan: a fabric at a scale, with the best strategy, and what it costs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from testbed.research.cluster_plans.all_to_all_circuits import Permutations
from testbed.research.cluster_plans.clos import Parts, clos
from testbed.research.cluster_plans.job import Fabric, Job, fabrics_of
from testbed.research.cluster_plans.prices import Prices
from testbed.simulate.spread import spread
from testbed.training.closed_form import estimate
from testbed.training.clusters import DGX_A100, DGX_H100, Cluster
from testbed.training.communication import exposed_s, hidden_s
from testbed.training.search import Found, candidates
from testbed.training.strategies import Strategy

CLUSTERS = {"a100": DGX_A100, "h100": DGX_H100}
_PANEL_PORTS = 1008
"""Of a patch panel (TopoOpt, section 3). The k-th NIC of every HB domain is on panel k."""
_NO_CHAIN = 1e-9
"""The share of transfers where no strategy has a pipeline."""
_HOUR_S, _YEAR_S = 3600.0, 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class JobShare:
    """A job of a mix: its part of the time, its best strategy, and the time of an iteration in seconds."""

    name: str
    weight: float
    strategy: Strategy
    iteration_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """A cluster and its best strategy. Seconds, bytes, US dollars, watts."""

    fabric: Fabric
    gpus: int
    """The GPUs that train. Spare ones are not counted."""
    bought_gpus: int
    """All GPUs that are paid for: those that train and the spare ones of HB domains."""
    parts: Parts
    """Switches, cables and transceivers of all planes."""
    strategy: Strategy
    iteration_s: float
    exposed_s: float
    """Seconds of an iteration in which a GPU only communicates, or by which its products are longer beside
    collectives."""
    hidden_s: float
    """Seconds of an iteration that communication beside computing saves: what it takes alone, without `exposed_s`."""
    bubble_s: float
    memory_bytes: float
    utilisation: float
    """Operations that the model needs, as a fraction of the GPUs' peak."""
    network_usd: float
    capital_usd: float
    """The price of network and GPUs together."""
    watts: float
    """The power that machines and building take."""
    availability: float
    """The fraction of time that remains after failures."""
    failures_per_day: float
    failure_usd: float
    """What one failure costs: the machines' share of price and energy during the time lost."""
    gpus_idled: int
    """GPUs that cannot train until a failed one is replaced: its HB domain, unless that has a spare."""
    leaf_failure_gpus: int
    """GPUs whose HB domains lose a NIC when a leaf switch fails."""
    usd_per_token: float
    days: float
    """How long the whole training takes, failures included."""
    shares: tuple[JobShare, ...] = ()
    """The jobs of a mix; `strategy` is that of the first."""

    @property
    def label(self) -> str:
        """The fabric in words, for tables: kind, size of HB domains, rate, radix and tiers."""
        fabric = self.fabric
        words = [fabric.kind.replace("_", "-"), f"K={fabric.domain_gpus}", f"{fabric.nic_bps / 1e9:g}G"]
        if fabric.kind == "topoopt":
            return " ".join(words)
        words += [f"radix {fabric.radix}"]
        words += [f"{self.parts.tiers} tiers" if self.parts.tiers > 1 else "1 tier"]
        words += [f"{fabric.oversubscription}:1"] if fabric.oversubscription > 1 else []
        words += [f"{fabric.planes} planes"] if fabric.planes > 1 else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Refused:
    """A fabric at a scale that has no point, and why."""

    fabric: Fabric
    gpus: int
    reason: str


def cluster_of(job: Job, fabric: Fabric, tiers: int | None = None) -> Cluster:
    """The cluster of the closed form. Leaves have as many GPUs as ports down; a single tier has no uplinks."""
    base = CLUSTERS[job.gpu]
    thin = fabric.oversubscription > 1 and tiers != 1
    down = fabric.radix * fabric.planes * fabric.oversubscription // (fabric.oversubscription + 1)
    return replace(
        base,
        domain=base.domain if fabric.domain_bps is None else replace(base.domain, rate_bps=float(fabric.domain_bps)),
        fabric=replace(base.fabric, rate_bps=float(fabric.nic_bps)),
        domain_gpus=fabric.domain_gpus - fabric.spare_gpus,
        leaf_gpus=max(1, down) if thin else 1,
        oversubscription=float(fabric.oversubscription) if thin else 1.0,
        forwarding=fabric.kind in ("rail_only", "topoopt"),
    )


def shared_cluster(job: Job, point: Point) -> Cluster:
    """The cluster of a point's only or first job, with the share of NICs that its strategy uses best."""
    cluster = cluster_of(job, point.fabric, point.parts.tiers)
    splits = _shared(point.fabric, cluster, bool(job.transformer.experts))
    return min(splits, key=lambda split: estimate(job.transformer, point.strategy, split).iteration_s)


def points(
    job: Job, prices: Prices, *, jobs: int | None = None, scheduler: str | None = None
) -> Iterator[Point | Refused]:
    """Every fabric at every scale, scale by scale.

    Scales are spread over `jobs` processes, or over the workers of the Dask scheduler at this address; with neither,
    this process computes all. Raises ValueError if the prices lack the job's GPU or a fabric's rate, and InputError if
    the scheduler cannot be used.
    """
    if job.gpu not in prices.gpus:
        raise ValueError(f"no price for the GPU {job.gpu}; add it to `gpus` of the prices")
    for fabric in fabrics_of(job):
        prices.of_rate(fabric.nic_bps)
    at_scale = partial(_at_scale, job, prices)
    if jobs is None and scheduler is None:
        for gpus in job.gpus:
            yield from at_scale(gpus)
        return
    with ExitStack() as until_done:
        found = dict(spread(at_scale, job.gpus, until_done, jobs=jobs, scheduler=scheduler))
    for place in range(len(job.gpus)):
        yield from found[place]


def _at_scale(job: Job, prices: Prices, gpus: int) -> list[Point | Refused]:
    """Every fabric at one scale: a point of the only job, or of the mix."""
    members = job.members
    return [_mixed(members, some) for some in zip(*(_of_job(member, prices, gpus) for member in members), strict=True)]


def _of_job(job: Job, prices: Prices, gpus: int) -> Iterator[Point | Refused]:
    """Every fabric at one scale, for a job that has the cluster for itself."""
    found = candidates(job.transformer, gpus, job.batch, job.strategies.space)
    flat = candidates(job.transformer, gpus, job.batch, replace(job.strategies.space, deepest_pipeline=1))
    known: dict[Cluster, Found | None] = {}  # fabrics that differ in switches only are the same to a strategy
    for fabric in fabrics_of(job):
        try:
            bought, parts = _bought(fabric, gpus)
        except ValueError as error:
            yield Refused(fabric, gpus, str(error))
            continue
        base = cluster_of(job, fabric, parts.tiers)
        some: list[tuple[Found, Cluster]] = []
        for cluster in _shared(fabric, base, bool(job.transformer.experts)):
            if cluster not in known:
                whole = cluster.chain_share == _NO_CHAIN
                known[cluster] = (flat if whole else found).best(cluster)
            if (best := known[cluster]) is not None:
                some.append((best, cluster))
        if not some:
            reason = "no strategy fits into memory" if len(found) else "no strategy divides GPUs and batch evenly"
            yield Refused(fabric, gpus, reason)
            continue
        best, cluster = min(some, key=lambda pair: pair[0].estimate.iteration_s)
        yield _priced(job, prices, fabric, cluster, best, bought, parts)


def _shared(fabric: Fabric, cluster: Cluster, experts: bool) -> list[Cluster]:
    """The cluster; with direct connections, one for each way to share an HB domain's NICs.

    The first gives all to the rings of collectives, for strategies without a pipeline. The others give as many NICs to
    the next stage as to the one before, and at least one to rings. A GPU uses all NICs of its domain. With experts
    there is one for each eighth of the NICs that all-to-alls may have, and half of the rings sum gradients of experts.
    """
    if fabric.kind != "topoopt":
        return [cluster]
    if experts:
        nics = cluster.domain_gpus
        return [
            split
            for spent in sorted({nics * part // 8 for part in range(8)})
            for split in _chained(replace(cluster, all_to_all_load=Permutations(spent)), nics - spent, 2)
        ]
    return _chained(cluster, cluster.domain_gpus, 1)


def _chained(cluster: Cluster, left: int, groups: int) -> list[Cluster]:
    """The clusters of `_shared` for `left` NICs of a domain, the rings of which are shared by `groups` groups."""
    nics = cluster.domain_gpus
    splits = [(left - 2 * each, each) for each in range(1, (left + 1) // 2)]
    # The tiny difference keeps the split without chains apart from a switch's cluster, which has both in full.
    return [
        replace(cluster, ring_share=left / groups / nics, chain_share=_NO_CHAIN),
        *(replace(cluster, ring_share=rings / groups / nics, chain_share=chains / nics) for rings, chains in splits),
    ]


def _mixed(members: Sequence[Job], found: Sequence[Point | Refused]) -> Point | Refused:
    """The point of jobs that take turns, each for its part of the time, or why one of them has none.

    Times of an iteration and utilisation are means by time. Tokens of all jobs share the cost, and training takes as
    long as the job that ends last.
    """
    first = found[0]
    for job, outcome in zip(members, found, strict=True):
        if isinstance(outcome, Refused):
            return replace(outcome, reason=f"{job.name}: {outcome.reason}" if len(members) > 1 else outcome.reason)
    if len(members) == 1 or isinstance(first, Refused):
        return first
    parts = [(job.weight, point) for job, point in zip(members, found, strict=True) if isinstance(point, Point)]

    def mean(name: str) -> float:
        return sum(weight * float(getattr(point, name)) for weight, point in parts)

    return replace(
        first,
        iteration_s=mean("iteration_s"),
        exposed_s=mean("exposed_s"),
        hidden_s=mean("hidden_s"),
        bubble_s=mean("bubble_s"),
        utilisation=mean("utilisation"),
        memory_bytes=max(point.memory_bytes for _, point in parts),
        usd_per_token=1 / sum(weight / point.usd_per_token for weight, point in parts),
        days=max(point.days / weight for weight, point in parts),
        shares=tuple(
            JobShare(job.name, job.weight, point.strategy, point.iteration_s)
            for job, (_, point) in zip(members, parts, strict=True)
        ),
    )


def _bought(fabric: Fabric, gpus: int) -> tuple[int, Parts]:
    """GPUs with spare ones, and the switches and links of all planes. A domain is bought whole."""
    used = fabric.domain_gpus - fabric.spare_gpus
    domains = ceil(gpus / used)
    bought = domains * fabric.domain_gpus if gpus > used or fabric.spare_gpus else gpus
    if fabric.kind == "topoopt":
        if domains > _PANEL_PORTS:
            raise ValueError(f"{domains} HB domains are more than a patch panel has ports, {_PANEL_PORTS}")
        return bought, Parts(radix=0, tiers=0, switches=0, links=bought)
    rails = fabric.kind == "rail_only"
    endpoints, copies = (domains, min(bought, fabric.domain_gpus)) if rails else (bought, 1)
    radix = fabric.radix * fabric.planes
    return bought, clos(endpoints, radix, copies * fabric.planes, fabric.oversubscription, fabric.tiers)


def _priced(
    job: Job, prices: Prices, fabric: Fabric, cluster: Cluster, best: Found, bought: int, parts: Parts
) -> Point:
    """Capital cost and power of Equations 4 and 5 of Rail-only, with NICs, fibres and GPUs.

    A plane's port has 1 / planes of the rate, price and power.
    """
    gpus, iteration_s, exposed = best.strategy.gpus, best.estimate.iteration_s, exposed_s(best.estimate)
    price, gpu = prices.of_rate(fabric.nic_bps), prices.gpus[job.gpu]
    ports, transceivers = parts.ports / fabric.planes, parts.transceivers / fabric.planes
    panel_ports = 0
    if fabric.kind == "topoopt":  # a fibre and a port of a panel for each NIC, which has the only transceiver
        panel_ports = transceivers = parts.links
    network_usd = (
        ports * price.switch_port_usd
        + transceivers * price.transceiver_usd
        + parts.links * prices.fibre_usd
        + panel_ports * prices.patch_panel_port_usd
        + bought * price.nic_usd
    )
    network_w = ports * price.switch_port_w + transceivers * price.transceiver_w + bought * price.nic_w
    capital = network_usd + bought * gpu.usd
    watts = (network_w + bought * gpu.watts) * prices.power_usage_effectiveness
    usd_per_s = capital / (prices.years * _YEAR_S) + watts / 1000 * prices.energy_usd_per_kwh / _HOUR_S
    between_s = prices.failures.gpu_hours_between * _HOUR_S / gpus
    availability = between_s / (between_s + prices.failures.lost_s)
    tokens_per_s = job.batch * job.transformer.sequence / iteration_s * availability
    return Point(
        fabric=fabric,
        gpus=gpus,
        bought_gpus=bought,
        parts=parts,
        strategy=best.strategy,
        iteration_s=iteration_s,
        exposed_s=exposed,
        hidden_s=hidden_s(job.transformer, best.strategy, cluster),
        bubble_s=best.estimate.bubble_s,
        memory_bytes=best.estimate.memory_bytes,
        utilisation=job.transformer.flops(job.batch) / (iteration_s * gpus * cluster.gpu.matrix_flops),
        network_usd=network_usd,
        capital_usd=capital,
        watts=watts,
        availability=availability,
        failures_per_day=24 * _HOUR_S / between_s,
        failure_usd=usd_per_s * prices.failures.lost_s,
        gpus_idled=0 if fabric.spare_gpus else min(gpus, fabric.domain_gpus),
        leaf_failure_gpus=_behind_leaf(fabric, parts, bought),
        usd_per_token=usd_per_s / tokens_per_s,
        days=job.tokens / tokens_per_s / (24 * _HOUR_S),
    )


def _behind_leaf(fabric: Fabric, parts: Parts, bought: int) -> int:
    """GPUs of HB domains with a NIC on one leaf. With several planes no domain loses a NIC, only a part of its rate.

    Patch panels have no leaves and do not fail.
    """
    if fabric.planes > 1 or fabric.kind == "topoopt":
        return 0
    over = fabric.oversubscription
    down = fabric.radix if parts.tiers == 1 else fabric.radix * over // (over + 1)
    behind = down if fabric.kind == "clos" else down * fabric.domain_gpus
    return min(bought, max(behind, fabric.domain_gpus))


def pareto(found: Sequence[Point]) -> list[Point]:
    """The points that no other one equals or beats in both cost per token and days of training, by cost."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda point: (point.usd_per_token, point.days)):
        if not kept or point.days < kept[-1].days:
            kept.append(point)
    return kept


def choice(job: Job, found: Iterable[Point]) -> Point | None:
    """The point with the least of what the job chooses by, within its limits; then the cheapest. None without one."""
    limits = job.within
    allowed = [
        point
        for point in found
        if (limits.capital_usd is None or point.capital_usd <= limits.capital_usd)
        and (limits.megawatts is None or point.watts <= 1e6 * limits.megawatts)
        and (limits.days is None or point.days <= limits.days)
    ]
    keys = {point: (getattr(point, job.choose), point.capital_usd) for point in allowed}
    return min(keys, key=keys.__getitem__) if keys else None
