# SPDX-License-Identifier: Apache-2.0
"""Bytes that one GPU sends in a training iteration, by kind of parallelism (section III-A, Figures 2 to 4).

The paper gives the models and the parallelism of MegatronLM (Narayanan et al., SC '21, Table 1), and ring collectives;
the accounting is ours: two-byte activations and gradients; a layer's tensor parallelism costs four all-reduces of the
activations of a sequence (two forward, two backward), each as a reduce-scatter and an all-gather; gradients are
all-reduced once; between pipeline stages each GPU sends its 1/t of the activations on, and of their gradients back.
"""

from dataclasses import dataclass

_BYTES = 2


@dataclass(frozen=True, slots=True)
class Training:
    """A model and how it is laid out: `tensor` x `pipeline` x `data` GPUs, of whose data parallelism `data_hb` GPUs
    are within an HB domain (1: all of it is between domains)."""

    name: str
    parameters: float
    layers: int
    hidden: int
    batch: int
    tensor: int
    pipeline: int
    data: int
    data_hb: int = 1
    sequence: int = 2048

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes sent by a GPU in an iteration: tensor, data (within HB domains, between them) and pipeline parallelism."""

    tensor: float
    data_hb: float
    data_nic: float
    pipeline: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.tensor + self.data_hb + self.data_nic + self.pipeline


MEGATRON = (
    Training("GPT-146B", 145.6e9, 80, 12288, 2304, 8, 8, 24),
    Training("GPT-310B", 310.1e9, 96, 16384, 2160, 8, 16, 15),
    Training("GPT-530B", 529.6e9, 105, 20480, 2520, 8, 35, 9),
    Training("GPT-1T", 1008.0e9, 128, 25600, 3072, 8, 64, 6),
)
GH200 = Training("GPT-1T", 1008.0e9, 128, 25600, 4096, 8, 8, 64, data_hb=32)
"""Figure 4: 16 GH200 of 256 GPUs. Two pipeline stages have 1024 GPUs, so there are 8; 4096 / (8 * 64) are tensor's."""


def volume(training: Training) -> Volume:
    """What a GPU in the middle of the pipeline sends."""
    activations = training.sequence * training.hidden * _BYTES  # of one sequence
    sequences = training.batch / training.data
    t, x, y = training.tensor, training.data_hb, training.data // training.data_hb
    all_reduces = 4 * sequences * training.layers / training.pipeline
    gradients = training.parameters / (t * training.pipeline) * _BYTES
    return Volume(
        tensor=all_reduces * 2 * (t - 1) / t * activations,
        data_hb=2 * (x - 1) / x * gradients,
        data_nic=2 * (y - 1) / (x * y) * gradients,
        pipeline=2 * sequences * activations / t,
    )


def pair_share(training: Training) -> tuple[float, float]:
    """Of all ordered pairs of GPUs: the fraction that carries tensor-parallel traffic, and the one that carries none.

    In a ring everybody sends to one; pipeline stages send on and back, and its first and last have one neighbour.
    """
    gpus = training.gpus
    with_tensor, with_data = (gpus if degree > 1 else 0 for degree in (training.tensor, training.data))
    pipeline = 2 * gpus * (training.pipeline - 1) // training.pipeline
    pairs = gpus * (gpus - 1)
    return with_tensor / pairs, 1 - (with_tensor + with_data + pipeline) / pairs
