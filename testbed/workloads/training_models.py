# SPDX-License-Identifier: Apache-2.0
"""Models that are trained: their shapes, their parallelism, and the computing time of an iteration.

Parallelism and computing time are from O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324), Table 2, and
from the code released with it. Shapes are from the models' own papers.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer. One copy takes `tensor` times `pipeline` GPUs."""

    name: str
    parameters: float
    layers: int
    hidden: int
    sequence: int
    """Tokens in a sequence."""
    tensor: int
    pipeline: int
    compute_s: float = 0.0
    """Seconds of the forward and the backward pass of one iteration."""
    gradient_bytes: int = 4
    """Per parameter: full precision, as in Cohen et al., section 5.1."""

    @property
    def parts(self) -> int:
        """GPUs that hold one copy."""
        return self.tensor * self.pipeline

    @property
    def part_bytes(self) -> int:
        """Bytes of the gradients that one GPU holds."""
        return math.ceil(self.gradient_bytes * self.parameters / self.parts)


BLOOM = Model("BLOOM", 176e9, 70, 14336, 2048, 4, 12, 1.2388)
GPT3 = Model("GPT-3", 175e9, 96, 12288, 2048, 8, 8, 1.0096)
LLAMA2 = Model("LLaMA2-70B", 70e9, 80, 8192, 4096, 8, 16, 2.6923)
MODELS = {"bloom": BLOOM, "gpt3": GPT3, "llama2-70b": LLAMA2}
"""Models by their name in specs."""

ACTIVATION_BYTES = 2
"""Bytes of an activation or of its gradient: half precision."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """`data` copies, ZeRO's stage, and an iteration's microbatches of `microbatch` sequences each."""

    data: int
    zero: int = 0
    microbatches: int = 1
    microbatch: int = 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a GPU of an inner pipeline stage sends in an iteration."""

    tensor: float
    pipeline: float
    data: float
    microbatch_bytes: int
    """Bytes of one microbatch to the next stage."""


def traffic(model: Model, parallelism: Parallelism) -> Traffic:
    """The traffic of each kind of parallelism, with collectives as rings.

    Tensor: each layer has two all-reduces forward and two backward of a microbatch's activations (M. Shoeybi et al.,
    "Megatron-LM", 2019, section 3). Pipeline: each GPU sends 1 / tensor of a microbatch's activations forward, and as
    many gradients backward (D. Narayanan et al., SC 2021, sections 3.2 and 4.1). Data: an all-reduce of the gradients
    with ZeRO's stages 0 to 2, which is as much as two all-gathers; stage 3 sends as much as three (S. Rajbhandari et
    al., SC 2020, section 7).
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
