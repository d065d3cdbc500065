# SPDX-License-Identifier: Apache-2.0
"""The lowering of a phased iteration to transfers: where in the GPUs' memory its tasks read, store and add elements.

A collective is a ring, step by step. In a step, each member sends one piece to the next member. An all-reduce is a
reduce-scatter and then an all-gather: a GPU begins to gather when it has sent and received all that it sums. In the
steps of an all-to-all, a member sends to the next member, to the one after it, and so on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.training.phased import Content, PhasedIteration
from testbed.workloads.base import Transfer, cut


class Block(NamedTuple):
    """A computation and the transfers after it, steps ascending from 0. A GPU starts it after the previous blocks."""

    compute_s: float
    transfers: list[Transfer]


@dataclass(frozen=True, slots=True)
class Layout:
    """A GPU's memory, in elements: what all copies sum, the gradients of experts, the activations of an iteration, and
    a block for each copy of the expert group to send tokens to, and to receive them from."""

    shared: int
    owned: int
    """The gradients of experts."""
    activations: int
    """The activations of one microbatch."""
    microbatches: int
    experts: int
    """The number of copies of an expert group."""
    tokens: int
    """The tokens that go to one of them."""

    @property
    def tokens_start(self) -> int:
        """Where the first block of tokens begins."""
        return self.shared + self.owned + self.microbatches * self.activations

    @property
    def elements(self) -> int:
        """The size of the memory."""
        return self.tokens_start + 2 * self.experts * self.tokens

    def pieces(self, content: Content, members: int) -> list[int]:
        """Where the gradients' piece of each member of a ring begins, and the end."""
        if content.what == "gradients":
            return pieces(0, self.shared, members)
        return pieces(self.shared, self.shared + self.owned, members)


def pieces(start: int, stop: int, members: int) -> list[int]:
    """Where the piece of each member begins, and the end."""
    return [start + piece * (stop - start) // members for piece in range(members + 1)]


def blocks(iteration: PhasedIteration, parts: int, layout: Layout, slices: int) -> list[Block]:
    """The blocks of an iteration whose model is split into `parts`. Pieces are cut into so many slices."""
    tasks = iteration.graph.tasks
    found: list[Block] = []
    for _, begin, end in iteration.graph.phases:
        sending, compute_s = range(begin + 1, end), tasks[begin].delay_s
        match tasks[sending[0]].kind:
            case "send":
                found.append(Block(compute_s, list(_stages(iteration, sending, layout, slices))))
            case "all_to_all":
                found.append(Block(compute_s, list(_all_to_all(iteration, sending, parts, layout, slices))))
            case "all_reduce":
                for combine in (True, False):
                    transfers = list(_rings(iteration, sending, parts, layout, slices, combine=combine))
                    found.append(Block(compute_s if combine else 0.0, transfers))
            case kind:
                combine = kind == "reduce_scatter"
                found.append(Block(compute_s, list(_rings(iteration, sending, parts, layout, slices, combine=combine))))
    return found


def _by_place(groups: Sequence[Sequence[int]], parts: int) -> Iterator[tuple[int, int]]:
    """The numbers of groups and places in them: one part of a ring after the other at each place."""
    for first in range(0, len(groups), parts):
        for place in range(len(groups[first])):
            for index in range(first, first + parts):
                yield index, place


def _rings(
    iteration: PhasedIteration, sending: range, parts: int, layout: Layout, slices: int, *, combine: bool
) -> Iterator[Transfer]:
    """Reduce-scatters with `combine`, otherwise all-gathers."""
    rings = [iteration.graph.tasks[number].devices for number in sending]
    bounds = [layout.pieces(iteration.content[number], len(ring)) for number, ring in zip(sending, rings, strict=True)]
    for step in range(max(map(len, rings)) - 1):
        for index, place in _by_place(rings, parts):
            ring = rings[index]
            if step < len(ring) - 1:
                piece = (place - step - combine) % len(ring)
                src, dst = ring[place], ring[(place + 1) % len(ring)]
                for number, start, count in cut(bounds[index][piece], bounds[index][piece + 1], slices):
                    yield Transfer(step, number, src, dst, start, start, count, combine)


def _all_to_all(
    iteration: PhasedIteration, sending: range, parts: int, layout: Layout, slices: int
) -> Iterator[Transfer]:
    """Tokens within every expert group: at step s each member sends to the (s + 1)-th member after it."""
    groups = [iteration.graph.tasks[number].devices for number in sending]
    for step in range(layout.experts - 1):
        for index, here in _by_place(groups, parts):
            there = (here + step + 1) % layout.experts
            for number, start, count in cut(0, layout.tokens, slices):
                source, target = (
                    layout.tokens_start + block * layout.tokens + start for block in (there, layout.experts + here)
                )
                yield Transfer(step, number, groups[index][here], groups[index][there], source, target, count)


def _stages(iteration: PhasedIteration, sending: range, layout: Layout, slices: int) -> Iterator[Transfer]:
    """Messages between stages. The step of one is the number of messages on the longest chain before it."""
    graph = iteration.graph
    steps: dict[int, int] = {}
    for number in sending:
        steps[number] = max((steps[previous] + 1 for previous in graph.after[number] if previous in steps), default=0)
        src, dst = graph.tasks[number].devices
        first = layout.shared + layout.owned + iteration.content[number].microbatch * layout.activations
        for part, start, count in cut(first, first + layout.activations, slices):
            yield Transfer(steps[number], part, src, dst, start, start, count)
