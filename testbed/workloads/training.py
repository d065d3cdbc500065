# SPDX-License-Identifier: Apache-2.0
"""Training iterations of models that are split by tensor, pipeline and data parallelism. Each model is a job.

The task graph is that of `testbed.training.phased`. `language_model` sends gradients layer by layer behind the backward
pass instead.

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

Rank t + tensor * (p + pipeline * d) holds tensor part t of stage p of copy d, so the ranks of a copy are consecutive.
"""

from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from testbed.conflict import Conflict
from testbed.quantities import Bytes
from testbed.training.phased import PhasedModel, phased
from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload
from testbed.workloads.training_blocks import Block, Layout, blocks, pieces
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
    part_bytes: Bytes | None = Field(default=None, ge=8)
    activation_bytes: Bytes | None = Field(default=None, ge=8)
    expert_bytes: Bytes = Field(default=0, ge=0)
    routed_bytes: Bytes = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _has_experts(self) -> "TrainedModel":
        if self.data % self.expert:
            raise Conflict(f"{self.expert} copies that share experts do not divide {self.data} copies", "expert")
        if self.expert > 1 and not self.routed_bytes:
            raise Conflict(
                f"{self.model} has no experts: say with routed_bytes how much these exchange", "routed_bytes"
            )
        for key in ("expert_bytes", "routed_bytes", "recomputed"):
            if self.expert == 1 and getattr(self, key):
                raise Conflict("only copies that share experts have this; leave it out, or give expert", key)
        return self

    @model_validator(mode="after")
    def _can_be_split(self) -> "TrainedModel":
        try:
            _ = self.split
        except ValueError as error:
            raise Conflict(f"{error}; take another split, or give compute_s", "tensor") from None
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


class _Ring(NamedTuple):
    """Copies that sum the same gradients, and where the piece of each begins in memory, and the end."""

    copies: range
    bounds: list[int]


class Training(VerifiedWorkload):
    """`kind: training`. `models` are the jobs, in the order of their ranks. Each runs `iterations` iterations."""

    JOBS_KEY: ClassVar[str] = "models"

    kind: Literal["training"] = "training"
    dtype: Literal["int64"] = "int64"
    bytes: Bytes = Field(default=8, gt=0)  # `_largest_part` gives the size
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
    def _jobs(self) -> "list[OneTraining]":
        """By job. They keep their transfers, which take long to list."""
        return [
            OneTraining(
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


class OneTraining(VerifiedWorkload):
    """The training of one model.

    `bytes` are the gradients of a rank's part and of its experts, with which its memory begins.
    """

    trained: TrainedModel
    iterations: int

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict if the model takes another number of ranks, or if the job sends nothing."""
        if ranks != self.trained.ranks:
            raise Conflict(f"{self.trained.model} takes {self.trained.ranks} ranks, and the job has {ranks}", "models")
        if self.trained.data == 1 and self.trained.split.pipeline == 1:
            raise Conflict("one copy without a pipeline sends nothing; give data or pipeline 2 or more", "models")
        for ring in self._rings[:2]:
            if 0 < ring.bounds[-1] - ring.bounds[0] < len(ring.copies):
                raise Conflict(
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
        pauses = [block.compute_s for block in self._blocks * self.iterations]
        return {first: pause for first, pause in zip(self._starts, pauses, strict=True) if pause}

    @property
    def in_place(self) -> bool:
        """True: gradients are summed where they arrive, and activations are sent from there."""
        return True

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """One array, which begins with the gradients."""
        others = np.zeros(self._layout.elements - self.elements, dtype=np.int64)
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

    @property
    def phased(self) -> PhasedModel:
        """The model with the bytes that this workload sends: whole elements."""
        model, trained, layout = self.trained.split, self.trained, self._layout
        return PhasedModel(
            tensor=model.tensor,
            pipeline=model.pipeline,
            data=trained.data,
            forward_s=model.compute_s * model.forward,
            backward_s=model.compute_s * (1 - model.forward),
            gradient_bytes=self.item_bytes * layout.shared,
            zero=trained.zero,
            microbatches=trained.microbatches,
            interleave=trained.interleave,
            activation_bytes=self.item_bytes * layout.activations,
            expert=trained.expert,
            expert_bytes=self.item_bytes * layout.owned,
            routed_bytes=self.item_bytes * layout.tokens,
            recomputed=trained.recomputed,
        )

    @cached_property
    def _blocks(self) -> list[Block]:
        """The blocks of an iteration."""
        return blocks(phased(self.phased), self.trained.split.parts, self._layout, self.slices)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(1 + block.transfers[-1].step for block in self._blocks * self.iterations)][:-1]

    @cached_property
    def _rings(self) -> list[_Ring]:
        """Of all copies, and for each expert group's members of those that hold the same experts."""
        copies, expert = self.trained.data, self.trained.expert
        shared = self.elements - self.trained.expert_elements
        found = [_Ring(range(copies), pieces(0, shared, copies))]
        if self.trained.expert_elements:
            bounds = pieces(shared, self.elements, copies // expert)
            found += [_Ring(range(first, copies, expert), bounds) for first in range(expert)]
        return found

    @cached_property
    def _layout(self) -> Layout:
        trained = self.trained
        return Layout(
            shared=self.elements - trained.expert_elements,
            owned=trained.expert_elements,
            activations=self._activations,
            microbatches=trained.microbatches,
            experts=trained.expert,
            tokens=trained.routed_bytes // self.item_bytes,
        )

    @property
    def _activations(self) -> int:
        """Elements of a microbatch that a rank sends to the next stage."""
        model, given = self.trained.split, self.trained.activation_bytes
        if model.pipeline == 1:
            return 0
        return (given or traffic(model, self.trained.parallelism).microbatch_bytes) // self.item_bytes


def _held_bytes(model: TrainedModel) -> int:
    """Bytes of the gradients that a GPU holds, in whole elements."""
    return 8 * (-(-(model.part_bytes or model.split.part_bytes) // 8) + model.expert_elements)
