# SPDX-License-Identifier: Apache-2.0
"""Training iterations of models that are split by tensor, pipeline and data parallelism. Each model is a job.

An iteration computes forward, passes activations from stage to stage, computes backward, passes gradients back, and
then synchronises the copies of the model:

- `zero` 0: gradients are all-reduced in rings, one ring for every part of the model. `zero` 1 and 2, which partition
  optimizer state and gradients, send the same bytes: a reduce-scatter of gradients and an all-gather of parameters.
- `zero` 3 (FSDP): parameters are gathered before the forward and again before the backward computation, and gradients
  are reduce-scattered. It sends 1.5 times the bytes of `zero` 0 (S. Rajbhandari et al., "ZeRO", SC 2020, section 7).

With `expert`, so many consecutive copies share the experts of a mixture of experts. They exchange tokens after the
forward and after the backward computation, in one all-to-all of all that the microbatches and layers of the pass send.
Gradients of experts go around rings of the copies that hold the same ones, while all other gradients do.

Each GPU of a stage sends 1 / tensor of the activations of every microbatch (D. Narayanan et al., SC 2021, section 4.1).
With `interleave`, a microbatch passes that many chunks of every stage, and goes from the last stage back to the first.
Tensor parallelism uses the host's internal network and sends nothing here. Computation does not overlap with
communication. Its time is that of `testbed.training`: it depends on the split, the microbatches and the GPU. Where a
spec gives `compute_s`, the forward pass takes a third of it, because the backward pass goes over the weights twice.

Phases are those of O. Cohen et al. (arXiv:2503.05324), who time an all-reduce of all gradients that begins when
computing has ended. `language_model` sends gradients layer by layer behind the backward pass instead.

Rank t + tensor * (p + pipeline * d) holds tensor part t of stage p of copy d, so the ranks of a copy are consecutive.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from testbed.misfit import Misfit
from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload, cut
from testbed.workloads.training_models import DEFAULT, MODELS, SHAPES, Gpu, Model, Parallelism, timed, traffic


class TrainedModel(BaseModel):
    """A job of `workload: {kind: training}`: a model, its parallelism, and the bytes it sends.

    `tensor` and `pipeline` default to the model's values, `compute_s` to the time that this split takes on `gpu`.
    `part_bytes` are the gradients that a GPU holds, by default 4 bytes for each of its parameters. `microbatch` is a
    number of sequences. `activation_bytes` is what a GPU passes to the next stage for one microbatch; the default
    follows from the model's shape. `expert_bytes` are the gradients of the experts that a GPU holds, and `routed_bytes`
    the tokens that it sends to each other GPU of its expert group in an iteration's forward passes. The backward passes
    send as much, or with `recomputed` twice as much.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: Literal["bloom", "gpt3", "llama2-70b"]
    data: int = Field(ge=1)
    tensor: int | None = Field(default=None, ge=1)
    pipeline: int | None = Field(default=None, ge=1)
    zero: Literal[0, 1, 2, 3] = 0
    microbatches: int = Field(default=DEFAULT.microbatches, ge=1, le=4096)
    microbatch: int = Field(default=DEFAULT.microbatch, ge=1)
    interleave: int = Field(default=DEFAULT.interleave, ge=1)
    expert: int = Field(default=1, ge=1)
    recomputed: bool = False
    gpu: Gpu = "a100"
    compute_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    part_bytes: int | None = Field(default=None, ge=8)
    activation_bytes: int | None = Field(default=None, ge=8)
    expert_bytes: int = Field(default=0, ge=0)
    routed_bytes: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _has_experts(self) -> "TrainedModel":
        if self.data % self.expert:
            raise Misfit(f"{self.expert} copies that share experts do not divide {self.data} copies", "expert")
        if self.expert > 1 and not self.routed_bytes:
            raise Misfit(f"{self.model} has no experts: say with routed_bytes how much these exchange", "routed_bytes")
        for key in ("expert_bytes", "routed_bytes", "recomputed"):
            if self.expert == 1 and getattr(self, key):
                raise Misfit("only copies that share experts have this; leave it out, or give expert", key)
        return self

    @model_validator(mode="after")
    def _can_be_split(self) -> "TrainedModel":
        try:
            _ = self.split
        except ValueError as error:
            raise Misfit(f"{error}; take another split, or give compute_s", "tensor") from None
        return self

    @cached_property
    def split(self) -> Model:
        """The model with this job's parallelism and computing time."""
        model = MODELS[self.model]
        model = replace(model, tensor=self.tensor or model.tensor, pipeline=self.pipeline or model.pipeline)
        if self.interleave > 1 and (model.pipeline == 1 or self.microbatches % model.pipeline):
            raise ValueError(
                f"interleaving needs 2 stages or more and a multiple of {model.pipeline} microbatches, "
                f"not {self.microbatches}"
            )
        if self.compute_s is None:
            return timed(model, SHAPES[self.model], self.parallelism, self.gpu)
        return replace(model, compute_s=self.compute_s, forward=1 / 3)

    @property
    def parallelism(self) -> Parallelism:
        """How the job is split and scheduled, as input of `traffic`."""
        return Parallelism(self.data, self.zero, self.microbatches, self.microbatch, self.interleave)

    @property
    def expert_elements(self) -> int:
        """Whole int64 of the gradients of experts that several copies hold."""
        return -(-self.expert_bytes // 8) if self.data > self.expert else 0

    @property
    def ranks(self) -> int:
        """GPUs of all copies."""
        return self.split.parts * self.data


class _Block(NamedTuple):
    """One phase of an iteration: a computation and the transfers after it. It starts after the previous phases."""

    compute_s: float
    steps: int
    transfers: list[Transfer]


class _Ring(NamedTuple):
    """Copies that sum the same gradients, and where the piece of each begins in memory, and the end."""

    copies: range
    bounds: list[int]


class Training(VerifiedWorkload):
    """`kind: training`. `models` are the jobs, in the order of their ranks. Each runs `iterations` iterations."""

    kind: Literal["training"] = "training"
    dtype: Literal["int64"] = "int64"
    slices: int = Field(default=1, ge=1, le=1024)
    models: list[TrainedModel] = Field(min_length=1)
    iterations: int = Field(default=2, ge=1, le=1000)

    @model_validator(mode="before")
    @classmethod
    def _largest_part(cls, values: Any) -> Any:
        """`bytes` is the size of the largest part, with its experts. A spec may leave it out."""
        if not isinstance(values, dict) or "bytes" in values:
            return values
        try:
            models = [TrainedModel.model_validate(model) for model in values["models"]]
        except (KeyError, TypeError, ValueError):  # reported when the field itself is validated
            models = []
        return {**values, "bytes": max((_held_bytes(model) for model in models), default=8)}

    @property
    def job_sizes(self) -> list[int] | None:
        """The GPUs of every model."""
        return [model.ranks for model in self.models]

    def of_job(self, number: int) -> VerifiedWorkload:
        """The training of one model."""
        return self._jobs[number]

    @cached_property
    def _jobs(self) -> "list[_One]":
        """By job. They keep their transfers, which take long to list."""
        return [
            _One(
                kind=self.kind,
                bytes=_held_bytes(model),
                slices=self.slices,
                trained=model,
                iterations=self.iterations,
            )
            for model in self.models
        ]

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """The schedule of the first model."""
        return self.of_job(0).schedule(ranks, seed)

    @property
    def in_place(self) -> bool:
        """True: every model sums gradients in place."""
        return True

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The buffers of the first model."""
        return self.of_job(0).buffers(rank, ranks, seed)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The expected result of the first model."""
        return self.of_job(0).expected(rank, ranks, seed)


class _One(VerifiedWorkload):
    """The training of one model.

    A rank's memory: the gradients of its part, those of its experts, the activations of an iteration, and a block for
    each copy of its expert group to send and to receive tokens. `bytes` are the gradients.
    """

    trained: TrainedModel
    iterations: int

    def check_ranks(self, ranks: int) -> None:
        """Raises Misfit if the model takes another number of ranks, or if the job sends nothing."""
        if ranks != self.trained.ranks:
            raise Misfit(f"{self.trained.model} takes {self.trained.ranks} ranks, and the job has {ranks}", "models")
        if self.trained.data == 1 and self.trained.split.pipeline == 1:
            raise Misfit("one copy without a pipeline sends nothing; give data or pipeline 2 or more", "models")
        for ring in self._rings[:2]:
            if 0 < ring.bounds[-1] - ring.bounds[0] < len(ring.copies):
                raise Misfit(
                    f"{8 * (ring.bounds[-1] - ring.bounds[0])} bytes are less than an element for each of "
                    f"{len(ring.copies)} copies",
                    "models",
                )

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """All iterations in sequence. `seed` is not used."""
        return tuple(
            replace(transfer, step=first + transfer.step) if first else transfer
            for first, block in zip(self._starts, self._blocks * self.iterations, strict=True)
            for transfer in block.transfers
        )

    def phase_starts(self, ranks: int) -> tuple[int, ...]:
        """A rank starts a phase after it has completed the previous one."""
        return tuple(self._starts[1:])

    def pauses(self, ranks: int) -> dict[int, float]:
        """Forward and backward computation."""
        blocks = self._blocks * self.iterations
        return {first: block.compute_s for first, block in zip(self._starts, blocks, strict=True) if block.compute_s}

    @property
    def in_place(self) -> bool:
        """True: gradients are summed where they arrive, and activations are sent from there."""
        return True

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """One array, which begins with the gradients."""
        others = np.zeros(self._tokens + 2 * self.trained.expert * self._routed - self.elements, dtype=np.int64)
        memory = np.concatenate([self.data(rank, seed), others])
        return Buffers(memory, memory)

    def result(self, rank: int, ranks: int) -> slice:
        """The gradients of the rank's part and experts, or with `zero` 3 the rank's own shard of its part."""
        if self.trained.zero < 3:
            return slice(0, self.elements)
        copy, bounds = rank // self.trained.split.parts, self._rings[0].bounds
        return slice(bounds[copy], bounds[copy + 1])

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """No training takes place: every iteration sums the results of the previous one over the copies of a ring."""
        copies, parts = self.trained.data, self.trained.split.parts
        if self.trained.zero == 3:  # every iteration gathers the owner's shard on all copies and sums it again
            return np.asarray(self.data(rank, seed)[self.result(rank, ranks)] * np.int64(copies) ** self.iterations)
        sums = []
        for own, bounds in self._rings:
            if rank // parts in own:
                ends = [rank % parts + parts * copy for copy in own]
                total = self.data(ends[0], seed)[bounds[0] : bounds[-1]]
                for other in ends[1:]:
                    total += self.data(other, seed)[bounds[0] : bounds[-1]]
                sums.append(total * np.int64(len(own)) ** (self.iterations - 1))
        return np.concatenate(sums)

    @cached_property
    def _blocks(self) -> list[_Block]:
        """The phases of an iteration."""
        model, trained = self.trained.split, self.trained
        gather, scatter = list(self._around(combine=False)), list(self._around(combine=True))
        steps = trained.data - 1
        passes = trained.microbatches * trained.interleave + model.pipeline - 2
        gathered, routed = _Block(0.0, steps, gather), _Block(0.0, trained.expert - 1, list(self._all_to_all()))
        planned = [
            *([gathered] if trained.zero == 3 else []),
            _Block(model.compute_s * model.forward, 0, []),
            routed,
            _Block(0.0, passes, list(self._stages(forward=True))),
            *([gathered] if trained.zero == 3 else []),
            _Block(model.compute_s * (1 - model.forward), 0, []),
            *([routed] * (1 + trained.recomputed)),
            _Block(0.0, passes, list(self._stages(forward=False))),
            _Block(0.0, steps, scatter),
            *([gathered] if trained.zero < 3 else []),
        ]
        blocks: list[_Block] = []
        computed = 0.0
        for block in planned:
            computed += block.compute_s
            if block.transfers:
                blocks.append(block._replace(compute_s=computed))
                computed = 0.0
        return blocks

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(block.steps for block in self._blocks * self.iterations)][:-1]

    def _rank(self, tensor: int, stage: int, copy: int) -> int:
        model = self.trained.split
        return tensor + model.tensor * (stage + model.pipeline * copy)

    @cached_property
    def _rings(self) -> list[_Ring]:
        """Of all copies, and for each expert group's members of those that hold the same experts."""
        copies, expert = self.trained.data, self.trained.expert
        shared = self.elements - self.trained.expert_elements
        found = [_Ring(range(copies), _pieces(0, shared, copies))]
        if self.trained.expert_elements:
            bounds = _pieces(shared, self.elements, copies // expert)
            found += [_Ring(range(first, copies, expert), bounds) for first in range(expert)]
        return found

    def _around(self, *, combine: bool) -> Iterator[Transfer]:
        """The rings for every part of the model: reduce-scatter with `combine`, otherwise all-gather."""
        parts = self.trained.split.parts
        for step in range(self.trained.data - 1):
            for copies, bounds in self._rings:
                members = len(copies)
                for place, copy in enumerate(copies if step < members - 1 else ()):
                    piece = (place - step - combine) % members
                    for part in range(parts):
                        src, dst = part + parts * copy, part + parts * copies[(place + 1) % members]
                        for number, start, count in cut(bounds[piece], bounds[piece + 1], self.slices):
                            yield Transfer(step, number, src, dst, start, start, count, combine)

    @property
    def _activations(self) -> int:
        """Elements of a microbatch that a rank sends to the next stage."""
        model, given = self.trained.split, self.trained.activation_bytes
        if model.pipeline == 1:
            return 0
        return (given or traffic(model, self.trained.parallelism).microbatch_bytes) // self.item_bytes

    @property
    def _routed(self) -> int:
        """Elements of tokens that a rank sends to each other rank of its expert group."""
        return self.trained.routed_bytes // self.item_bytes

    @property
    def _tokens(self) -> int:
        """Where in a rank's memory the blocks of tokens begin."""
        return self.elements + self.trained.microbatches * self._activations

    def _all_to_all(self) -> Iterator[Transfer]:
        """Tokens within every expert group: at step s each copy sends to the (s + 1)-th copy after it."""
        group, parts, size = self.trained.expert, self.trained.split.parts, self._routed
        for step in range(group - 1):
            for copy in range(self.trained.data):
                here = copy % group
                there = (here + step + 1) % group
                for part in range(parts):
                    src, dst = part + parts * copy, part + parts * (copy - here + there)
                    for number, start, count in cut(0, size, self.slices):
                        source, target = (self._tokens + block * size + start for block in (there, group + here))
                        yield Transfer(step, number, src, dst, source, target, count)

    def _stages(self, *, forward: bool) -> Iterator[Transfer]:
        """Microbatches from each stage to the next one, or for backward to the previous one.

        With chunks, as many microbatches as there are stages pass a chunk before the next chunk's turn.
        """
        model, size, chunks = self.trained.split, self._activations, self.trained.interleave
        stages = model.pipeline
        moves = sorted(
            (number + hop, hop, number)
            for number in range(self.trained.microbatches * chunks)
            for hop in range(stages if number // stages % chunks < chunks - 1 else stages - 1)
        )
        for step, hop, number in moves:
            batch = number if chunks == 1 else number // (stages * chunks) * stages + number % stages
            ends = (hop, (hop + 1) % stages) if forward else (stages - 1 - hop, (stages - 2 - hop) % stages)
            for copy in range(self.trained.data):
                for tensor in range(model.tensor):
                    src, dst = (self._rank(tensor, stage, copy) for stage in ends)
                    for part, start, count in cut(0, size, self.slices):
                        place = self.elements + batch * size + start
                        yield Transfer(step, part, src, dst, place, place, count)


def _pieces(start: int, stop: int, members: int) -> list[int]:
    """Where the piece of each member begins, and the end."""
    return [start + piece * (stop - start) // members for piece in range(members + 1)]


def _held_bytes(model: TrainedModel) -> int:
    """Bytes of the gradients that a GPU holds, in whole elements."""
    return 8 * (-(-(model.part_bytes or model.split.part_bytes) // 8) + model.expert_elements)
