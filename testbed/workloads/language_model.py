# SPDX-License-Identifier: Apache-2.0
"""Iterations of a language model: the task graph of `testbed.training.schedule`, one rank for each GPU.

A tensor group is an HB domain: its collectives are part of its computing time, and everything else goes over the
fabric. Rank t + tensor * (d + data * p) holds tensor part t of stage p of copy d, as in Megatron-LM.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from testbed.conflict import Conflict
from testbed.quantities import Bytes
from testbed.training.closed_form import check
from testbed.training.clusters import Cluster
from testbed.training.schedule import iteration, task_count, work_of
from testbed.training.strategies import Recomputation, Strategy, Zero
from testbed.training.tasks import TaskGraph, gpus_of, in_turn
from testbed.training.transformer import MODELS, ModelName, Transformer
from testbed.workloads.task_graph import TaskGraphWorkload, largest_bytes
from testbed.workloads.training_models import CLUSTERS, Gpu

_MOST_TASKS = 2_000_000


class Split(BaseModel):
    """The fields of `testbed.training.Strategy`, of which `split` makes one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tensor: int = Field(default=1, ge=1)
    pipeline: int = Field(default=1, ge=1)
    data: int = Field(default=1, ge=1)
    microbatches: int = Field(default=1, ge=1, le=4096)
    microbatch: int = Field(default=1, ge=1)
    interleave: int = Field(default=1, ge=1)
    expert: int = Field(default=1, ge=1)
    recomputation: Recomputation = "selective"
    sequence: bool = False
    zero: Zero = 0
    overlap_gradients: bool = True
    overlap_transfers: bool = False
    flash: bool = False
    overlap_tensor: bool = False
    fp8: bool = False

    @cached_property
    def split(self) -> Strategy:
        """How a model is split and scheduled. Raises ValueError for values that fit no model."""
        return Strategy(**self.model_dump())


class LanguageModel(TaskGraphWorkload):
    """`kind: language_model`. `model` on `gpu`, split and scheduled by `strategy`, for `iterations` iterations.

    With `experts`, the MLP of every layer is a mixture of so many, of which each token goes to `chosen`. A GPU begins
    an iteration when its optimizer's step of the iteration before has ended, and ZeRO's gathers after it.
    What is sent and how long is computed are divided by `bytes_divided_by` and `seconds_divided_by`, so that slow links
    and real packets can carry an iteration. `bytes` is the size of the largest message and follows from the rest.
    """

    SUBJECT: ClassVar[str] = "the iteration"
    KEY: ClassVar[str] = "strategy"

    kind: Literal["language_model"] = "language_model"
    bytes: Bytes = Field(default=8, gt=0)  # `_with_its_size` gives the size
    model: ModelName
    gpu: Gpu = "a100"
    experts: int = Field(default=0, ge=0)
    chosen: int = Field(default=1, ge=1)
    strategy: Split
    iterations: int = Field(default=1, ge=1, le=1000)
    bytes_divided_by: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    seconds_divided_by: float = Field(default=1.0, ge=1, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _with_its_size(cls, values: Any, validated: "Callable[[Any], LanguageModel]") -> "LanguageModel":
        given = values if not isinstance(values, dict) or "bytes" in values else {**values, "bytes": 8}
        found = validated(given)
        if found.chosen > max(1, found.experts):
            raise Conflict(f"a token goes to at most all {found.experts} experts, not to {found.chosen}", "chosen")
        if found.strategy.expert > 1 and not found.experts:
            raise Conflict(f"{found.model} has no experts to share; give experts, or leave expert out", "strategy")
        try:
            check(found.shape, found.strategy.split)
        except ValueError as error:
            raise Conflict(str(error), "strategy") from None
        if (tasks := found.iterations * task_count(found.shape, found.strategy.split)) > _MOST_TASKS:
            raise Conflict(
                f"the iterations have {tasks} tasks, more than {_MOST_TASKS}; take fewer microbatches or iterations",
                "strategy",
            )
        try:
            size = largest_bytes(found.graph)
        except ValueError as error:
            raise Conflict(str(error), "strategy") from None
        if given is values and isinstance(values, dict) and values["bytes"] != size:
            raise Conflict("the model has the sizes; leave it out", "bytes")
        return found.model_copy(update={"bytes": size})

    @property
    def shape(self) -> Transformer:
        """The model, with its experts."""
        return replace(MODELS[self.model], experts=self.experts, chosen=self.chosen)

    @property
    def cluster(self) -> Cluster:
        """GPUs whose HB domains are tensor groups."""
        return replace(CLUSTERS[self.gpu], domain_gpus=self.strategy.tensor)

    @cached_property
    def graph(self) -> TaskGraph:
        """The tasks of all GPUs, with divided sizes and times."""
        strategy = self.strategy.split
        graph = iteration(strategy, work_of(self.shape, strategy, self.cluster))
        places = [(device % strategy.pipeline, device // strategy.pipeline) for device in range(graph.devices)]
        first = [strategy.tensor * (copy + strategy.data * stage) for stage, copy in places]
        divided = in_turn(graph, self.iterations).divided(self.bytes_divided_by, self.seconds_divided_by)
        return gpus_of(divided, strategy.tensor, first)

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict if the iteration takes another number of ranks, or if it sends nothing."""
        if ranks != self.graph.devices:
            raise Conflict(f"the iteration takes {self.graph.devices} GPUs, and the job has {ranks} ranks", "strategy")
        if not self._lowered.transfers:
            raise Conflict("one copy without a pipeline sends nothing; give data or pipeline 2 or more", "strategy")
