# SPDX-License-Identifier: Apache-2.0
"""A point as a spec for `paralet run`: the fabric's part of its iteration.

A spec's ranks are GPUs with one NIC each. Tensor groups, and what copies exchange within an HB domain, stay off the
fabric; the spec counts their time as computing. Rails do not mix, so a slice of the fabric shows the same as the
whole: of every HB domain the spec has one copy, and as many copies and GPUs of a tensor group as `most_ranks` allows.
An expert group is never cut. Its tokens go to the GPU of the same rail in each other domain, as Rail-only forwards them
(section IV-B) and as NCCL's PXN does; GPUs send as many bytes as without forwarding.

Direct connections join GPU g of every domain by circuits of its own, so that the spec has one GPU of each domain.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, gcd
from typing import Any

import yaml

from netmodel import format_rate
from testbed.research.cluster_plans.all_to_all_circuits import Permutations
from testbed.research.cluster_plans.job import Job
from testbed.research.cluster_plans.points import Point, shared_cluster
from testbed.training.closed_form import Stage, passes_s, stage_of
from testbed.training.clusters import Cluster, Group
from testbed.training.communication import (
    Groups,
    exchanges,
    groups_of,
    parameters_of,
    passes_of_tokens,
    table_s,
)
from testbed.training.hardware import Collective
from testbed.training.strategies import Strategy
from testbed.training.transformer import Transformer, layer

MOST_RANKS = 256
_LEAF_HOSTS = 254
"""The most hosts that `netmodel.leaf_spine` puts below a leaf."""


def job_points(job: Job, point: Point) -> list[tuple[Job, Point]]:
    """The point of each job of a mix while it has the cluster, or of the only job."""
    if not point.shares:
        return [(job, point)]
    parts = zip(job.members, point.shares, strict=True)
    return [
        (member, replace(point, strategy=share.strategy, iteration_s=share.iteration_s, shares=()))
        for member, share in parts
    ]


def write_spec(job: Job, point: Point, most_ranks: int = MOST_RANKS) -> str:
    """The text of a spec. Raises ValueError for a point whose iteration sends nothing over the fabric."""
    strategy, direct = point.strategy, point.fabric.kind == "topoopt"
    cluster = shared_cluster(job, point)
    model = _Model(job.transformer, strategy, cluster)
    among = model.among
    if among.copies.domains * strategy.pipeline == 1 or cluster.group(strategy.gpus).domains == 1:
        raise ValueError("the chosen point sends nothing over the fabric: its GPUs are in one HB domain")
    if direct and strategy.pipeline > 1 and strategy.tensor * among.copies.inside < cluster.domain_gpus:
        raise ValueError("several pipeline stages share an HB domain, which no spec of direct connections has")
    size = _size(point, among.copies.domains, among.expert.domains, most_ranks)
    trained = {
        "model": "gpt3",
        "tensor": size.tensor,
        "pipeline": strategy.pipeline,
        "data": size.copies,
        "zero": strategy.zero,
        "microbatches": strategy.microbatches,
        "microbatch": strategy.microbatch,
        "interleave": strategy.interleave,
        "gpu": job.gpu,
        "compute_s": round(model.compute_s, 6),
        "part_bytes": _eights(model.part_bytes),
        **({"activation_bytes": _eights(model.stage.transfer_bytes)} if strategy.pipeline > 1 else {}),
    }
    if size.expert > 1:
        trained |= {
            "expert": size.expert,
            "recomputed": passes_of_tokens(strategy) > 2,
            "routed_bytes": _eights(model.routed_bytes),
            "expert_bytes": _eights(model.expert_bytes) if size.copies > size.expert else 0,
        }
    document: dict[str, Any] = {
        "name": f"{job.name}_chosen",
        "fabric": "fluid",
        "topology": {}
        if direct
        else _topology(point, gcd(size.tensor, cluster.domain_gpus), size.ranks, int(cluster.domain.rate_bps)),
        "workload": {"kind": "training", "iterations": 1, "models": [trained]},
        "placement": {"rule": "in_order", "ranks": size.ranks},
        "policies": [
            {"name": "ecmp", "policy": "ecmp"},
            {"name": "paralet", "policy": "ecmp", "m": 8},
        ],
        "seeds": 1,
    }
    if direct:
        document |= {"policies": [{"name": "direct", "policy": "ecmp"}], **_circuits(cluster, size)}
    header = _header(job, point, size, among.copies.domains)
    return f"{header}{yaml.safe_dump(document, sort_keys=False, width=120)}"


def left_out(point: Point) -> str | None:
    """What of a point's fabric its spec has not, in a sentence; None if nothing."""
    if point.parts.tiers > 2:
        return "The fabric has three tiers and the spec the lower two: collisions of paths in the third are not shown."
    if point.fabric.planes > 1:
        return f"The spec has the {point.fabric.planes} planes of the fabric as one."
    return None


@dataclass(frozen=True, slots=True)
class _Size:
    """The slice that a spec shows: GPUs of a tensor group, stages, copies, and copies of an expert group."""

    tensor: int
    pipeline: int
    copies: int
    expert: int

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.copies


def _size(point: Point, copies: int, expert: int, most_ranks: int) -> _Size:
    """At least two expert groups, or copies, where there are several: a GPU's gradients go around a ring of them."""
    groups, each = ceil(copies / expert), point.strategy.pipeline * expert
    tensor = 1 if point.fabric.kind == "topoopt" else point.strategy.tensor
    most_ranks = min(most_ranks, _LEAF_HOSTS) if point.fabric.kind == "clos" else most_ranks
    while tensor > 1 and tensor * each * min(2, groups) > most_ranks:
        tensor = max(part for part in range(1, tensor) if tensor % part == 0)
    kept = min(groups, max(2, most_ranks // (tensor * each)))
    return _Size(tensor, point.strategy.pipeline, kept * expert, expert)


@dataclass(frozen=True)
class _Model:
    """Bytes and seconds of a GPU, as workload `training` takes them."""

    transformer: Transformer
    strategy: Strategy
    cluster: Cluster

    @cached_property
    def stage(self) -> Stage:
        return stage_of(self.transformer, self.strategy, self.cluster)

    @cached_property
    def among(self) -> Groups:
        return groups_of(self.strategy, self.cluster)

    @cached_property
    def held(self) -> tuple[float, float]:
        """Parameters of all layers of the stage: that all copies have, and of experts."""
        shared, owned = parameters_of(self.transformer, self.strategy)
        return self.stage.layers * shared, self.stage.layers * owned

    @property
    def part_bytes(self) -> float:
        """Gradients that one ring of all HB domains sums, with those of experts where each domain has all of them."""
        shared = self._ring(self.among.copies, self.held[0])
        return shared + (self._ring(self.among.holders, self.held[1]) if self.among.expert.domains == 1 else 0.0)

    @property
    def expert_bytes(self) -> float:
        """Gradients that a ring of the domains that hold the same experts sums."""
        return self._ring(self.among.holders, self.held[1])

    def _ring(self, group: Group, parameters: float) -> float:
        """The vector of which a ring sends what the group does. The workload has a ring for each pass over the vector:
        ZeRO's stages pass over other bytes each time."""
        if group.domains < 2:
            return 0.0
        passes = [
            (what.bytes * (2 if what.kind == "all_reduce" else 1), count) for what, count in exchanges(self.strategy)
        ]
        width = sum(size * count for size, count in passes) / (3 if self.strategy.zero == 3 else 2)
        whole = group.domains / (group.domains - 1)
        return whole * group.fabric_bytes(Collective("all_gather", width * parameters))

    @property
    def _moved(self) -> list[Collective]:
        """The all-to-alls of a microbatch through a layer."""
        of = self.strategy
        block = layer(self.transformer, of.microbatch, of.tensor, of.sequence, of.expert)
        return [sent for operator in block for sent in operator.exchanged]

    @property
    def routed_bytes(self) -> float:
        """Tokens of an iteration's forward passes to each other HB domain of the expert group."""
        every = self.strategy.microbatches * self.stage.layers * sum(sent.bytes for sent in self._moved)
        return every / self.among.expert.domains

    @property
    def compute_s(self) -> float:
        """All that the workload does not send: computing, the bubble, the optimizer, the embedding's gradients, and
        what stays in HB domains."""
        inside_s = sum(
            count * self.cluster.domain.seconds(Collective(what.kind, what.bytes * size), group.inside)
            for group, size in zip((self.among.copies, self.among.holders), self.held, strict=True)
            for what, count in exchanges(self.strategy)
        )
        times = passes_of_tokens(self.strategy) * self.strategy.microbatches * self.stage.layers
        sent_s = times * sum(self.among.expert.all_to_all_fabric_s(sent.bytes) for sent in self._moved)
        passes = sum(passes_s(self.transformer, self.strategy, self.cluster))
        return passes + self.stage.optimizer_s + inside_s - sent_s + table_s(self.strategy, self.stage)


def _circuits(cluster: Cluster, size: _Size) -> dict[str, Any]:
    """The keys of a spec for direct connections. A GPU uses all NICs of its domain, so it has their shares of the rate.

    Rank p + pipeline d is stage p of copy d.
    """
    layers = _layers(cluster, size)
    named = [format_rate(int(rate)) for _, rate in layers]
    return {
        "topology": {"direct_connect": {"hosts": size.ranks, "degree": len(named), "rate": named}},
        "optical": {"strides": [stride for stride, _ in layers]},
    }


def _layers(cluster: Cluster, size: _Size) -> list[tuple[int | dict[str, int], float]]:
    """Strides and rates of the circuits: to the next copy, to the next stage and the one before, each by its own NIC;
    to the next copy that holds the same experts, and by permutations within each expert group."""
    rate, pipeline, ranks = cluster.fabric.rate_bps, size.pipeline, size.ranks
    found: list[tuple[int | dict[str, int], float]] = []
    if size.copies > 1:
        found.append((pipeline % ranks, cluster.ring_share * rate))
    if pipeline > 1:
        found += [(1, cluster.chain_share * rate), (ranks - 1, cluster.chain_share * rate)]
    if size.copies > size.expert > 1:
        found.append((pipeline * size.expert, cluster.ring_share * rate))
    load = cluster.all_to_all_load
    if size.expert > 1 and isinstance(load, Permutations):
        own = rate / cluster.domain_gpus
        found += [
            ({"stride": pipeline * stride, "within": pipeline * size.expert}, count * own)
            for stride, count in load.strides(size.expert)
        ]
    return found


def _header(job: Job, point: Point, size: _Size, copies: int) -> str:
    lines = [
        f"{job.transformer.name} on {point.gpus:,} GPUs, {point.label}: written by `paralet plan`.",
        f"{size.copies} of {copies} groups of copies that the fabric joins. Sizes are those of a GPU of this strategy;",
        "`model` is a placeholder, as all sizes and compute_s are given. compute_s has the bubble, tensor parallelism,",
        "the embedding's gradients, and what stays in HB domains. The closed form hides gradients behind the backward",
        "pass; this workload does not.",
    ]
    if (sentence := left_out(point)) is not None:
        lines.append(sentence)
    return "".join(f"# {line}\n" for line in lines) + "\n"


def _topology(point: Point, per_domain: int, ranks: int, domain_bps: int) -> dict[str, dict[str, int | str]]:
    fabric, rate = point.fabric, format_rate(point.fabric.nic_bps)
    radix = fabric.radix * fabric.planes
    domains = ceil(ranks / per_domain)
    if fabric.kind == "clos":
        single = point.parts.tiers == 1  # one switch has no uplinks that could be too few
        over = 1 if single else fabric.oversubscription
        down = radix if single else radix * over // (over + 1)
        hosts = min(ranks, _LEAF_HOSTS, max(per_domain, down * per_domain // fabric.domain_gpus))
        spines = max(1, hosts // over)
        made: dict[str, int | str] = {
            "leaves": ceil(ranks / hosts),
            "spines": spines,
            "hosts_per_leaf": hosts,
            "host_rate": rate,
        }
        if hosts != spines * over:  # so few hosts that no number of whole uplinks is right
            made["fabric_rate"] = format_rate(fabric.nic_bps * hosts // (spines * over))
        return {"leaf_spine": made}
    leaves = (
        1
        if domains <= radix
        else next(count for count in range(1, domains + 1) if domains % count == 0 and 2 * domains // count <= radix)
    )
    made = {
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
