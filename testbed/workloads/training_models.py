# SPDX-License-Identifier: Apache-2.0
"""Models that are trained: their shapes, their parallelism, and the computing time of an iteration.

Parallelism is from O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324), Table 2. Shapes are from the
models' own papers. Computing time is that of `testbed.training`.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from testbed.training.closed_form import passes_s
from testbed.training.clusters import DGX_A100, DGX_H100
from testbed.training.strategies import Strategy
from testbed.training.transformer import BLOOM as BLOOM_SHAPE
from testbed.training.transformer import GPT_3, LLAMA_2_70B, Transformer

Gpu = Literal["a100", "h100"]
CLUSTERS = {"a100": DGX_A100, "h100": DGX_H100}
"""GPUs by their name in specs."""


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
    forward: float = 1 / 3
    """The forward pass's share of `compute_s`. By default, the backward pass takes twice as long."""

    @property
    def parts(self) -> int:
        """GPUs that hold one copy."""
        return self.tensor * self.pipeline

    @property
    def part_bytes(self) -> int:
        """Bytes of the gradients that one GPU holds."""
        return math.ceil(self.gradient_bytes * self.parameters / self.parts)


ACTIVATION_BYTES = 2
"""Bytes of an activation or of its gradient: half precision."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """`data` copies, ZeRO's stage, an iteration's microbatches of `microbatch` sequences each, chunks of a stage."""

    data: int
    zero: int = 0
    microbatches: int = 1
    microbatch: int = 1
    interleave: int = 1


DEFAULT = Parallelism(data=1, microbatches=8)
"""What a spec's job has by default, apart from its copies."""


def timed(model: Model, shape: Transformer, parallelism: Parallelism, gpu: Gpu = "a100") -> Model:
    """The model with the computing time of its shape: all microbatches, the pipeline's bubble, tensor parallelism.

    Attention's core is recomputed, and norms are split by `tensor` too. Raises ValueError where the model cannot be
    split so.
    """
    strategy = Strategy(
        tensor=model.tensor,
        pipeline=model.pipeline,
        microbatches=parallelism.microbatches,
        microbatch=parallelism.microbatch,
        interleave=parallelism.interleave,
        recomputation="selective",
        sequence=model.tensor > 1,
    )
    forward_s, backward_s = passes_s(shape, strategy, CLUSTERS[gpu])
    whole_s = forward_s + backward_s
    return replace(model, compute_s=whole_s, forward=forward_s / whole_s)


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
    many gradients backward, with each of its chunks (D. Narayanan et al., SC 2021, sections 2.2 and 4.1). Data: an
    all-reduce of the gradients with ZeRO's stages 0 to 2, which is as much as two all-gathers; stage 3 sends as much as
    three (S. Rajbhandari et al., SC 2020, section 7). All microbatches share these exchanges, as workload `training`
    sends them; `testbed.training.communication.exchanges` has those of each microbatch.
    """
    activations = parallelism.microbatch * model.sequence * model.hidden * ACTIVATION_BYTES
    layers = model.layers / model.pipeline
    passed = activations // model.tensor
    rounds = 3 if parallelism.zero == 3 else 2
    return Traffic(
        tensor=parallelism.microbatches * layers * 4 * 2 * (model.tensor - 1) / model.tensor * activations,
        pipeline=2 * parallelism.microbatches * parallelism.interleave * passed if model.pipeline > 1 else 0,
        data=rounds * (parallelism.data - 1) / parallelism.data * model.part_bytes,
        microbatch_bytes=passed,
    )


def _model(shape: Transformer, billions: float, tensor: int, pipeline: int) -> Model:
    split = Model(shape.name, billions * 1e9, shape.layers, shape.hidden, shape.sequence, tensor, pipeline)
    return timed(split, shape, DEFAULT)


BLOOM = _model(BLOOM_SHAPE, 176, 4, 12)
GPT3 = _model(GPT_3, 175, 8, 8)
LLAMA2 = _model(LLAMA_2_70B, 70, 8, 16)
MODELS = {"bloom": BLOOM, "gpt3": GPT3, "llama2-70b": LLAMA2}
"""Models by their name in specs."""
SHAPES = {"bloom": BLOOM_SHAPE, "gpt3": GPT_3, "llama2-70b": LLAMA_2_70B}
"""Shapes by the same names."""
