# SPDX-License-Identifier: Apache-2.0
"""All-to-all in a fabric whose rails are not connected (Rail-only, section IV-B): hosts relay blocks between rails.

A block for GPU g' of another domain d' takes one of two routes. With `forward: hb_first` (as NCCL's PXN) it goes
through the sender's HB domain to the GPU on rail g', then over that rail. With `rail_first` it goes over the sender's
rail to domain d', then through that HB domain. Both take the time of Equation 3. A block whose rail has failed goes
through the sender's domain, over another rail, and through the receiver's domain. Blocks change rails only within a
domain.

`forward: direct` is for fabrics whose rails are connected (Equation 2): every block goes straight to its destination,
and both networks are busy at the same time.

In a relay's memory the blocks for one destination are adjacent. With `aggregate` they form one message, as in PXN,
where the blocks of all GPUs of the relay's domain travel together. Without it every block is a message.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from testbed.conflict import Conflict
from testbed.workloads.base import Buffers, Elements, Transfer, cut
from testbed.workloads.grid import Grid, GridWorkload

_Block = tuple[int, int]
"""Source and destination rank; there is one block for every such pair."""
_HB, _RAIL, _HB_AGAIN = range(3)


@dataclass(frozen=True, slots=True)
class _Hop:
    """A part of a block's route: from rank `src` to rank `dst` in a phase."""

    phase: int
    src: int
    dst: int


class RailAlltoall(GridWorkload):
    """`kind: rail_alltoall`. `bytes` is the input of a rank: n blocks, of which n - 1 are sent to other ranks.

    `failed_rails` numbers rails from 1, as the names of hosts and switches do.
    """

    STRANDED: ClassVar[str] = "name rails that are dead in workload.failed_rails"

    kind: Literal["rail_alltoall"] = "rail_alltoall"
    forward: Literal["hb_first", "rail_first", "direct"] = "hb_first"
    aggregate: bool = True
    failed_rails: list[int] = Field(default_factory=list)

    @property
    def sends_in_flight(self) -> int | None:
        """About as many sends as a step has on each network, so that the steps of a phase do not overlap."""
        return 2 * self.slices if self.forward == "direct" else self.slices

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict for ranks that do not fill domains, for unknown rails, and if all needed rails failed."""
        super().check_ranks(ranks)
        rails = set(range(1, self.gpus_per_domain + 1))
        if strangers := set(self.failed_rails) - rails:
            raise Conflict(f"there is no rail {min(strangers)}, only 1..{self.gpus_per_domain}", "failed_rails")
        if rails <= set(self.failed_rails) and ranks > self.gpus_per_domain:
            raise Conflict("every rail has failed, so no path joins two domains; leave one out", "failed_rails")

        if self.failed_rails and self.forward == "direct":
            raise Conflict("forward direct cannot avoid a rail; use hb_first or rail_first", "failed_rails")

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Phase by phase. In step k a rank sends to the k-th next rank of its rail or domain. `seed` is not used."""
        size, places = self._block_elements(ranks), self._places(ranks)
        starts = dict(zip(self._phases(ranks), [0, *self._phase_starts(ranks)], strict=True))
        pieces: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for block, hops in self._routes(ranks).items():
            for number, hop in enumerate(hops):
                step = starts[hop.phase] + self._step_of(hop, ranks)
                ends = (places[block][number] * size, places[block][number + 1] * size)
                pieces.setdefault((step, hop.src, hop.dst), []).append(ends)
        return tuple(
            Transfer(step, part, src, dst, source, target, count)
            for (step, src, dst), blocks in sorted(pieces.items())
            for part, (source, target, count) in enumerate(self._messages(sorted(blocks), size))
        )

    def phase_starts(self, ranks: int) -> tuple[int, ...]:
        """The first step of each phase after the first; empty without `separate_phases` and with `direct`."""
        return tuple(self._phase_starts(ranks)) if self.separate_phases and self.forward != "direct" else ()

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """One array: space for the rank's result, then the blocks that leave here, its own and relayed ones."""
        size, places = self._block_elements(ranks), self._places(ranks)
        leaving = sum(hop.src == rank for hops in self._routes(ranks).values() for hop in hops)
        data = self.data(rank, seed)
        memory = np.zeros((ranks + leaving) * size, dtype=data.dtype)
        for dst in range(ranks):
            place = places[rank, dst][0] * size
            memory[place : place + size] = data[dst * size : (dst + 1) * size]
        return Buffers(memory, memory)

    def relayed(self, ranks: int) -> dict[tuple[int, int], tuple[int, ...]]:
        """The route of every block that is sent."""
        return {block: (block[0], *(hop.dst for hop in hops)) for block, hops in self._routes(ranks).items() if hops}

    def result(self, rank: int, ranks: int) -> slice:
        """The places of the blocks that this rank receives."""
        size = self._block_elements(ranks)
        return slice(0, ranks * size)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """Every rank's block for this rank, sorted by the rank of the last hop, then by source."""
        size, places = self._block_elements(ranks), self._places(ranks)
        output = np.zeros(ranks * size, dtype=self.data(rank, seed).dtype)
        for source in range(ranks):
            start = places[source, rank][-1] * size
            output[start : start + size] = self.data(source, seed)[rank * size : (rank + 1) * size]
        return output

    def _block_elements(self, ranks: int) -> int:
        """Elements per block. All blocks are equal; a remainder at the end of the input is not sent."""
        return self.elements // ranks

    def _routes(self, ranks: int) -> dict[_Block, list[_Hop]]:
        grid = self.grid(ranks)
        return {(src, dst): self._route(grid, src, dst) for src in range(ranks) for dst in range(ranks)}

    def _route(self, grid: Grid, src: int, dst: int) -> list[_Hop]:
        (from_domain, from_gpu), (to_domain, to_gpu) = grid.place(src), grid.place(dst)
        if src == dst:
            return []
        if self.forward == "direct":
            return [_Hop(_HB if from_domain == to_domain else _RAIL, src, dst)]
        if from_domain == to_domain:
            return [_Hop(_HB if self.forward == "hb_first" else _HB_AGAIN, src, dst)]
        rail = to_gpu if self.forward == "hb_first" else from_gpu
        if rail + 1 in self.failed_rails:
            live = [gpu for gpu in range(grid.x) if gpu + 1 not in self.failed_rails]
            # Spread such blocks over all live rails.
            rail = live[(from_gpu + to_gpu + (to_domain - from_domain) % grid.y) % len(live)]
        ways = [src, grid.rank(from_domain, rail), grid.rank(to_domain, rail), dst]
        return [_Hop(phase, *ends) for phase, ends in enumerate(pairwise(ways)) if ends[0] != ends[1]]

    def _places(self, ranks: int) -> dict[_Block, list[int]]:
        """The place of each block at every rank of its route, counted in blocks of that rank's memory.

        Results are sorted by the rank that sent them last, other blocks by the rank that receives them next. So the
        blocks of one exchange between two ranks are adjacent, at both ranks if possible.
        """
        routes = self._routes(ranks)
        arriving: list[list[tuple[int, _Block]]] = [[] for _ in range(ranks)]
        leaving: list[list[tuple[int, _Block]]] = [[] for _ in range(ranks)]
        for block, hops in routes.items():
            arriving[block[1]].append((hops[-1].src if hops else block[1], block))
            for hop in hops:
                leaving[hop.src].append((hop.dst, block))
        slots = {
            (rank, block): place
            for rank in range(ranks)
            for place, (_, block) in enumerate([*sorted(arriving[rank]), *sorted(leaving[rank])])
        }
        return {
            block: [*(slots[hop.src, block] for hop in hops), slots[block[1], block]] for block, hops in routes.items()
        }

    def _phases(self, ranks: int) -> list[int]:
        """The phases in which at least one block moves."""
        return sorted({hop.phase for hops in self._routes(ranks).values() for hop in hops})

    def _phase_starts(self, ranks: int) -> list[int]:
        grid = self.grid(ranks)
        if self.forward == "direct":
            return [0] * (len(self._phases(ranks)) - 1)
        steps = [grid.y - 1 if phase == _RAIL else grid.x - 1 for phase in self._phases(ranks)]
        return list(accumulate(steps))[:-1]

    def _step_of(self, hop: _Hop, ranks: int) -> int:
        """The step of a hop within its phase, from 0: its distance along its rail or domain, less one."""
        grid = self.grid(ranks)
        (from_domain, from_gpu), (to_domain, to_gpu) = grid.place(hop.src), grid.place(hop.dst)
        domains, gpus = (to_domain - from_domain) % grid.y, (to_gpu - from_gpu) % grid.x
        if self.forward == "direct":  # each step is a permutation; hops within domains are spread among the others
            return (gpus - 1) * grid.y if hop.phase == _HB else (domains - 1) * grid.x + gpus
        return (domains if hop.phase == _RAIL else gpus) - 1

    def _messages(self, blocks: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int, int]]:
        """Source, target and elements of the messages of one exchange in a step, in about `slices` parts."""
        runs: list[list[int]] = []  # source, target, blocks
        for source, target in blocks:
            last = runs[-1] if runs else None
            if self.aggregate and last and (source, target) == (last[0] + last[2] * size, last[1] + last[2] * size):
                last[2] += 1
            else:
                runs.append([source, target, 1])
        for source, target, count in runs:
            for _, start, elements in cut(0, count * size, max(1, self.slices * count // len(blocks))):
                yield source + start, target + start, elements
