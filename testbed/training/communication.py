# SPDX-License-Identifier: Apache-2.0
"""What a GPU sends in an iteration, and how long that takes, whether computing hides it or not."""

from dataclasses import dataclass

from testbed.training.closed_form import (
    Estimate,
    Stage,
    estimate,
    reductions,
    refuse_shared_sequences,
    sizes_of,
    slowest_of,
    stage_of,
)
from testbed.training.clusters import Cluster, Group
from testbed.training.hardware import Collective
from testbed.training.operators import HALF, Operator
from testbed.training.strategies import Strategy
from testbed.training.transformer import Transformer, embedding, layer, output


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that a GPU of an inner pipeline stage sends over the fabric in an iteration."""

    tokens: float
    """Bytes of tokens to other GPUs of its expert group."""
    activations: float
    """Bytes of activations to the next stage, and of their gradients to the one before."""
    shared: float
    """Bytes of gradients and parameters that all copies have."""
    owned: float
    """Bytes of gradients and parameters of experts."""


def sent_over_fabric(model: Transformer, strategy: Strategy, cluster: Cluster) -> Sent:
    """The bytes behind the closed form's times. Embedding and output are left out. Raises ValueError as its `check` and
    for groups that share a sequence."""
    refuse_shared_sequences(strategy, "the count of what is sent")
    stage, among = stage_of(model, strategy, cluster), groups_of(strategy, cluster)
    shared, owned = parameters_of(model, strategy)
    tokens = passes_of_tokens(strategy) * sum(
        among.expert.fabric_bytes(sent)
        for operator in layer(model, strategy.microbatch, strategy.tensor, strategy.sequence, strategy.expert)
        for sent in operator.exchanged
    )
    each = [
        sum(count * group.fabric_bytes(Collective(what.kind, what.bytes * size)) for what, count in exchanges(strategy))
        for group, size in ((among.copies, shared), (among.holders, owned))
    ]
    return Sent(
        tokens=strategy.microbatches * stage.layers * tokens,
        activations=2 * strategy.interleave * strategy.microbatches * stage.transfer_bytes,
        shared=stage.layers * each[0],
        owned=stage.layers * each[1],
    )


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that a GPU is in, beside its tensor group."""

    copies: Group
    """All copies."""
    expert: Group
    """Copies that share experts."""
    holders: Group
    """Copies that hold the same experts."""


def groups_of(strategy: Strategy, cluster: Cluster) -> Groups:
    """The groups of a strategy on a cluster."""
    tensor, expert = strategy.tensor, strategy.expert
    return Groups(
        copies=cluster.group(strategy.data, tensor),
        expert=cluster.group(expert, tensor),
        holders=cluster.group(strategy.data // expert, tensor * expert),
    )


def parameters_of(model: Transformer, strategy: Strategy) -> tuple[float, float]:
    """A GPU's parameters of a layer: those that all copies have, and its experts'."""
    sizes = sizes_of(model, strategy.microbatch, strategy.tensor, strategy.sequence, strategy.expert, "none", False)
    return sizes.shared, sizes.owned


def passes_of_tokens(strategy: Strategy) -> int:
    """How often a microbatch's tokens go to the experts of a layer and back: forward, backward, recomputed."""
    return 3 if strategy.recomputation == "full" else 2


def exchanges(strategy: Strategy) -> list[tuple[Collective, int]]:
    """The collectives of copies in an iteration, with the bytes of one parameter, and how often they take place."""
    if strategy.zero == 0:
        return [(Collective("all_reduce", strategy.gradient_width), 1)]
    gathers = 2 * strategy.microbatches if strategy.zero == 3 else 1
    summed = Collective("reduce_scatter", strategy.gradient_width)
    return [(summed, reductions(strategy)), (Collective("all_gather", HALF), gathers)]


def exposed_s(found: Estimate) -> float:
    """Seconds of an iteration in which a GPU only communicates, or by which its products are longer beside collectives
    (`Accelerator.exposed_s`)."""
    return found.tensor_s + found.expert_s + found.transfer_s + found.data_s


def hidden_s(model: Transformer, strategy: Strategy, cluster: Cluster) -> float:
    """Seconds that the slowest stage saves because it communicates while it computes: what its collectives and
    transfers take one after the other, without what is exposed. It communicates beside computing for longer than that
    where products are longer beside collectives. Raises ValueError as `closed_form.estimate` and for groups that share
    a sequence.

    Each kind counts for itself: transfers that fill the pipeline are exposed, and hide nothing of another kind.
    """
    refuse_shared_sequences(strategy, "the count of what is hidden")
    found, stage = estimate(model, strategy, cluster), stage_of(model, strategy, cluster)
    size = strategy.microbatch, strategy.tensor, strategy.sequence
    block = layer(model, *size, strategy.expert)
    first, last = embedding(model, *size), output(model, *size)
    slowest = slowest_of(strategy, stage)
    layers = {"first": stage.layers_of_first, "last": stage.layers_of_last, "inner": stage.layers}[slowest]
    ends = [*first, *last] if strategy.pipeline == 1 else {"first": first, "last": last, "inner": []}[slowest]
    group, again = cluster.group(strategy.tensor), strategy.recomputation == "full"
    tensor_s = layers * sum(_tensor_s(operator, group, again) for operator in block)
    tensor_s += sum(_tensor_s(operator, group, False) for operator in ends)
    transfers_s = 2 * strategy.interleave * strategy.microbatches * stage.transfer_s
    busy = (
        (strategy.microbatches * tensor_s, found.tensor_s),
        (transfers_s, found.transfer_s),
        (_copies_s(strategy, stage), found.data_s),
    )
    return sum(max(0.0, taken - exposed) for taken, exposed in busy)  # nothing hides all-to-alls of experts


def _tensor_s(operator: Operator, group: Group, again: bool) -> float:
    forward = sum(group.seconds(sent) for sent in operator.sent_forward)
    behind = [sent for sent in (operator.behind_input, operator.behind_weight) if sent is not None]
    return (1 + again) * forward + sum(group.seconds(sent) for sent in (*operator.sent_backward, *behind))


def _copies_s(strategy: Strategy, stage: Stage) -> float:
    if strategy.data == 1:
        return stage.tied_s
    gathers, times = 2 * strategy.microbatches if strategy.zero == 3 else 1, reductions(strategy)
    layers_s = stage.layers * (times * stage.gradient_s + gathers * stage.gather_s)
    return layers_s + table_s(strategy, stage)


def table_s(strategy: Strategy, stage: Stage) -> float:
    """Seconds of what the first stage exchanges of the embedding's table, with copies and with the last stage."""
    return reductions(strategy) * stage.table.gradient_s + stage.table.gather_s + stage.tied_s
