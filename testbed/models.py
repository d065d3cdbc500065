# SPDX-License-Identifier: Apache-2.0
"""Models that are trained: their shapes, how they are split over GPUs, and how long an iteration computes.

Parallelism and computing time are those of O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324), Table 2,
and of the code released with it; shapes are those of the models' own papers.
"""

import math
from dataclasses import dataclass

GRADIENT_BYTES = 4
"""Of a parameter: full precision, as in Cohen et al., section 5.1."""


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer, one copy of which takes `tensor` times `pipeline` GPUs."""

    name: str
    parameters: float
    layers: int
    hidden: int
    sequence: int
    """Tokens in a sequence."""
    tensor: int
    pipeline: int
    compute_s: float
    """Forward and backward, of one iteration."""

    @property
    def parts(self) -> int:
        """GPUs that hold one copy."""
        return self.tensor * self.pipeline

    @property
    def part_bytes(self) -> int:
        """Gradients of the parameters that one GPU holds."""
        return math.ceil(GRADIENT_BYTES * self.parameters / self.parts)


BLOOM = Model("BLOOM", 176e9, 70, 14336, 2048, 4, 12, 1.2388)
GPT3 = Model("GPT-3", 175e9, 96, 12288, 2048, 8, 8, 1.0096)
LLAMA2 = Model("LLaMA2-70B", 70e9, 80, 8192, 4096, 8, 16, 2.6923)
MODELS = {"bloom": BLOOM, "gpt3": GPT3, "llama2-70b": LLAMA2}
"""By the name that a spec gives them."""
