# SPDX-License-Identifier: Apache-2.0
"""The time and memory of an iteration in closed form: compute, tensor, pipeline, data, expert, optimizer.

The task graph that `testbed.training.schedule` makes of the same strategy takes the same time where tasks share NICs
(`testbed.simulate.task_graphs.run_ideal`). Tests compare both. The graph is up to 1.2 % shorter where the last stage is
the slowest, which leaves slack for transfers, and up to 5 % shorter where stages differ by a layer and have few layers.
`testbed.training.ideal` takes longer where gradients are exchanged behind transfers between stages, because it does not
share NICs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.training.clusters import Cluster, Group
from testbed.training.hardware import Accelerator, Collective, Kind, Work
from testbed.training.operators import HALF, SINGLE, Operator, Times, times_of
from testbed.training.strategies import Recomputation, Strategy
from testbed.training.transformer import Transformer, embedding, layer, output, shared_sequence

_OPTIMIZER_BYTES = 8 + 4 + 8 + 28 + 6 + 4
"""Bytes that Megatron-LM's optimizer moves for each parameter, in single precision where not noted: unscale the
gradient (read, write), its norm (read), clip it (read, write), Adam (read gradient, weight and two moments, write the
latter three), copy the weight to half precision, clear the gradient."""

_STATE_BYTES = 3 * SINGLE
"""Adam's state of a parameter: the single-precision weight and two moments."""


class Sizes(NamedTuple):
    """What a GPU holds: parameters, and bytes of activations."""

    shared: float
    """Parameters of a layer that all copies hold."""
    owned: float
    """Parameters of a layer's experts."""
    table: float
    """Parameters of the embedding."""
    kept_bytes: float
    """Activations of a layer that one microbatch keeps until its backward pass."""
    again_bytes: float
    """Activations of a layer that its backward pass computes again."""
    first_bytes: float
    """Activations of the embedding that one microbatch keeps."""
    last_bytes: float
    """The same of the output."""


class Parts(NamedTuple):
    """One microbatch through one layer, through the embedding and through the output."""

    layer: Times
    first: Times
    last: Times


class Exchanges(NamedTuple):
    """What copies exchange for one layer or the table, in seconds, and the ring's whole vector that loads the fabric as
    much."""

    gradient_s: float
    """An all-reduce, or for ZeRO a reduce-scatter."""
    gather_s: float
    """ZeRO's all-gather of parameters."""
    gradient_bytes: float
    gather_bytes: float


@dataclass(frozen=True, slots=True)
class Stage:
    """What one GPU of a pipeline stage does, in seconds."""

    plain: Times
    """One microbatch through a chunk of layers, without the embedding and the output."""
    first: Times
    """What the pipeline's first chunk takes more: the embedding, without the layer that this chunk may lack."""
    last: Times
    """What the pipeline's last chunk takes more: the output, without the layer that this chunk may lack."""
    transfer_s: float
    """One microbatch's activations, or their gradients, to the next stage's GPU."""
    gradient_s: float
    """The gradients of one layer among the copies: an all-reduce, or for ZeRO a reduce-scatter."""
    gather_s: float
    """The parameters of one layer among the copies: ZeRO's all-gather."""
    optimizer_s: float
    layers: int
    """Layers of the largest stage, all chunks together."""
    layers_of_first: int
    """Layers of the first stage."""
    layers_of_last: int
    """Layers of the last stage."""
    transfer_bytes: float
    """Of `transfer_s`, what a GPU sends over the fabric; 0 within an HB domain."""
    gradient_bytes: float
    """Of `gradient_s`, the gradients that are reduced over the fabric."""
    gather_bytes: float
    """Of `gather_s`, the parameters that are gathered over the fabric."""
    table: Exchanges
    """The same of the embedding's table, which the first and the last stage hold."""
    tied_s: float
    """The all-reduce of the table's gradients between the first and the last stage."""
    tied_bytes: float
    """Of `tied_s`, the vector over the fabric."""


_Value = TypeVar("_Value", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class IterationParts(Generic[_Value]):
    """Seconds of an iteration, by what the slowest GPU does; they add up to `iteration_s`.

    Each is a number for one strategy, or an array with an element for each of several.
    """

    compute_s: _Value
    recompute_s: _Value
    tensor_s: _Value
    """Exposed collectives of the tensor group."""
    expert_s: _Value
    """Exposed all-to-alls of the expert group."""
    bubble_s: _Value
    """Waiting while the pipeline fills and drains."""
    transfer_s: _Value
    """Exposed transfers between stages."""
    data_s: _Value
    """Exposed collectives among copies."""
    optimizer_s: _Value
    memory_bytes: _Value
    """Of the GPU with the most: parameters, gradients, optimizer state, activations."""

    @property
    def iteration_s(self) -> _Value:
        """The time of an iteration in seconds: the sum of its parts."""
        return (
            self.compute_s
            + self.recompute_s
            + self.tensor_s
            + self.expert_s
            + self.bubble_s
            + self.transfer_s
            + self.data_s
            + self.optimizer_s
        )


Estimate = IterationParts[float]
"""The closed form of one strategy."""


def check(model: Transformer, strategy: Strategy) -> None:
    """Raises ValueError when the model cannot be split so.

    With chunks the layers divide into them, but for one or two that are missing (`fewer_layers`). Without chunks they
    need not divide among the stages: the largest stage counts.
    """
    chunks = strategy.pipeline * strategy.interleave
    if strategy.interleave > 1 and -model.layers % chunks > 2:
        raise ValueError(
            f"{model.name}: {model.layers} layers do not divide into {chunks} chunks of equal size, not even if the "
            "first and the last chunk have a layer fewer"
        )
    if strategy.pipeline > model.layers:
        raise ValueError(f"{model.name}: {model.layers} layers are fewer than {strategy.pipeline} stages")
    if model.heads % strategy.tensor:
        raise ValueError(f"{model.name}: {model.heads} heads do not divide among {strategy.tensor} GPUs")
    if model.key_heads and model.key_heads % strategy.tensor:
        raise ValueError(f"{model.name}: {model.key_heads} heads of keys do not divide among {strategy.tensor} GPUs")
    if strategy.context > 1 and model.sequence % (2 * strategy.context):
        raise ValueError(
            f"{model.name}: a sequence of {model.sequence} tokens does not divide into {2 * strategy.context} pieces, "
            f"two for each of {strategy.context} tensor groups that share it"
        )
    if strategy.expert > 1 and model.experts % strategy.expert:
        raise ValueError(f"{model.name}: {model.experts} experts do not divide among {strategy.expert} copies")


def fewer_layers(layers: int, chunks: int) -> tuple[int, int]:
    """How many layers fewer than the others the first and the last of a pipeline's chunks have, each 0 or 1.

    Where one layer is missing for chunks of equal size, the last chunk lacks it, because it has the output. Where two
    are missing, the first chunk lacks the other one: 126 layers of Llama 3 are split like 128 ("The Llama 3 Herd of
    Models", arXiv:2407.21783, section 3.3.2).
    """
    missing = -layers % chunks
    return (missing // 2, missing - missing // 2) if chunks > 1 and missing <= 2 else (0, 0)


def layers_of_stages(model: Transformer, strategy: Strategy) -> tuple[int, int, int]:
    """Layers of the largest stage, of the first and of the last one."""
    chunks = strategy.pipeline * strategy.interleave
    whole, (first, last) = strategy.interleave * ceil(model.layers / chunks), fewer_layers(model.layers, chunks)
    return ceil(model.layers / strategy.pipeline), whole - first, whole - last


@lru_cache(maxsize=65536)
def sizes_of(
    model: Transformer,
    microbatch: int,
    tensor: int,
    sequence: bool,
    expert: int,
    recomputation: Recomputation,
    flash: bool,
    context: int = 1,
    fp8: bool = False,
) -> Sizes:
    """What a GPU of a tensor group holds (Korthikanti et al., sections 4 and 5).

    Selective recomputation keeps what attention's core starts from, queries, keys and values. Full recomputation keeps
    the input of each layer.
    """
    block = layer(model, microbatch, tensor, sequence, expert, flash, context, fp8)
    model = shared_sequence(model, context)
    owned, whole = _count(operator for operator in block if operator.exchanged), _saved(block)
    if recomputation == "full":
        kept = HALF * microbatch * model.sequence * model.hidden / (tensor if sequence else 1)
    else:
        dropped = recomputation == "selective"
        kept = _saved(operator for operator in block if not (dropped and operator.recomputed and not operator.flops))
    ends = embedding(model, microbatch, tensor, sequence), output(model, microbatch, tensor, sequence)
    return Sizes(_count(block) - owned, owned, _count(ends[0]), kept, whole - kept, *(_saved(some) for some in ends))


@lru_cache(maxsize=65536)
def parts_of(
    model: Transformer,
    microbatch: int,
    sequence: bool,
    recomputation: Recomputation,
    tensor: Group,
    expert: Group,
    gpu: Accelerator,
    flash: bool,
    context: Group | None = None,
    overlap: bool = False,
    fp8: bool = False,
    overlap_inputs: bool = True,
) -> Parts:
    """The times of one microbatch on a GPU. `context` shares each sequence; both overlaps are those of `times_of`."""
    size = microbatch, tensor.members, sequence
    among = context.members if context else 1
    block, model = layer(model, *size, expert.members, flash, among, fp8), shared_sequence(model, among)
    return Parts(
        times_of(
            block,
            gpu,
            tensor=tensor,
            expert=expert,
            context=context,
            recomputation=recomputation,
            overlap=overlap,
            overlap_inputs=overlap_inputs,
        ),
        *(
            times_of(end, gpu, tensor=tensor, expert=expert, overlap=overlap, overlap_inputs=overlap_inputs)
            for end in (embedding(model, *size), output(model, *size))
        ),
    )


def transfer_of(model: Transformer, strategy: Strategy, cluster: Cluster) -> tuple[float, float]:
    """Seconds of one microbatch's activations to the next stage's GPU, and what a GPU sends of them over the fabric.

    Without sequence parallelism a GPU sends its share, and the receivers gather the whole.
    """
    if strategy.pipeline == 1:
        return 0.0, 0.0
    spread = HALF * strategy.microbatch * model.sequence // strategy.context * model.hidden
    stages, sent = cluster.group(strategy.pipeline, strategy.tensor * strategy.copies), spread / strategy.tensor
    seconds = stages.seconds(Collective("send", sent))
    if not strategy.sequence:
        seconds += cluster.group(strategy.tensor).seconds(Collective("all_gather", spread))
    return seconds, stages.fabric_bytes(Collective("send", sent))


def exchanges_of(strategy: Strategy, shared: float, owned: float, cluster: Cluster) -> Exchanges:
    """The exchanges of `shared` parameters among all copies, and of `owned` ones among those that hold them."""
    copies = strategy.copies
    among = cluster.group(copies, strategy.tensor)
    experts = cluster.group(copies // strategy.expert, strategy.tensor * strategy.expert)
    kind: Kind = "all_reduce" if strategy.zero == 0 else "reduce_scatter"
    width = strategy.gradient_width
    gradient = among.seconds(Collective(kind, width * shared)) + experts.seconds(Collective(kind, width * owned))
    gather = 0.0
    if strategy.zero:
        gathered = Collective("all_gather", HALF * shared), Collective("all_gather", HALF * owned)
        gather = among.seconds(gathered[0]) + experts.seconds(gathered[1])
    return Exchanges(
        gradient,
        gather,
        _ring_bytes(copies, (among, width * shared), (experts, width * owned)),
        _ring_bytes(copies, (among, HALF * shared), (experts, HALF * owned)) if strategy.zero else 0.0,
    )


def _ring_bytes(copies: int, *parts: tuple[Group, float]) -> float:
    """The vector of which a ring of all copies sends as much over the fabric as these groups do of theirs.

    That is less than their vectors with hierarchical collectives, and where only some copies hold an expert.
    """
    sent = sum(group.fabric_bytes(Collective("all_gather", size)) for group, size in parts)
    return sent * copies / (copies - 1) if copies > 1 else 0.0


def tied_of(strategy: Strategy, table: float, cluster: Cluster) -> tuple[float, float]:
    """Seconds of the all-reduce of `table` parameters' gradients between the first and the last stage, and its vector
    over the fabric. Both hold the table (M. Shoeybi et al., "Megatron-LM", 2019; `_allreduce_word_embedding_grads`)."""
    if strategy.pipeline == 1:
        return 0.0, 0.0
    ends = cluster.group(2, strategy.tensor * strategy.copies * (strategy.pipeline - 1))
    size = strategy.gradient_width * table / (strategy.copies if strategy.zero > 1 else 1)
    return ends.seconds(Collective("all_reduce", size)), size if ends.domains > 1 else 0.0


def optimizer_seconds(strategy: Strategy, held: float, owned: float, gpu: Accelerator) -> float:
    """The optimizer's time for a GPU's parameters, which ZeRO splits among the copies, and its experts' `owned` ones,
    which it splits among the copies that hold them."""
    copies = strategy.copies if strategy.zero else 1
    split = held / copies + owned / (copies / strategy.expert if strategy.zero else 1)
    return gpu.seconds(Work(bytes=_OPTIMIZER_BYTES * split))


@lru_cache(maxsize=4096)
def stage_of(model: Transformer, strategy: Strategy, cluster: Cluster) -> Stage:
    """The times of a stage. Ranks are numbered tensor first, then data, then pipeline, as in Megatron-LM.

    Raises ValueError as `check`.
    """
    check(model, strategy)
    layers, of_first, of_last = layers_of_stages(model, strategy)
    chunks, sizes = strategy.pipeline * strategy.interleave, _sizes(model, strategy)
    fewer = fewer_layers(model.layers, chunks)
    parts = parts_of(
        model,
        strategy.microbatch,
        strategy.sequence,
        strategy.recomputation,
        cluster.group(strategy.tensor),
        cluster.group(strategy.expert, strategy.tensor),
        cluster.gpu,
        strategy.flash,
        cluster.group(strategy.context, strategy.tensor),
        strategy.overlap_tensor,
        strategy.fp8,
        strategy.overlap_inputs,
    )
    transfer_s, transfer_bytes = transfer_of(model, strategy, cluster)
    exchanges = exchanges_of(strategy, sizes.shared, sizes.owned, cluster)
    tied_s, tied_bytes = tied_of(strategy, sizes.table, cluster)
    return Stage(
        plain=parts.layer * ceil(model.layers / chunks),
        first=parts.first + parts.layer * -fewer[0],
        last=parts.last + parts.layer * -fewer[1],
        transfer_s=transfer_s,
        gradient_s=exchanges.gradient_s,
        gather_s=exchanges.gather_s,
        optimizer_s=max(
            optimizer_seconds(strategy, count * sizes.shared + table, count * sizes.owned, cluster.gpu)
            for count, table in ((layers, 0.0), (of_first, sizes.table), (of_last, sizes.table))
        ),
        layers=layers,
        layers_of_first=of_first,
        layers_of_last=of_last,
        transfer_bytes=transfer_bytes,
        gradient_bytes=exchanges.gradient_bytes,
        gather_bytes=exchanges.gather_bytes,
        table=exchanges_of(strategy, sizes.table, 0.0, cluster),
        tied_s=tied_s,
        tied_bytes=tied_bytes,
    )


def estimate(model: Transformer, strategy: Strategy, cluster: Cluster) -> Estimate:
    """An iteration's time and memory.

    Raises ValueError as `check`, for tensor groups that straddle HB domains, which nobody would place so, and for ZeRO
    stage 3 in a pipeline: its gathers lengthen every pass, also those that fill the pipeline. A task graph has them.
    """
    if strategy.zero == 3 and strategy.pipeline > 1:
        raise ValueError("the closed form has no ZeRO stage 3 in a pipeline; take stage 2, or simulate the task graph")
    if strategy.gpus > cluster.domain_gpus and cluster.straddled(strategy.tensor):
        raise ValueError(
            f"tensor groups of {strategy.tensor} GPUs straddle HB domains of {cluster.domain_gpus}; take a divisor or "
            "a multiple of them"
        )
    stage = stage_of(model, strategy, cluster)
    slowest, filling = _pipeline(strategy, stage)
    run = slowest * strategy.microbatches
    return IterationParts(
        compute_s=run.forward_s + run.backward_s,
        recompute_s=run.recompute_s,
        tensor_s=run.tensor_s,
        expert_s=run.expert_s,
        bubble_s=filling.microbatch_s,
        transfer_s=_transfers_s(strategy, stage.transfer_s),
        data_s=_data_s(strategy, stage, slowest.microbatch_s),
        optimizer_s=stage.optimizer_s,
        memory_bytes=memory_bytes(model, strategy),
    )


def refuse_shared_sequences(strategy: Strategy, what: str) -> None:
    """Raises ValueError with context parallelism, which `what` does not have."""
    if strategy.context > 1:
        raise ValueError(f"{what} has no tensor groups that share a sequence; take context 1, or the closed form")


def passes_s(model: Transformer, strategy: Strategy, cluster: Cluster) -> tuple[float, float]:
    """Forward and backward time of an iteration with the pipeline's bubble, but without what copies and stages send.

    Raises ValueError as `check`.
    """
    slowest, filling = _pipeline(strategy, stage_of(model, strategy, cluster))
    run = slowest * strategy.microbatches + filling
    return run.whole_forward_s, run.whole_backward_s


def _pipeline(strategy: Strategy, stage: Stage) -> tuple[Times, Times]:
    """One microbatch on the slowest stage; and what fills and drains the pipeline: a chunk of every other stage.

    An end may be faster than the stages between both, where it lacks a layer.
    """
    whole = stage.plain * strategy.interleave
    if strategy.pipeline == 1:
        return whole + stage.first + stage.last, Times()
    slow = {"first": stage.first, "last": stage.last, "inner": Times()}[slowest_of(strategy, stage)]
    return whole + slow, stage.plain * (strategy.pipeline - 1) + stage.first + stage.last + slow * -1


def slowest_of(strategy: Strategy, stage: Stage) -> Literal["first", "last", "inner"]:
    """The slowest stage of a pipeline. Of several, the last one."""
    first, last = stage.first.microbatch_s, stage.last.microbatch_s
    if strategy.pipeline > 2 and max(first, last) < 0:
        return "inner"
    return "last" if last >= first else "first"


def _transfers_s(strategy: Strategy, transfer_s: float) -> float:
    """Exposed transfers between stages.

    Where a stage does nothing else while it receives, a transfer lengthens the pass that it is for. Only the first
    stage's first chunk and, backward, the last stage's last one receive nothing. With chunks this is approximate.

    Otherwise 1F1B leaves no slack: the first stage has p microbatches in flight, and each round of them takes the way
    to the last stage and back, 2 (p - 1) transfers. The longest path makes as many whole rounds as it can. A rest of
    r more microbatches goes round among the last r stages. An interleaved schedule has slack for a transfer,
    so only filling and draining is exposed: p v - 1 transfers each way.
    """
    stages, batches, chunks = strategy.pipeline, strategy.microbatches, strategy.interleave
    if stages == 1:
        return 0.0
    if not strategy.overlap_transfers:
        slowest = 2 * chunks - (stages == 2)
        return transfer_s * max(2 * (stages - 1), slowest * batches + 2 * stages - (3 if stages == 2 else 5))
    if chunks > 1:
        return 2 * transfer_s * (stages * chunks - 1)
    rounds, rest = divmod(batches - 1, stages)
    return 2 * transfer_s * ((stages - 1) * (1 + rounds) + max(0, rest - 1))


def _data_s(strategy: Strategy, stage: Stage, microbatch_s: float) -> float:
    """Exposed collectives among copies, where the slowest stage takes `microbatch_s` for a microbatch.

    Gradients of a layer are ready when the backward pass has left it. They are sent one after the other, behind the
    backward pass of the layers that follow. Copies that hold all gradients sum those of microbatches by themselves, and
    exchange them once. ZeRO's stages 2 and 3 hold a shard, so that each microbatch's gradients are reduce-scattered
    (S. Rajbhandari et al., SC 2020, section 5.2). Those that a backward pass does not hide are sent behind what
    follows. If they take longer than a microbatch computes, all later ones wait for them.

    The embedding's table comes after the layers, with nothing left to hide it. Then the first and the last stage sum
    its gradients. ZeRO's stages 1 and 2 gather all parameters at the end. Stage 3 gathers the table once, and a layer's
    parameters before its forward and its backward pass, behind the layer before it. With several chunks, the gradients
    of all but the first have more time than is counted here.
    """
    if strategy.copies == 1:
        return stage.tied_s
    whole = stage.plain * strategy.interleave + stage.first
    if strategy.pipeline == 1:
        whole += stage.last
    layers, batches = stage.layers_of_first, strategy.microbatches
    forward, backward = whole.whole_forward_s / layers, whole.whole_backward_s / layers
    gather, gradient = stage.gather_s, stage.gradient_s
    rounds = reductions(strategy)
    table, tied = stage.table, stage.tied_s
    if strategy.zero < 3:
        gathers = layers * gather + table.gather_s + tied
        if not strategy.overlap_gradients:
            return gathers + rounds * (layers * gradient + table.gradient_s)
        late = (rounds - 1) * max(0.0, layers * gradient + table.gradient_s - microbatch_s)
        return gathers + late + max(gradient, layers * gradient - (layers - 1) * backward) + table.gradient_s
    exposed = table.gather_s + gather + layers * batches * max(0.0, gather - forward)
    if not strategy.overlap_gradients:
        return exposed + batches * (layers * (max(0.0, gather - backward) + gradient) + table.gradient_s)
    return exposed + layers * batches * max(0.0, gather + gradient - backward) + gradient + table.gradient_s


def reductions(strategy: Strategy) -> int:
    """How often copies exchange gradients in an iteration: once, or where each holds a shard, for each microbatch."""
    return strategy.microbatches if strategy.zero > 1 else 1


def memory_bytes(model: Transformer, strategy: Strategy) -> float:
    """Bytes on the GPU that holds the most, at most: the largest state and the largest activations of any stage, which
    are the same stage's where all have as many layers. Raises ValueError as `check`."""
    check(model, strategy)
    return state_bytes(model, strategy) + live_bytes(model, strategy) + gathered_bytes(model, strategy)


def state_bytes(model: Transformer, strategy: Strategy) -> float:
    """Bytes of parameters, gradients and Adam's state on the GPU that holds the most of them. The first and the last
    stage each have the table.

    A parameter takes 2 bytes, its gradient 4 (or 2) and Adam's state 12; ZeRO's stages divide them by the number of
    copies, and those of experts by the number of copies that hold them.
    """
    sizes = _sizes(model, strategy)
    (layers, *ends), zero, copies = layers_of_stages(model, strategy), strategy.zero, strategy.copies
    each, owned = (
        parameter_bytes(zero, holders, strategy.gradient_width) for holders in (copies, copies // strategy.expert)
    )
    return max(
        (count * sizes.shared + table) * each + count * sizes.owned * owned
        for count, table in ((layers, 0.0), *((end, sizes.table) for end in ends))
    )


def gathered_bytes(model: Transformer, strategy: Strategy) -> float:
    """Bytes that ZeRO's stage 3 has gathered: the layer that computes, the next one, and the table."""
    sizes = _sizes(model, strategy)
    return (
        HALF * (2 * (sizes.shared + sizes.owned) + sizes.table) if strategy.zero == 3 and strategy.copies > 1 else 0.0
    )


def live_bytes(model: Transformer, strategy: Strategy) -> float:
    """Bytes of activations on the stage that has the most: the first, the second or the last one.

    The first stage keeps those of most microbatches, but the second one may have a layer more. The last one has the
    output's, those of all microbatches if all go forward before any goes backward (`schedule.passes`). The output's are
    free again when the backward pass computes activations of the last layer again, one layer at a time.
    """
    sizes, (layers, _, of_last) = _sizes(model, strategy), layers_of_stages(model, strategy)
    stages, batches, chunks = strategy.pipeline, strategy.microbatches, strategy.interleave
    together = chunks > 1 and batches == stages
    outputs, flying = (batches, batches) if together else (1, min(batches, stages - (stages - 1) / chunks))
    first = activation_bytes(model, strategy) + min(batches, _flying(strategy)) * sizes.first_bytes
    last = flying * of_last * sizes.kept_bytes + (outputs - 1) * sizes.last_bytes
    if stages == 1:
        return first + max(sizes.last_bytes, sizes.again_bytes)
    second = min(batches, stages + (stages - 3) / chunks if chunks > 1 else stages - 1) * layers * sizes.kept_bytes
    inner = second if stages > 2 else 0.0
    return max(max(first, inner) + sizes.again_bytes, last + max(sizes.last_bytes, sizes.again_bytes))


def parameter_bytes(zero: int, copies: int, gradient: float = SINGLE) -> float:
    """Bytes of a parameter, its gradient of so many bytes and Adam's state on one of `copies` GPUs."""
    parts = (HALF, 3), (gradient, 2), (_STATE_BYTES, 1)
    return sum(width / (copies if zero >= stage else 1) for width, stage in parts)


def activation_bytes(model: Transformer, strategy: Strategy) -> float:
    """Bytes of activations that layers of the first stage keep: Figure 1 of Korthikanti et al."""
    kept, (_, layers, _) = _sizes(model, strategy).kept_bytes, layers_of_stages(model, strategy)
    return min(strategy.microbatches, _flying(strategy)) * layers * kept


def _flying(strategy: Strategy) -> float:
    """Microbatches whose activations the first stage keeps: p, and with v chunks p + (p - 1) / v."""
    stages = strategy.pipeline
    return stages + ((stages - 1) / strategy.interleave if strategy.interleave > 1 else 0.0)


def _sizes(model: Transformer, strategy: Strategy) -> Sizes:
    return sizes_of(
        model,
        strategy.microbatch,
        strategy.tensor,
        strategy.sequence,
        strategy.expert,
        strategy.recomputation,
        strategy.flash,
        strategy.context,
        strategy.fp8,
    )


def _count(operators: Iterable[Operator]) -> float:
    return sum(operator.parameters for operator in operators)


def _saved(operators: Iterable[Operator]) -> float:
    return sum(operator.saved_bytes for operator in operators)
