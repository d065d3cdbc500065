# SPDX-License-Identifier: Apache-2.0
"""A point as a spec for `paralet run`: the fabric's part of its iteration.

A spec's ranks are GPUs with one NIC each. Tensor groups, and what copies exchange within an HB domain, stay off the
fabric; the spec counts their time as computing. Rails do not mix, so a slice of the fabric shows the same as the
whole: of every HB domain the spec has as many GPUs as a tensor group has there, and as many copies as `most_ranks`
allows. Direct connections join GPU g of every domain by a ring of its own, so that the spec has one GPU of each domain.
"""

from dataclasses import replace
from math import ceil, gcd

import yaml

from netmodel import format_rate
from testbed.design.job import Job
from testbed.design.points import Point, cluster_of, shared_cluster
from testbed.training.closed_form import passes_s, stage_of
from testbed.training.clusters import Cluster
from testbed.training.hardware import Collective
from testbed.training.operators import HALF, SINGLE
from testbed.training.strategies import Strategy
from testbed.training.transformer import embedding, layer

MOST_RANKS = 256


def turns(job: Job, point: Point) -> list[tuple[Job, Point]]:
    """The point of each job of a mix while it has the cluster, or of the only job."""
    if not point.turns:
        return [(job, point)]
    parts = zip(job.members, point.turns, strict=True)
    return [
        (one, replace(point, strategy=turn.strategy, iteration_s=turn.iteration_s, turns=())) for one, turn in parts
    ]


def write_spec(job: Job, point: Point, most_ranks: int = MOST_RANKS) -> str:
    """The text of a spec. Raises ValueError for a point whose iteration sends nothing over the fabric."""
    strategy, model, cluster = point.strategy, job.transformer, cluster_of(job, point.fabric)
    direct = point.fabric.kind == "topoopt"
    if strategy.expert > 1:
        raise ValueError("workload `training` has no all-to-alls of experts")
    among = cluster.group(strategy.data, strategy.tensor)
    copies = among.domains
    if copies * strategy.pipeline == 1 or cluster.group(strategy.gpus).domains == 1:
        raise ValueError("the chosen point sends nothing over the fabric: its GPUs are in one HB domain")
    if direct and strategy.pipeline > 1 and strategy.tensor * among.inside < cluster.domain_gpus:
        raise ValueError("several pipeline stages share an HB domain, which no spec of direct connections has")
    tensor = 1 if direct else strategy.tensor  # all GPUs of a domain have circuits to the same domains
    kept = min(copies, max(1, most_ranks // (tensor * strategy.pipeline)))
    kept = 2 if strategy.pipeline == 1 and kept == 1 else kept
    ranks = tensor * strategy.pipeline * kept
    stage, size = stage_of(model, strategy, cluster), (strategy.microbatch, strategy.tensor, strategy.sequence)
    held = stage.layers * sum(one.parameters for one in layer(model, *size, strategy.expert) if not one.exchanged)
    held += sum(one.parameters for one in embedding(model, *size))
    inside_s = 0.0
    if among.inside > 1:
        inside_s = cluster.domain.seconds(Collective("all_reduce", SINGLE * held), among.inside)
    trained = {
        "model": "gpt3",
        "tensor": tensor,
        "pipeline": strategy.pipeline,
        "data": kept,
        "zero": strategy.zero,
        "microbatches": strategy.microbatches,
        "microbatch": strategy.microbatch,
        "gpu": job.gpu,
        "compute_s": round(sum(passes_s(model, strategy, cluster)) + stage.optimizer_s + inside_s, 6),
        "part_bytes": _eights((SINGLE if strategy.zero < 2 else HALF) * held / among.inside),
        "activation_bytes": _eights(
            HALF * _hops(strategy) * strategy.microbatch * model.sequence * model.hidden / strategy.tensor
        ),
    }
    document = {
        "name": f"{job.name}_chosen",
        "fabric": "fluid",
        "topology": {}
        if direct
        else _topology(point, gcd(tensor, cluster.domain_gpus), ranks, int(cluster.domain.rate_bps)),
        "workload": {"kind": "training", "iterations": 1, "models": [trained]},
        "placement": {"rule": "in_order", "ranks": ranks},
        "policies": [
            {"name": "ecmp", "policy": "ecmp"},
            {"name": "paralet", "policy": "ecmp", "m": 8},
        ],
        "seeds": 1,
    }
    if direct:
        layers = _layers(shared_cluster(job, point), strategy.pipeline, kept)
        rates = [format_rate(int(rate)) for _, rate in layers]
        document |= {
            "topology": {"direct_connect": {"hosts": ranks, "degree": len(rates), "rate": rates}},
            "optical": {"strides": [stride for stride, _ in layers]},
            "policies": [{"name": "direct", "policy": "ecmp"}],
        }
    return f"{_header(job, point, kept, copies)}{yaml.safe_dump(document, sort_keys=False, width=120)}"


def _hops(strategy: Strategy) -> float:
    """The bytes of a transfer of the workload, in those of a transfer between stages.

    With v chunks, m microbatches and p stages, m v + p - 2 transfers follow one another; in the workload m + p - 2 do.
    """
    fill = strategy.pipeline - 2
    return (strategy.microbatches * strategy.interleave + fill) / max(1, strategy.microbatches + fill)


def _layers(cluster: Cluster, pipeline: int, copies: int) -> list[tuple[int, float]]:
    """Strides and rates of the circuits: to the next copy, the next stage and the one before, each by its own NIC.

    Rank p + pipeline d is stage p of copy d. A GPU uses all NICs of its domain, so it has their shares of the rate.
    """
    rate, ranks = cluster.fabric.rate_bps, pipeline * copies
    found = [(pipeline % ranks, cluster.ring_share * rate)] if copies > 1 else []
    if pipeline > 1:
        found += [(1, cluster.chain_share * rate), (ranks - 1, cluster.chain_share * rate)]
    return found


def _header(job: Job, point: Point, kept: int, copies: int) -> str:
    lines = [
        f"{job.transformer.name} on {point.gpus:,} GPUs, {point.label}: written by `paralet plan`.",
        f"{kept} of {copies} groups of copies that the fabric joins. Sizes are those of a GPU of this strategy;",
        "`model` is a placeholder, as compute_s, part_bytes and activation_bytes are given. compute_s has the bubble,",
        "tensor parallelism and what stays in HB domains. The closed form hides gradients behind the backward pass;",
        "this workload does not.",
    ]
    return "".join(f"# {line}\n" for line in lines) + "\n"


def _topology(point: Point, per_domain: int, ranks: int, domain_bps: int) -> dict[str, dict[str, int | str]]:
    fabric, rate = point.fabric, format_rate(point.fabric.nic_bps)
    domains = ceil(ranks / per_domain)
    if fabric.kind == "clos":
        down = fabric.radix * fabric.oversubscription // (fabric.oversubscription + 1)
        hosts = min(ranks, max(per_domain, down * per_domain // fabric.domain_gpus))
        spines = max(1, hosts // fabric.oversubscription)
        return {
            "leaf_spine": {"leaves": ceil(ranks / hosts), "spines": spines, "hosts_per_leaf": hosts, "host_rate": rate}
        }
    leaves = (
        1
        if domains <= fabric.radix
        else next(
            count for count in range(1, domains + 1) if domains % count == 0 and 2 * domains // count <= fabric.radix
        )
    )
    made: dict[str, int | str] = {
        "domains": domains,
        "gpus_per_domain": per_domain,
        "rail_rate": rate,
        "hb_rate": format_rate(domain_bps),
        "leaves_per_rail": leaves,
    }
    if fabric.kind == "rail_optimised" or leaves > 1:
        made["spines"] = domains // leaves
    return {fabric.kind: made}


def _eights(size: float) -> int:
    """At least 8 bytes, in whole int64."""
    return 8 * ceil(max(1.0, size / 8))
