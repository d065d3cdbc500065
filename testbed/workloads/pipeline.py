# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallelism: activations go from stage to stage, one microbatch after the other, and gradients come back.

GPipe's order (Y. Huang et al., 2018): at step k + r stage r sends microbatch k on; all the way back likewise, from the
last stage. So that what arrives can be checked, a stage's layers are an addition of what it holds, and the gradients
that go back are the total. Inner stages send twice their input, the first and the last once.
"""

from typing import Literal

from pydantic import Field

from testbed.workloads.base import Transfer, VerifiedWorkload, cut


class Pipeline(VerifiedWorkload):
    """`kind: pipeline`. `bytes` is what crosses a stage's border each way, in `microbatches` equal parts."""

    kind: Literal["pipeline"] = "pipeline"
    microbatches: int = Field(default=4, ge=1, le=4096)

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Forward, then backward: a microbatch returns from the last stage. `seed` is not used."""
        batches = list(cut(0, self.elements, self.microbatches))
        borders = range(ranks - 1)
        turn = self.microbatches + ranks - 2
        moves = [
            (batch + border, border, border + 1, start, count, True)
            for batch, start, count in batches
            for border in borders
        ] + [
            (turn + batch + ranks - 2 - border, border + 1, border, start, count, False)
            for batch, start, count in batches
            for border in borders
        ]
        return tuple(
            Transfer(step, part, src, dst, piece, piece, size, combine)
            for step, src, dst, start, count, combine in sorted(moves)
            for part, piece, size in cut(start, start + count, self.slices)
        )
