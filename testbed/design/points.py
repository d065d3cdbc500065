# SPDX-License-Identifier: Apache-2.0
"""The points of a plan: a fabric at a scale, with the best strategy, and what it costs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from testbed.design.clos import Parts, clos
from testbed.design.job import Fabric, Job, fabrics_of
from testbed.design.prices import Prices
from testbed.training.clusters import DGX_A100, DGX_H100, Cluster
from testbed.training.communication import busy_s, exposed_s
from testbed.training.search import Found, candidates
from testbed.training.strategies import Strategy

CLUSTERS = {"a100": DGX_A100, "h100": DGX_H100}
_HOUR_S, _YEAR_S = 3600.0, 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Point:
    """A cluster and its best strategy. Seconds, bytes, US dollars, watts."""

    fabric: Fabric
    gpus: int
    """That train."""
    bought_gpus: int
    """With spare ones of their HB domains."""
    parts: Parts
    """Of all planes."""
    strategy: Strategy
    iteration_s: float
    exposed_s: float
    """Communication during which GPUs do not compute."""
    hidden_s: float
    """Communication behind computing."""
    bubble_s: float
    memory_bytes: float
    utilisation: float
    """Operations that the model needs, as a fraction of the GPUs' peak."""
    network_usd: float
    capital_usd: float
    """With GPUs."""
    watts: float
    """Of machines and building."""
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
    """Of the whole training."""

    @property
    def label(self) -> str:
        """The fabric in words."""
        one = self.fabric
        words = [one.kind.replace("_", "-"), f"K={one.domain_gpus}", f"{one.nic_bps / 1e9:g}G", f"radix {one.radix}"]
        words += [f"{self.parts.tiers} tiers" if self.parts.tiers > 1 else "1 tier"]
        words += [f"{one.oversubscription}:1"] if one.oversubscription > 1 else []
        words += [f"{one.planes} planes"] if one.planes > 1 else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Refused:
    """A fabric at a scale that has no point, and why."""

    fabric: Fabric
    gpus: int
    reason: str


def cluster_of(job: Job, fabric: Fabric) -> Cluster:
    """The cluster of the closed form. Leaves have as many GPUs as ports down."""
    base = CLUSTERS[job.gpu]
    down = fabric.radix * fabric.planes * fabric.oversubscription // (fabric.oversubscription + 1)
    return replace(
        base,
        domain=base.domain if fabric.domain_bps is None else replace(base.domain, rate_bps=float(fabric.domain_bps)),
        fabric=replace(base.fabric, rate_bps=float(fabric.nic_bps)),
        domain_gpus=fabric.domain_gpus - fabric.spare_gpus,
        leaf_gpus=max(1, down) if fabric.oversubscription > 1 else 1,
        oversubscription=float(fabric.oversubscription),
        forwarding=fabric.kind == "rail_only",
    )


def points(job: Job, prices: Prices) -> Iterator[Point | Refused]:
    """Every fabric at every scale, scale by scale.

    Raises ValueError if the prices lack the job's GPU or a fabric's rate.
    """
    if job.gpu not in prices.gpus:
        raise ValueError(f"no price for the GPU {job.gpu}; add it to `gpus` of the prices")
    for gpus in job.gpus:
        found = candidates(job.transformer, gpus, job.batch, job.strategies.space)
        known: dict[Cluster, Found | None] = {}  # fabrics that differ in switches only are the same to a strategy
        for fabric in fabrics_of(job):
            prices.of_rate(fabric.nic_bps)
            cluster = cluster_of(job, fabric)
            try:
                bought, parts = _bought(fabric, gpus)
            except ValueError as error:
                yield Refused(fabric, gpus, str(error))
                continue
            if cluster not in known:
                known[cluster] = found.best(cluster)
            best = known[cluster]
            if best is None:
                reason = "no strategy fits into memory" if len(found) else "no strategy divides GPUs and batch evenly"
                yield Refused(fabric, gpus, reason)
                continue
            yield _priced(job, prices, fabric, cluster, best, bought, parts)


def _bought(fabric: Fabric, gpus: int) -> tuple[int, Parts]:
    """GPUs with spare ones, and the switches and links of all planes. A domain is bought whole."""
    used = fabric.domain_gpus - fabric.spare_gpus
    domains = ceil(gpus / used)
    bought = domains * fabric.domain_gpus if gpus > used or fabric.spare_gpus else gpus
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
    network_usd = (
        ports * price.switch_port_usd
        + transceivers * price.transceiver_usd
        + parts.links * prices.fibre_usd
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
        hidden_s=max(0.0, busy_s(job.transformer, best.strategy, cluster) - exposed),
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
    """GPUs of HB domains with a NIC on one leaf. With several planes no domain loses a NIC, only a part of its rate."""
    if fabric.planes > 1:
        return 0
    over = fabric.oversubscription
    down = fabric.radix if parts.tiers == 1 else fabric.radix * over // (over + 1)
    behind = down if fabric.kind == "clos" else down * fabric.domain_gpus
    return min(bought, max(behind, fabric.domain_gpus))


def pareto(found: Sequence[Point]) -> list[Point]:
    """The points that no other one equals or beats in both cost per token and days of training, by cost."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda one: (one.usd_per_token, one.days)):
        if not kept or point.days < kept[-1].days:
            kept.append(point)
    return kept


def choice(job: Job, found: Iterable[Point]) -> Point | None:
    """The point with the least of what the job chooses by, within its limits; then the cheapest. None without one."""
    limits = job.within
    allowed = [
        one
        for one in found
        if (limits.capital_usd is None or one.capital_usd <= limits.capital_usd)
        and (limits.megawatts is None or one.watts <= 1e6 * limits.megawatts)
        and (limits.days is None or one.days <= limits.days)
    ]
    keys = {one: (getattr(one, job.choose), one.capital_usd) for one in allowed}
    return min(keys, key=keys.__getitem__) if keys else None
