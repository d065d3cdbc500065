# SPDX-License-Identifier: Apache-2.0
"""The task graph of an iteration in phases: all GPUs compute, then they communicate, then all compute again.

O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324), section 5, times an all-reduce of all gradients that
begins when computing has ended. The task graph of `schedule.py` has no such phase: it sends gradients layer by layer
behind the backward pass. Workload `training` and the evaluation of that paper lower the graph of this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from testbed.training.hardware import Collective, Kind
from testbed.training.strategies import Zero
from testbed.training.tasks import Phase, TaskGraph


@dataclass(frozen=True, slots=True)
class PhasedModel:
    """A model that is split over GPUs, and what each GPU computes and sends in an iteration.

    GPU t + tensor * (p + pipeline * d) holds tensor part t of stage p of copy d.
    """

    tensor: int
    pipeline: int
    data: int
    """The number of copies."""
    forward_s: float
    backward_s: float
    gradient_bytes: float
    """The gradients of a GPU's part, which all copies sum."""
    zero: Zero = 0
    microbatches: int = 1
    interleave: int = 1
    """Chunks of a stage that a microbatch passes."""
    activation_bytes: float = 0.0
    """What a GPU passes to the next stage for one microbatch."""
    expert: int = 1
    """Consecutive copies that share the experts of a mixture of experts."""
    expert_bytes: float = 0.0
    """The gradients of a GPU's experts, which the copies that hold the same experts sum."""
    routed_bytes: float = 0.0
    """Tokens that a GPU sends to each other GPU of its expert group in a forward pass."""
    recomputed: bool = False
    """Whether the backward pass exchanges tokens twice, because it computes the experts again."""

    @property
    def parts(self) -> int:
        """GPUs that hold one copy."""
        return self.tensor * self.pipeline

    @property
    def gpus(self) -> int:
        """GPUs of all copies."""
        return self.parts * self.data


class Content(NamedTuple):
    """What a task sends."""

    what: Literal["gradients", "expert gradients", "tokens", "activations"]
    microbatch: int = 0
    """The number of the microbatch whose activations or gradients of activations these are."""


@dataclass(frozen=True, slots=True)
class PhasedIteration:
    """The tasks of an iteration, in the phases of its graph, and what each task sends, by its number.

    A phase begins with the computing before it. Its tasks that send are numbered between its begin and its end. Tasks
    of one collective kind come ring by ring, and within a ring by part. The last task ends the iteration.
    """

    graph: TaskGraph
    content: dict[int, Content]


class _Send(NamedTuple):
    """A message between stages."""

    src: int
    dst: int
    microbatch: int


def phased(model: PhasedModel) -> PhasedIteration:
    """The iteration: parameters (ZeRO's stage 3), forward pass, tokens, activations, backward pass, and gradients.

    Without ZeRO, gradients are all-reduced. Its stages 1 and 2 reduce and scatter gradients, and gather parameters.
    Stage 3 gathers parameters before each pass (S. Rajbhandari et al., "ZeRO", SC 2020, section 7).
    """
    made = _Maker(model)
    if model.zero == 3:
        made.synchronise("all_gather")
    made.compute(model.forward_s)
    made.exchange_tokens()
    made.pass_activations(forward=True)
    if model.zero == 3:
        made.synchronise("all_gather")
    made.compute(model.backward_s)
    for _ in range(1 + model.recomputed):
        made.exchange_tokens()
    made.pass_activations(forward=False)
    made.synchronise("reduce_scatter" if model.zero else "all_reduce")
    if model.zero in (1, 2):
        made.synchronise("all_gather")
    return made.ended()


class _Maker:
    """Adds phases one after the other. Computing is kept until a phase sends something after it."""

    def __init__(self, model: PhasedModel) -> None:
        self._model = model
        self._graph = TaskGraph(model.gpus)
        self._content: dict[int, Content] = {}
        self._computed_s = 0.0

    def compute(self, seconds: float) -> None:
        self._computed_s += seconds

    def synchronise(self, kind: Kind) -> None:
        """A collective of the gradients or parameters of each part, in a ring of all copies that hold the same."""
        model = self._model
        rings = [(range(model.data), model.gradient_bytes, Content("gradients"))]
        if model.expert_bytes:
            held = Content("expert gradients")
            rings += [
                (range(first, model.data, model.expert), model.expert_bytes, held) for first in range(model.expert)
            ]
        self._collectives([(copies, Collective(kind, size), content) for copies, size, content in rings])

    def exchange_tokens(self) -> None:
        """An all-to-all in every expert group, of what all layers and microbatches of a pass send."""
        model = self._model
        what = Collective("all_to_all", model.expert * model.routed_bytes)
        groups = (range(first, first + model.expert) for first in range(0, model.data, model.expert))
        self._collectives([(copies, what, Content("tokens")) for copies in groups])

    def _collectives(self, groups: list[tuple[range, Collective, Content]]) -> None:
        parts = self._model.parts
        groups = [group for group in groups if len(group[0]) > 1 and group[1].bytes]
        if not groups:
            return
        begin = self._begin()
        for copies, what, content in groups:
            for part in range(parts):
                members = range(part + parts * copies.start, part + parts * copies.stop, parts * copies.step)
                self._content[self._graph.collective(what, members, [begin])] = content
        self._end(begin)

    def pass_activations(self, *, forward: bool) -> None:
        """All microbatches, from each stage to the next one, or backward to the previous one.

        A message waits for that which brings its microbatch, and for the microbatch before it on the same way.
        """
        model = self._model
        sends = list(self._sends(forward))
        if not sends or not model.activation_bytes:
            return
        begin = self._begin()
        latest: dict[tuple[int, int], int] = {}  # by stages: the last message between these, of one copy and part
        arrived: dict[tuple[int, int], int] = {}  # by microbatch and stage
        for src, dst, microbatch in sends:
            found = (latest.get((src, dst)), arrived.get((microbatch, src)))
            waits = sorted({message for message in found if message is not None})
            first = len(self._graph.tasks)
            for copy in range(model.data):
                for tensor in range(model.tensor):
                    first_stage = tensor + model.parts * copy
                    place = len(self._graph.tasks) - first
                    number = self._graph.send(
                        first_stage + model.tensor * src,
                        first_stage + model.tensor * dst,
                        model.activation_bytes,
                        [wait + place for wait in waits] or [begin],
                    )
                    self._content[number] = Content("activations", microbatch)
            latest[src, dst] = arrived[microbatch, dst] = first
        self._end(begin)

    def _sends(self, forward: bool) -> Iterator[_Send]:
        """The messages of one copy and part, in an order in which they can be sent.

        With chunks, as many microbatches as there are stages pass a chunk before the next chunk's turn. After the last
        stage, a microbatch goes to the first stage and its next chunk.
        """
        stages, chunks = self._model.pipeline, self._model.interleave
        passes = self._model.microbatches * chunks  # of a microbatch through a chunk, in the first stage's order
        for step in range(passes + stages - 2 if stages > 1 else 0):
            for hop in range(max(0, step - passes + 1), min(stages, step + 1)):
                number = step - hop
                is_last = number // stages % chunks == chunks - 1
                if hop < stages - is_last:
                    batch = number if chunks == 1 else number // (stages * chunks) * stages + number % stages
                    src, dst = (hop, (hop + 1) % stages) if forward else (stages - 1 - hop, (stages - 2 - hop) % stages)
                    yield _Send(src, dst, batch)

    def _begin(self) -> int:
        """The begin of a phase: all GPUs compute."""
        graph = self._graph
        after = [len(graph.tasks) - 1] if graph.tasks else []
        begin = graph.compute_together(range(graph.devices), self._computed_s, after)
        self._computed_s = 0.0
        return begin

    def _end(self, begin: int) -> None:
        waited = set(chain.from_iterable(self._graph.after[begin + 1 :]))
        last = [number for number in range(begin + 1, len(self._graph.tasks)) if number not in waited]
        self._graph.phases.append(Phase(0, begin, self._graph.join(last)))

    def ended(self) -> PhasedIteration:
        """The iteration. Computing after which nothing is sent is its last task."""
        if self._computed_s or not self._graph.tasks:
            self._begin()
        return PhasedIteration(self._graph, self._content)
