# SPDX-License-Identifier: Apache-2.0
"""Models that are trained: their shapes, how they are split over GPUs, and how long an iteration computes.

Parallelism and computing time are those of O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324), Table 2,
and of the code released with it; shapes are those of the models' own papers.
"""

import math
from dataclasses import dataclass


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
    compute_s: float = 0.0
    """Forward and backward, of one iteration."""
    gradient_bytes: int = 4
    """Of a parameter: full precision, as in Cohen et al., section 5.1."""

    @property
    def parts(self) -> int:
        """GPUs that hold one copy."""
        return self.tensor * self.pipeline

    @property
    def part_bytes(self) -> int:
        """Gradients of the parameters that one GPU holds."""
        return math.ceil(self.gradient_bytes * self.parameters / self.parts)


BLOOM = Model("BLOOM", 176e9, 70, 14336, 2048, 4, 12, 1.2388)
GPT3 = Model("GPT-3", 175e9, 96, 12288, 2048, 8, 8, 1.0096)
LLAMA2 = Model("LLaMA2-70B", 70e9, 80, 8192, 4096, 8, 16, 2.6923)
MODELS = {"bloom": BLOOM, "gpt3": GPT3, "llama2-70b": LLAMA2}
"""By the name that a spec gives them."""

ACTIVATION_BYTES = 2
"""Of an activation or its gradient: half precision."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How a model is trained: `data` copies, ZeRO's stage, microbatches of `microbatch` sequences in an iteration."""

    data: int
    zero: int = 0
    microbatches: int = 1
    microbatch: int = 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a GPU sends in an iteration, one of an inner stage of the pipeline."""

    tensor: float
    pipeline: float
    data: float
    microbatch_bytes: int
    """Of a microbatch, to the next stage."""


def traffic(model: Model, parallelism: Parallelism) -> Traffic:
    """What parallelism costs, with collectives as rings.

    Tensor: in each layer two all-reduces forward and two backward of a microbatch's activations (M. Shoeybi et al.,
    "Megatron-LM", 2019, section 3). Pipeline: a microbatch's activations, 1 / tensor of them from each GPU, on and back
    (D. Narayanan et al., SC 2021, sections 3.2 and 4.1). Data: an all-reduce of gradients, or as much for ZeRO's stages
    1 and 2; three all-gathers' worth instead of two for stage 3 (S. Rajbhandari et al., SC 2020, section 7).
    """
    activations = parallelism.microbatch * model.sequence * model.hidden * ACTIVATION_BYTES
    layers = model.layers / model.pipeline
    passed = activations // model.tensor
    rounds = 3 if parallelism.zero == 3 else 2
    return Traffic(
        tensor=parallelism.microbatches * layers * 4 * 2 * (model.tensor - 1) / model.tensor * activations,
        pipeline=2 * parallelism.microbatches * passed if model.pipeline > 1 else 0,
        data=rounds * (parallelism.data - 1) / parallelism.data * model.part_bytes,
        microbatch_bytes=passed,
    )
