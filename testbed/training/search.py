# SPDX-License-Identifier: Apache-2.0
"""The best strategy of a language model by exhaustive enumeration with the closed form.

`candidates` enumerates all strategies once for a model, a number of GPUs and a batch. `Candidates.estimates` computes
the closed form of all of them for a cluster: what one microbatch and one layer take is computed once for each distinct
split, the rest with numpy. Tests compare it with `closed_form.estimate`, strategy by strategy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.training.closed_form import (
    Estimate,
    IterationParts,
    exchanges_of,
    optimizer_seconds,
    parameter_bytes,
    parts_of,
    sizes_of,
    tied_of,
    transfer_of,
)
from testbed.training.clusters import Cluster
from testbed.training.operators import HALF, Times
from testbed.training.strategies import Recomputation, Strategy, Zero
from testbed.training.transformer import Transformer

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ZEROS: tuple[Zero, ...] = (0, 1, 2, 3)
RECOMPUTATIONS: tuple[Recomputation, ...] = ("none", "selective", "full")

_COLUMNS = (
    "tensor",
    "pipeline",
    "data",
    "microbatches",
    "microbatch",
    "interleave",
    "recomputation",
    "sequence",
    "expert",
    "zero",
)


@dataclass(frozen=True, slots=True)
class Space:
    """Which strategies are enumerated. Every field narrows the space; the default takes all that Megatron-LM has."""

    widest_tensor: int = 8
    """The largest tensor group. Its sizes are powers of two that divide the heads, also those of keys."""
    deepest_pipeline: int = 1 << 20
    """The most stages. They divide the remaining GPUs, and are at most the layers."""
    microbatches: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Sequences of a microbatch."""
    interleaves: tuple[int, ...] | None = None
    """Chunks of a stage; by default all into which the layers divide."""
    uneven_chunks: bool = True
    """Whether one or two layers may be missing for chunks of equal size (`closed_form.fewer_layers`)."""
    recomputations: tuple[Recomputation, ...] = RECOMPUTATIONS
    sequence: tuple[bool, ...] = (False, True)
    """Without and with sequence parallelism, where a tensor group has two GPUs or more."""
    experts: tuple[int, ...] | None = None
    """Copies that share experts; by default all powers of two that divide copies and experts, and all experts."""
    zeros: tuple[Zero, ...] = ZEROS
    """ZeRO's stages, where there are copies; stage 3 only without a pipeline, as in the closed form."""
    overlap_gradients: bool = True
    overlap_transfers: bool = False
    flash: bool = False
    """Whether attention's core is FlashAttention (`Strategy.flash`)."""
    overlap_tensor: bool = False
    """Whether products overlap with collectives of tensor groups (`Strategy.overlap_tensor`)."""
    fp8: bool = False
    """Whether linear layers multiply in FP8 (`Strategy.fp8`)."""


class Found(NamedTuple):
    """The best strategy, and of how many."""

    strategy: Strategy
    estimate: Estimate
    enumerated: int
    fitting: int
    """The number of strategies that fit into memory, and whose tensor groups fit into HB domains."""


Estimates = IterationParts[Floats]
"""The closed form of all candidates, in their order."""


def _estimate(estimates: Estimates, place: int) -> Estimate:
    """The estimate of one candidate."""
    return IterationParts(*(float(getattr(estimates, field.name)[place]) for field in fields(estimates)))


class _Key:
    """The distinct rows of some columns, and for each candidate the place of its row."""

    def __init__(self, *columns: Integers) -> None:
        code, sizes = np.zeros_like(columns[0]), [int(column.max(initial=0)) + 1 for column in columns]
        for column, size in zip(columns, sizes, strict=True):
            code = code * size + column
        _, first, self.places = np.unique(code, return_index=True, return_inverse=True)
        self.rows: list[tuple[int, ...]] = [tuple(int(column[place]) for column in columns) for place in first]

    def spread(self, values: Callable[..., tuple[float, ...]]) -> list[Floats]:
        """The values of every candidate, by what `values` gives for each distinct row."""
        table = np.array([values(*row) for row in self.rows], dtype=np.float64)
        return [column[self.places] for column in table.T]


class _Times(NamedTuple):
    """`operators.Times` with arrays."""

    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    tensor_forward_s: Floats
    tensor_backward_s: Floats
    expert_s: Floats

    def plus(self, other: "_Times") -> "_Times":
        return _Times(*(one + two for one, two in zip(self, other, strict=True)))

    def times(self, count: Integers | Floats) -> "_Times":
        return _Times(*(column * count for column in self))

    def where(self, chosen: NDArray[np.bool_], other: "_Times") -> "_Times":
        """These where `chosen`, otherwise the other."""
        return _Times(*(np.where(chosen, one, two) for one, two in zip(self, other, strict=True)))

    @property
    def tensor_s(self) -> Floats:
        return self.tensor_forward_s + self.tensor_backward_s

    @property
    def whole_forward_s(self) -> Floats:
        return self.forward_s + self.tensor_forward_s + self.expert_s / 2

    @property
    def whole_backward_s(self) -> Floats:
        return self.backward_s + self.recompute_s + self.tensor_backward_s + self.expert_s / 2

    @property
    def microbatch_s(self) -> Floats:
        return self.whole_forward_s + self.whole_backward_s


class _Both(NamedTuple):
    """What `closed_form.Exchanges` takes."""

    gradient_s: Floats
    gather_s: Floats


class Candidates:
    """All strategies of a space on a number of GPUs. Shape of every column: (strategies,)."""

    def __init__(self, model: Transformer, space: Space, rows: list[tuple[int, ...]]) -> None:
        self.model, self.space = model, space
        table = np.array(rows, dtype=np.int64).reshape(-1, len(_COLUMNS)).T
        (
            self.tensor,
            self.pipeline,
            self.data,
            self.microbatches,
            self.microbatch,
            self.interleave,
            self.recomputation,
            self.sequence,
            self.expert,
            self.zero,
        ) = table
        self.layers = -(-model.layers // np.maximum(1, self.pipeline))
        split = self.tensor, self.microbatch, self.sequence, self.expert, self.recomputation
        pieces = np.maximum(1, self.pipeline * self.interleave)
        missing = -model.layers % pieces
        missing = np.where((pieces > 1) & (missing <= 2), missing, 0)
        self.chunk_layers = -(-model.layers // pieces)
        self.fewer = missing // 2, missing - missing // 2
        whole = self.interleave * self.chunk_layers
        self.layers_of_first, self.layers_of_last = whole - self.fewer[0], whole - self.fewer[1]
        if rows:
            self._split = _Key(*split)
            self._moved = _Key(self.tensor, self.pipeline, self.data, self.microbatch, self.sequence)
            self._copied = _Key(self.tensor, self.data, self.expert, self.zero)
            ends = np.maximum(self.layers_of_first, self.layers_of_last)
            self._stepped = _Key(self.tensor, self.data, self.expert, np.minimum(self.zero, 1), self.layers, ends)
            self._tied = _Key(self.tensor, self.pipeline, self.data, self.zero)
            self._held = _Key(self.zero, self.data, self.expert)

    def __len__(self) -> int:
        return len(self.tensor)

    def strategy(self, place: int) -> Strategy:
        """The strategy with this index."""
        return Strategy(
            tensor=int(self.tensor[place]),
            pipeline=int(self.pipeline[place]),
            data=int(self.data[place]),
            microbatches=int(self.microbatches[place]),
            microbatch=int(self.microbatch[place]),
            interleave=int(self.interleave[place]),
            recomputation=RECOMPUTATIONS[self.recomputation[place]],
            sequence=bool(self.sequence[place]),
            expert=int(self.expert[place]),
            zero=ZEROS[self.zero[place]],
            overlap_gradients=self.space.overlap_gradients,
            overlap_transfers=self.space.overlap_transfers,
            flash=self.space.flash,
            overlap_tensor=self.space.overlap_tensor,
            fp8=self.space.fp8,
        )

    def __iter__(self) -> Iterator[Strategy]:
        return (self.strategy(place) for place in range(len(self)))

    @cached_property
    def memory_bytes(self) -> Floats:
        """`closed_form.memory_bytes` of each."""
        if not len(self):
            return np.zeros(0)
        shared, owned, table, kept, again, first, last = self._split.spread(self._sizes)
        each, expert = self._held.spread(
            lambda zero, copies, expert: (parameter_bytes(zero, copies), parameter_bytes(zero, copies // expert))
        )
        inner = self.layers * (shared * each + owned * expert)
        ends = np.maximum(self.layers_of_first, self.layers_of_last) * (shared * each + owned * expert) + table * each
        state = np.maximum(inner, ends)
        gathered = np.where((self.zero == 3) & (self.data > 1), HALF * (2 * (shared + owned) + table), 0.0)
        live = self._live_bytes(kept, again, first, last)
        found: Floats = state + gathered + live
        return found

    def _live_bytes(self, kept: Floats, again: Floats, first: Floats, last: Floats) -> Floats:
        """`closed_form` has the reasons."""
        stages, batches, chunks = self.pipeline, self.microbatches, self.interleave
        ahead = np.minimum(batches, stages + np.where(chunks > 1, (stages - 1) / chunks, 0.0))
        together = (chunks > 1) & (batches == stages)
        flying = np.where(together, batches, np.minimum(batches, stages - (stages - 1) / chunks))
        outputs, final = np.where(together, batches, 1), np.maximum(last, again)
        begin = ahead * (self.layers_of_first * kept + first)
        second = np.minimum(batches, np.where(chunks > 1, stages + (stages - 3) / chunks, stages - 1))
        inner = np.where(stages > 2, second * self.layers * kept, 0.0)
        end = flying * self.layers_of_last * kept + (outputs - 1) * last
        live: Floats = np.where(stages > 1, np.maximum(np.maximum(begin, inner) + again, end + final), begin + final)
        return live

    def _sizes(self, tensor: int, microbatch: int, sequence: int, expert: int, recomputation: int) -> tuple[float, ...]:
        how = RECOMPUTATIONS[recomputation]
        space = self.space
        return sizes_of(self.model, microbatch, tensor, bool(sequence), expert, how, space.flash, fp8=space.fp8)

    def estimates(self, cluster: Cluster) -> Estimates:
        """The closed form of all of them."""
        if not len(self):
            return IterationParts(*(np.zeros(0) for _ in fields(IterationParts)))
        plain, first, last = self._parts(cluster)
        transfer_s, layer_s, table_s, tied_s, optimizer_s = self._exchanged(cluster)
        piped = self.pipeline > 1
        whole = plain.times(self.interleave * self.chunk_layers)
        first, last = first.plus(plain.times(-self.fewer[0])), last.plus(plain.times(-self.fewer[1]))
        slow = last.where(last.microbatch_s >= first.microbatch_s, first)
        inner = (self.pipeline > 2) & (slow.microbatch_s < 0)
        slow = slow.times(np.where(inner, 0, 1))
        slowest = whole.plus(slow.where(piped, first.plus(last)))
        others_s = plain.times((self.pipeline - 1) * self.chunk_layers).plus(first).plus(last).microbatch_s
        run = slowest.times(self.microbatches)
        once = whole.plus(first).plus(last.times(np.where(piped, 0, 1)))
        return IterationParts(
            compute_s=run.forward_s + run.backward_s,
            recompute_s=run.recompute_s,
            tensor_s=run.tensor_s,
            expert_s=run.expert_s,
            bubble_s=np.where(piped, others_s - slow.microbatch_s, 0.0),
            transfer_s=self._transfers_s(transfer_s),
            data_s=self._data_s(once, slowest.microbatch_s, layer_s, table_s) + tied_s,
            optimizer_s=optimizer_s,
            memory_bytes=self.memory_bytes,
        )

    def best(self, cluster: Cluster, memory_bytes: float | None = None) -> Found | None:
        """The strategy with the shortest iteration that fits into a GPU's memory, by default the cluster's GPU's.

        Of several, the one with the least memory. None where none fits. Tensor groups that straddle HB domains do not.
        """
        limit = cluster.gpu.memory_bytes if memory_bytes is None else memory_bytes
        gpus = self.tensor * self.pipeline * self.data
        straddled = [size for size in np.unique(self.tensor).tolist() if cluster.straddled(size)]
        placed = (gpus <= cluster.domain_gpus) | ~np.isin(self.tensor, straddled)
        fitting = np.flatnonzero((self.memory_bytes <= limit) & placed)
        if not len(fitting):
            return None
        found = self.estimates(cluster)
        place = int(fitting[np.lexsort((self.memory_bytes[fitting], found.iteration_s[fitting]))[0]])
        return Found(self.strategy(place), _estimate(found, place), len(self), len(fitting))

    def _parts(self, cluster: Cluster) -> tuple[_Times, _Times, _Times]:
        """One microbatch through a layer, the embedding and the output."""

        def values(tensor: int, microbatch: int, sequence: int, expert: int, recomputation: int) -> tuple[float, ...]:
            parts = parts_of(
                self.model,
                microbatch,
                bool(sequence),
                RECOMPUTATIONS[recomputation],
                cluster.group(tensor),
                cluster.group(expert, tensor),
                cluster.gpu,
                self.space.flash,
                overlap=self.space.overlap_tensor,
                fp8=self.space.fp8,
            )
            return tuple(getattr(part, name) for part in parts for name in Times.__slots__)

        columns, width = self._split.spread(values), len(Times.__slots__)
        plain, first, last = (_Times(*columns[start : start + width]) for start in range(0, 3 * width, width))
        return plain, first, last

    def _exchanged(self, cluster: Cluster) -> tuple[Floats, _Both, _Both, Floats, Floats]:
        """Times: of a microbatch's transfer, of exchanges of a layer and of the table, of the latter's all-reduce
        between stages, and of the optimizer."""

        def transfer(tensor: int, pipeline: int, data: int, microbatch: int, sequence: int) -> tuple[float, ...]:
            strategy = Strategy(tensor, pipeline, data, microbatch=microbatch, sequence=bool(sequence))
            return transfer_of(self.model, strategy, cluster)

        def exchange(tensor: int, data: int, expert: int, zero: int) -> tuple[float, ...]:
            shared, owned, table = self._sizes(tensor, 1, 0, expert, 0)[:3]
            copies = _copies(tensor, data, expert, zero)
            return (*exchanges_of(copies, shared, owned, cluster)[:2], *exchanges_of(copies, table, 0.0, cluster)[:2])

        def tied(tensor: int, pipeline: int, data: int, zero: int) -> tuple[float, ...]:
            strategy = Strategy(tensor, pipeline, data, zero=ZEROS[zero])
            return tied_of(strategy, self._sizes(tensor, 1, 0, 1, 0)[2], cluster)

        def optimizer(tensor: int, data: int, expert: int, split: int, layers: int, ends: int) -> tuple[float, ...]:
            shared, owned, table = self._sizes(tensor, 1, 0, expert, 0)[:3]
            strategy = _copies(tensor, data, expert, split)
            counts = (layers, 0.0), (ends, table)
            times = (
                optimizer_seconds(strategy, count * shared + more, count * owned, cluster.gpu) for count, more in counts
            )
            return (max(times),)

        (transfer_s, _), of_copies, (tied_s, _), (optimizer_s,) = (
            self._moved.spread(transfer),
            self._copied.spread(exchange),
            self._tied.spread(tied),
            self._stepped.spread(optimizer),
        )
        return transfer_s, _Both(*of_copies[:2]), _Both(*of_copies[2:]), tied_s, optimizer_s

    def _transfers_s(self, transfer_s: Floats) -> Floats:
        """`closed_form` has the reasons."""
        stages, batches, chunks = self.pipeline, self.microbatches, self.interleave
        if not self.space.overlap_transfers:
            two = stages == 2
            steady = (2 * chunks - two) * batches + 2 * stages - np.where(two, 3, 5)
            return np.where(stages > 1, transfer_s * np.maximum(2 * (stages - 1), steady), 0.0)
        rounds, rest = np.divmod(batches - 1, np.maximum(1, stages))
        plain = (stages - 1) * (1 + rounds) + np.maximum(0, rest - 1)
        exposed = np.where(chunks > 1, stages * chunks - 1, plain)
        return np.where(stages > 1, 2 * transfer_s * exposed, 0.0)

    def _data_s(self, whole: _Times, microbatch_s: Floats, layer: _Both, table: _Both) -> Floats:
        """`closed_form` has the reasons."""
        gradient, gather = layer
        layers, batches = self.layers_of_first, self.microbatches
        forward, backward = whole.whole_forward_s / layers, whole.whole_backward_s / layers
        rounds, after = np.where(self.zero > 1, batches, 1), layers * gradient
        each = table.gather_s + gather + layers * batches * np.maximum(0.0, gather - forward)
        if self.space.overlap_gradients:
            late = (rounds - 1) * np.maximum(0.0, after + table.gradient_s - microbatch_s)
            behind = late + np.maximum(gradient, after - (layers - 1) * backward) + table.gradient_s
            third = each + layers * batches * np.maximum(0.0, gather + gradient - backward) + gradient
            third = third + table.gradient_s
        else:
            behind = rounds * (after + table.gradient_s)
            third = each + batches * (layers * np.maximum(0.0, gather - backward) + after + table.gradient_s)
        plain = layers * gather + table.gather_s + behind
        return np.where(self.data > 1, np.where(self.zero == 3, third, plain), 0.0)


def candidates(model: Transformer, gpus: int, batch: int, space: Space | None = None) -> Candidates:
    """All strategies on exactly `gpus` GPUs whose iteration has `batch` sequences.

    Raises ValueError for numbers below 1.
    """
    if gpus < 1 or batch < 1:
        raise ValueError(f"a search needs 1 GPU and 1 sequence or more, not {gpus} and {batch}")
    space = space or Space()
    return Candidates(model, space, list(_rows(model, gpus, batch, space)))


def _rows(model: Transformer, gpus: int, batch: int, space: Space) -> Iterator[tuple[int, ...]]:
    for tensor in _powers(min(space.widest_tensor, gpus)):
        if model.heads % tensor or (model.key_heads or model.heads) % tensor or gpus % tensor:
            continue
        for pipeline in _divisors(gpus // tensor, min(model.layers, space.deepest_pipeline)):
            data = gpus // tensor // pipeline
            if batch % data:
                continue
            for microbatch in space.microbatches:
                microbatches, rest = divmod(batch // data, microbatch)
                if not rest and microbatches:
                    yield from _schedules(model, space, tensor, pipeline, data, microbatches, microbatch)


def _schedules(
    model: Transformer, space: Space, tensor: int, pipeline: int, data: int, microbatches: int, microbatch: int
) -> Iterator[tuple[int, ...]]:
    """All choices beside degrees and microbatches."""
    chunks = [1]
    if pipeline > 1 and microbatches % pipeline == 0:
        missing = 2 if space.uneven_chunks else 0
        counts = range(2, (model.layers + missing) // pipeline + 1)
        chunks += [count for count in counts if -model.layers % (pipeline * count) <= missing]
    if space.interleaves is not None:
        chunks = [count for count in chunks if count in space.interleaves]
    experts = [count for count in _experts(model, space) if data % count == 0]
    zeros = [stage for stage in space.zeros if stage == 0 or (data > 1 and not (stage == 3 and pipeline > 1))]
    again = [RECOMPUTATIONS.index(recomputation) for recomputation in space.recomputations]
    sequences = [int(sequence) for sequence in space.sequence] if tensor > 1 else [0]
    for chunk, how, sequence, expert, zero in product(chunks, again, sequences, experts, zeros):
        yield tensor, pipeline, data, microbatches, microbatch, chunk, how, sequence, expert, zero


def _experts(model: Transformer, space: Space) -> list[int]:
    if not model.experts:
        return [1]
    found = sorted({*_powers(model.experts), model.experts})
    return [count for count in found if not model.experts % count and (not space.experts or count in space.experts)]


def _copies(tensor: int, data: int, expert: int, zero: int) -> Strategy:
    return Strategy(tensor, data=data, expert=expert, zero=ZEROS[zero])


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def _divisors(number: int, most: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0]
