# SPDX-License-Identifier: Apache-2.0
"""The task graph of a pipelined iteration: 1F1B, interleaved 1F1B, and what copies of a model exchange.

Device s + p d is stage s of copy d, a tensor group. Its collectives are part of its computing time, because they stay
in its HB domain. So are all-to-alls of experts that do. D. Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2, has the schedules.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from testbed.training.closed_form import fewer_layers, reductions, refuse_shared_sequences, stage_of
from testbed.training.clusters import Cluster
from testbed.training.hardware import Collective, Kind, sent_bytes
from testbed.training.operators import times_of
from testbed.training.strategies import Strategy
from testbed.training.tasks import TaskGraph
from testbed.training.transformer import Transformer, layer


class Exchange(NamedTuple):
    """What one device sends over the fabric, and a time before that: latency, or a part that stays in an HB domain."""

    bytes: float = 0.0
    """The bytes of a message, or of the whole vector of a collective."""
    delay_s: float = 0.0


_NOTHING = Exchange()


@dataclass(frozen=True, slots=True)
class Work:
    """What every stage does, in seconds and bytes."""

    forward_s: float
    """The forward pass of one microbatch through a chunk of layers."""
    backward_s: float
    layers: int
    """The number of layers of a chunk, whose gradients are exchanged one after the other."""
    fewer: tuple[int, int] = (0, 0)
    """How many layers fewer the first stage's first chunk and the last stage's last chunk have."""
    activations: Exchange = _NOTHING
    """The activations of a microbatch, from a stage to the next; their gradients come back in the same way."""
    gradients: Exchange = _NOTHING
    """The gradients of one layer on one device."""
    parameters: Exchange = _NOTHING
    """The parameters of one layer on one device, which ZeRO's stages 1 to 3 gather."""
    first: tuple[float, float] = (0.0, 0.0)
    """Forward and backward time that the first stage's first chunk takes more: the embedding, without `fewer`."""
    last: tuple[float, float] = (0.0, 0.0)
    """The same of the last stage's last chunk: the output and the loss."""
    optimizer_s: float = 0.0
    table_gradients: Exchange = _NOTHING
    """The gradients of the embedding's table on one device of the first or the last stage."""
    table_parameters: Exchange = _NOTHING
    """The parameters of that table, which ZeRO gathers."""
    tokens: Exchange = _NOTHING
    """The tokens that one device sends to the experts of a layer on other copies; as many come back."""
    experts: tuple[float, float] = (0.0, 0.0)
    """Forward and backward time of a layer's experts, between both."""
    tied: Exchange = _NOTHING
    """The gradients of that table, which the first and the last stage exchange."""


def work_of(model: Transformer, strategy: Strategy, cluster: Cluster) -> Work:
    """What the closed form counts, as work of the stages.

    On the ideal switch with NICs of `cluster.fabric.rate_bps` times `.efficiency` it takes as long as there. Bytes are
    those of one GPU, for a device that stands for a tensor group. Raises ValueError as `closed_form.check` and for
    groups that share a sequence.
    """
    refuse_shared_sequences(strategy, "the task graph")
    stage = stage_of(model, strategy, cluster)
    rate_bps = cluster.fabric.rate_bps * cluster.fabric.efficiency
    kind: Kind = "all_reduce" if strategy.zero == 0 else "reduce_scatter"

    def exchange(seconds: float, kind: Kind, size: float, members: int) -> Exchange:
        return Exchange(size, max(0.0, seconds - 8 * sent_bytes(Collective(kind, size), members) / rate_bps))

    tokens, experts = _experts_of(model, strategy, cluster)
    hidden_s = 0.0 if tokens == _NOTHING else stage.plain.expert_s / 2  # tasks of their own
    return Work(
        stage.plain.whole_forward_s - hidden_s,
        stage.plain.whole_backward_s - hidden_s,
        ceil(model.layers / (strategy.pipeline * strategy.interleave)),
        fewer_layers(model.layers, strategy.pipeline * strategy.interleave),
        activations=exchange(stage.transfer_s, "send", stage.transfer_bytes, 2),
        gradients=exchange(stage.gradient_s, kind, stage.gradient_bytes, strategy.data),
        parameters=exchange(stage.gather_s, "all_gather", stage.gather_bytes, strategy.data),
        first=(stage.first.whole_forward_s, stage.first.whole_backward_s),
        last=(stage.last.whole_forward_s, stage.last.whole_backward_s),
        optimizer_s=stage.optimizer_s,
        table_gradients=exchange(stage.table.gradient_s, kind, stage.table.gradient_bytes, strategy.data),
        table_parameters=exchange(stage.table.gather_s, "all_gather", stage.table.gather_bytes, strategy.data),
        tokens=tokens,
        experts=experts,
        tied=exchange(stage.tied_s, "all_reduce", stage.tied_bytes, 2),
    )


def _experts_of(model: Transformer, strategy: Strategy, cluster: Cluster) -> tuple[Exchange, tuple[float, float]]:
    """What a layer's experts exchange over the fabric each way, and their time forward and backward."""
    group = cluster.group(strategy.expert, strategy.tensor)
    size = strategy.microbatch, strategy.tensor, strategy.sequence
    block = layer(model, *size, strategy.expert, strategy.flash, fp8=strategy.fp8)
    ends = [place for place, operator in enumerate(block) if operator.exchanged]
    if not ends or group.domains == 1:
        return _NOTHING, (0.0, 0.0)
    (what,) = block[ends[0]].exchanged
    sent = group.fabric_bytes(what)
    delay_s = group.seconds(what) - 8 * sent / (cluster.fabric.rate_bps * cluster.fabric.efficiency)
    inner = times_of(
        block[ends[0] : ends[-1] + 1],
        cluster.gpu,
        tensor=cluster.group(strategy.tensor),
        expert=group,
        recomputation=strategy.recomputation,
        overlap=strategy.overlap_tensor,
        overlap_inputs=strategy.overlap_inputs,
    )
    forward_s = inner.forward_s + inner.tensor_forward_s
    backward_s = inner.backward_s + inner.recompute_s + inner.tensor_backward_s
    if strategy.recomputation == "full":
        backward_s -= forward_s
    return Exchange(sent * strategy.expert / (strategy.expert - 1), max(0.0, delay_s)), (forward_s, backward_s)


def task_count(model: Transformer, strategy: Strategy) -> int:
    """Tasks that `iteration` makes for GPUs, at most: computing of each layer, and what it sends, with a task for each
    message of an all-to-all."""
    layers = ceil(model.layers / (strategy.pipeline * strategy.interleave))
    steps = 2 * strategy.microbatches * strategy.interleave
    each = 2 + (4 * strategy.expert if model.experts and strategy.expert > 1 else 0)
    return strategy.gpus * steps * (each * layers + 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """A step of a stage's schedule."""

    backward: bool
    chunk: int
    microbatch: int


def passes(strategy: Strategy, stage: int) -> list[Pass]:
    """The schedule of a stage, in order.

    A stage first goes forward a number of times, then alternates between forward and backward, then goes backward. With
    chunks, p microbatches go through a chunk before the stage turns to the next chunk.
    """
    stages, batches, chunks = strategy.pipeline, strategy.microbatches, strategy.interleave
    total = batches * chunks
    if chunks == 1:
        ahead = min(stages - stage - 1, total)
    elif batches == stages:
        ahead = total
    else:
        ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    forward = [_nth(number, strategy, backward=False) for number in range(total)]
    backward = [_nth(number, strategy, backward=True) for number in range(total)]
    found = forward[:ahead]
    for number in range(total - ahead):
        found += [forward[ahead + number], backward[number]]
    return found + backward[total - ahead :]


def _nth(number: int, strategy: Strategy, *, backward: bool) -> Pass:
    """The number-th forward or backward pass of a stage: groups of p microbatches, chunk by chunk."""
    stages, chunks = strategy.pipeline, strategy.interleave
    if chunks == 1:
        return Pass(backward, 0, number)
    group, rest = divmod(number, stages * chunks)
    chunk, place = divmod(rest, stages)
    return Pass(backward, chunks - 1 - chunk if backward else chunk, group * stages + place)


class _Placed(NamedTuple):
    """A pass of one copy on one device: its tasks by layer, or those of all layers together."""

    device: int
    step: Pass
    layers: list[list[int]]
    depth: int
    """The layers that the pass goes through; 0 where it is only the embedding or the output."""

    @property
    def first(self) -> int:
        """The task with which the pass begins."""
        return self.layers[0][0]

    @property
    def last(self) -> int:
        """The task with which the pass ends."""
        return self.layers[-1][-1]


def iteration(strategy: Strategy, work: Work) -> TaskGraph:
    """The tasks of one iteration of all copies.

    Gradients of a layer are exchanged after the last microbatch's backward pass of it: all-reduce, with ZeRO
    reduce-scatter. ZeRO's stages 2 and 3 reduce-scatter those of each microbatch. Stages 1 and 2 gather parameters
    after the optimizer. Stage 3 gathers a layer's before each of its passes, while the layer before it computes. Tokens
    go to experts on other copies and back while the layer waits.
    """
    stages, copies = strategy.pipeline, strategy.data
    graph = TaskGraph(stages * copies)
    runs: list[list[_Placed]] = []
    for device in range(stages * copies):
        before: list[int] = []
        own = []
        for step in passes(strategy, device % stages):
            by_layer = strategy.zero == 3 or work.tokens != _NOTHING or (step.backward and strategy.overlap_gradients)
            depth = _depth(strategy, work, device % stages, step)
            parts = max(1, depth) if by_layer else 1
            seconds = _seconds(strategy, work, device % stages, step)
            name = f"{'backward' if step.backward else 'forward'} {step.microbatch} of chunk {step.chunk}"
            layers = []
            for _ in range(parts):
                tasks = []
                for part_s in _parts_s(strategy, work, step, seconds / parts) if depth else [seconds]:
                    before = [graph.compute(device, part_s, before, name)]
                    tasks += before
                layers.append(tasks)
            own.append(_Placed(device, step, layers, depth))
        runs.append(own)
    if work.tokens != _NOTHING:
        _route(graph, strategy, work, runs)
    _transfers(graph, strategy, work, runs)
    groups = [[stage + stages * copy for copy in range(copies)] for stage in range(stages)]
    reduced = []
    for stage, group in enumerate(groups):
        of_stage, at_end = [runs[device] for device in group], stage in (0, stages - 1)
        if strategy.zero == 3:
            _gather(graph, work, group, of_stage, at_end)
        reduced.append(_reduce(graph, strategy, work, group, of_stage, at_end))
    tied = [_tie(graph, work, [groups[0][copy], groups[-1][copy]], runs, reduced) for copy in range(copies)]
    for stage, group in enumerate(groups):
        at_end = stage in (0, stages - 1)
        stepped = [
            graph.compute(
                device,
                work.optimizer_s,
                [runs[device][-1].last, *reduced[stage], *(tied[copy] if at_end else ())],
                "optimizer",
            )
            for copy, device in enumerate(group)
        ]
        if strategy.zero in (1, 2):
            fewer = (work.fewer[0] if stage == 0 else 0) + (work.fewer[1] if stage == stages - 1 else 0)
            gathered = [work.parameters] * (work.layers * strategy.interleave - fewer)
            for gathered_bytes in [*gathered, *([work.table_parameters] if at_end else ())]:
                what = Collective("all_gather", gathered_bytes.bytes)
                stepped = [graph.collective(what, group, stepped, delay_s=gathered_bytes.delay_s, name="parameters")]
    return graph


def _tie(
    graph: TaskGraph, work: Work, ends: list[int], runs: list[list[_Placed]], reduced: list[list[int]]
) -> list[int]:
    """The all-reduce of the table's gradients between a copy's first and last stage."""
    if ends[0] == ends[1] or work.tied == _NOTHING:
        return []
    waits = [*(runs[device][-1].last for device in ends), *reduced[0], *reduced[-1]]
    what = Collective("all_reduce", work.tied.bytes)
    return [graph.collective(what, ends, waits, delay_s=work.tied.delay_s, name="table")]


def _depth(strategy: Strategy, work: Work, stage: int, step: Pass) -> int:
    """The layers that a pass goes through."""
    place = step.chunk * strategy.pipeline + stage
    at_end = place == strategy.pipeline * strategy.interleave - 1
    return work.layers - (work.fewer[0] if place == 0 else work.fewer[1] if at_end else 0)


def _seconds(strategy: Strategy, work: Work, stage: int, step: Pass) -> float:
    place = step.chunk * strategy.pipeline + stage
    return (
        (work.backward_s if step.backward else work.forward_s)
        + (work.first[step.backward] if place == 0 else 0.0)
        + (work.last[step.backward] if place == strategy.pipeline * strategy.interleave - 1 else 0.0)
    )


def _parts_s(strategy: Strategy, work: Work, step: Pass, layer_s: float) -> list[float]:
    """The computing of a layer, cut where it waits for tokens. What follows the experts counts as what precedes them.

    Full recomputation goes forward once more before it goes backward.
    """
    if work.tokens == _NOTHING:
        return [layer_s]
    forward_s, backward_s = work.experts
    if not step.backward:
        return [layer_s - forward_s, forward_s, 0.0]
    if strategy.recomputation != "full":
        return [0.0, backward_s, layer_s - backward_s]
    before_s = work.forward_s / work.layers - forward_s
    return [before_s, forward_s, 0.0, backward_s, layer_s - before_s - forward_s - backward_s]


def _route(graph: TaskGraph, strategy: Strategy, work: Work, runs: list[list[_Placed]]) -> None:
    """The all-to-alls of consecutive copies that share experts, between the parts of each layer's computing."""
    stages, what = strategy.pipeline, Collective("all_to_all", work.tokens.bytes)
    for stage in range(stages):
        for first in range(0, strategy.data, strategy.expert):
            group = [stage + stages * copy for copy in range(first, first + strategy.expert)]
            for same in zip(*(runs[device] for device in group), strict=True):
                for parts in zip(*(placed.layers for placed in same), strict=True):
                    for near, far in pairwise(zip(*parts, strict=True)):
                        sent = graph.collective(what, group, near, delay_s=work.tokens.delay_s, name="tokens")
                        for task in far:
                            graph.wait(sent, task)


def _transfers(graph: TaskGraph, strategy: Strategy, work: Work, runs: list[list[_Placed]]) -> None:
    """Let every pass wait for its input, which is sent where it comes from another device.

    If a stage does nothing else during a transfer, it receives only after the pass before.
    """
    stages, depth = strategy.pipeline, strategy.pipeline * strategy.interleave
    done = {
        (
            placed.device // stages,
            placed.step.backward,
            placed.step.chunk * stages + placed.device % stages,
            placed.step.microbatch,
        ): placed
        for own in runs
        for placed in own
    }
    for (copy, backward, place, microbatch), placed in done.items():
        turned = backward and place == depth - 1
        previous = place if turned else place + 1 if backward else place - 1
        if previous < 0:
            continue
        source = done[copy, backward and not turned, previous, microbatch]
        task = placed.first
        if source.device == placed.device or work.activations == _NOTHING:
            graph.wait(source.last, task)
            continue
        waits = [source.last]
        if not strategy.overlap_transfers:
            waits += graph.after[task]
        sent = graph.send(
            source.device,
            placed.device,
            work.activations.bytes,
            waits,
            delay_s=work.activations.delay_s,
            blocking=not strategy.overlap_transfers,
            name="gradients" if backward else "activations",
        )
        graph.wait(sent, task)


def _gather(graph: TaskGraph, work: Work, group: list[int], runs: list[list[_Placed]], at_end: bool) -> None:
    """ZeRO's stage 3: gather the parameters of each layer before it computes, one layer ahead, and the table first."""
    through = ([tasks for placed in own if placed.depth for tasks in placed.layers] for own in runs)
    layers = list(zip(*through, strict=True))
    what, last = Collective("all_gather", work.parameters.bytes), list[int]()
    if at_end:
        table = Collective("all_gather", work.table_parameters.bytes)
        last = [graph.collective(table, group, delay_s=work.table_parameters.delay_s, name="parameters")]
    for number, same in enumerate(layers):
        waits = [*last, *(tasks[-1] for tasks in (layers[number - 2] if number > 1 else ()))]
        last = [graph.collective(what, group, waits, delay_s=work.parameters.delay_s, name="parameters")]
        for tasks in same:
            graph.wait(last[0], tasks[0])


def _reduce(
    graph: TaskGraph, strategy: Strategy, work: Work, group: list[int], runs: list[list[_Placed]], at_end: bool
) -> list[int]:
    """The exchange of a stage's gradients, layer by layer, then the table's; returns the last collective.

    What is not sent behind the backward pass holds up the pass after it.
    """
    kind: Kind = "all_reduce" if strategy.zero == 0 else "reduce_scatter"
    what, table = Collective(kind, work.gradients.bytes), Collective(kind, work.table_gradients.bytes)
    last: list[int] = []
    if len(group) == 1:
        return last
    first = strategy.microbatches - reductions(strategy)
    final = 0 if strategy.zero > 1 else len(runs[0])  # the pass after which those of a stage are sent together
    for place, same in enumerate(zip(*runs, strict=True)):
        if not same[0].step.backward or same[0].step.microbatch < first:
            continue
        ends = [own[place if place >= final else -1].last for own in runs]
        for number in range(same[0].depth):
            waits = [placed.layers[number][-1] for placed in same] if strategy.overlap_gradients else ends
            last = [graph.collective(what, group, [*waits, *last], delay_s=work.gradients.delay_s, name="gradients")]
        if at_end and same[0].step.chunk == 0:
            waits = [*(placed.last for placed in same), *last]
            last = [graph.collective(table, group, waits, delay_s=work.table_gradients.delay_s, name="table")]
        if not strategy.overlap_gradients and place >= final and place + 1 < len(runs[0]):
            for own in runs:
                for task in last:
                    graph.wait(task, own[place + 1].first)
    return last
