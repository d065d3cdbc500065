# SPDX-License-Identifier: Apache-2.0
"""How a model is split over GPUs: by kinds of parallelism (language models), or operator by operator (TopoOpt)."""

from dataclasses import dataclass
from typing import Literal

Recomputation = Literal["none", "selective", "full"]
"""Which activations the backward pass computes again: none, the attention core's, or a whole layer's (V. Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models", 2022)."""

Zero = Literal[0, 1, 2, 3]
"""A stage of ZeRO (S. Rajbhandari et al., SC 2020)."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Tensor, pipeline and data parallelism, and the schedule of an iteration.

    Raises ValueError for values that fit no model. `closed_form.check` compares a strategy with a model.
    """

    tensor: int = 1
    """GPUs that share each layer."""
    pipeline: int = 1
    """The number of pipeline stages."""
    data: int = 1
    """Copies of the model."""
    microbatches: int = 1
    """Microbatches of an iteration, per copy."""
    microbatch: int = 1
    """Sequences of a microbatch."""
    interleave: int = 1
    """Chunks of layers on a stage (D. Narayanan et al., SC 2021, section 2.2); 1 is plain 1F1B."""
    recomputation: Recomputation = "none"
    sequence: bool = False
    """Sequence parallelism: norms and dropouts are split by `tensor` too (Korthikanti et al., section 4.2.2)."""
    expert: int = 1
    """Copies that share the experts of a mixture-of-experts model; divides `data`."""
    zero: Zero = 0
    """ZeRO's stage: 1 splits the optimizer's state among the copies, 2 also gradients,
    3 also parameters."""
    overlap_gradients: bool = True
    """Whether gradients of a layer are sent while the backward pass goes on."""
    half_gradients: bool = False
    """Whether copies sum gradients in half precision; otherwise in single precision. Megatron-LM's `--fp16` does so."""
    overlap_transfers: bool = False
    """Whether a stage computes while it sends to and receives from other stages. Megatron-LM does not."""
    flash: bool = False
    """Whether attention's core is one kernel that keeps no scores, FlashAttention. Selective recomputation then has
    nothing to compute again."""
    overlap_inputs: bool = True
    """Whether tensor groups sum, or without a sum gather, behind matrix products of the backward pass. Megatron-LM does
    since September 2021 (commit 16c90445e7)."""
    overlap_tensor: bool = False
    """Whether matrix products overlap with the collectives of tensor groups that feed them and that sum their results,
    piece by piece (Z. Jiang et al., "MegaScale", NSDI 2024, section 3.2). Otherwise only gradients do."""
    fp8: bool = False
    """Whether linear layers of transformer blocks multiply in FP8, which the GPU must have. Collectives, the embedding,
    the output, norms and attention's core stay in half precision, the optimizer in single precision."""
    context: int = 1
    """Consecutive tensor groups that share each sequence: context parallelism. Each has a piece of both halves, so that
    causal attention takes as long everywhere, and gathers keys and values of all ("The Llama 3 Herd of Models", section
    3.3.2)."""

    def __post_init__(self) -> None:
        counts = (self.tensor, self.pipeline, self.data, self.microbatches, self.microbatch, self.interleave)
        if min(*counts, self.expert) < 1:
            raise ValueError(f"all degrees and numbers of a strategy are 1 or more, not {self}")
        if self.context < 1 or (self.context > 1 and (not self.flash or self.expert > 1)):
            raise ValueError(
                f"context is 1, or more with flash and without shared experts; not {self.context} with flash "
                f"{self.flash} and expert {self.expert}"
            )
        if self.data % self.expert:
            raise ValueError(f"{self.expert} copies that share experts do not divide {self.data} copies")
        if self.interleave > 1 and (self.pipeline == 1 or self.microbatches % self.pipeline):
            raise ValueError(
                f"an interleaved schedule needs 2 stages or more and a multiple of {self.pipeline} microbatches, "
                f"not {self.microbatches}"
            )

    @property
    def gradient_width(self) -> int:
        """Bytes of a parameter's gradient."""
        return 2 if self.half_gradients else 4

    @property
    def gpus(self) -> int:
        """The number of GPUs of all copies of the model."""
        return self.tensor * self.pipeline * self.copies

    @property
    def copies(self) -> int:
        """GPUs that hold the same parameters and sum their gradients: the copies, times those that share a sequence."""
        return self.data * self.context

    @property
    def batch(self) -> int:
        """The sequences of an iteration, over all copies and microbatches."""
        return self.data * self.microbatches * self.microbatch


@dataclass(frozen=True, slots=True)
class Placement:
    """TopoOpt's choice for one operator: it is split by samples among `devices`, each with a copy of its parameters.

    A `devices` of one is model parallelism, all devices is data parallelism.
    """

    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.devices or len(set(self.devices)) < len(self.devices) or min(self.devices) < 0:
            raise ValueError(f"an operator is on one device or more, each once, not on {self.devices}")

    @property
    def degree(self) -> int:
        """Number of parts."""
        return len(self.devices)
