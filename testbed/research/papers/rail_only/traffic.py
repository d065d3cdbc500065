# SPDX-License-Identifier: Apache-2.0
"""Bytes that one GPU sends in a training iteration, by kind of parallelism (section III-A, Figures 2 to 4).

The paper uses the models and the parallelism of MegatronLM (Narayanan et al., SC '21, Table 1) and ring collectives.
`testbed.workloads.training_models.traffic` computes the bytes, here with two-byte gradients.
"""

from dataclasses import dataclass

from testbed.training.transformer import Transformer
from testbed.workloads.training_models import ACTIVATION_BYTES, Model, Parallelism, traffic


@dataclass(frozen=True, slots=True)
class Training:
    """`data` copies of a model. Each HB domain has `data_hb` of them (1: each copy is in a different domain)."""

    model: Model
    batch: int
    """Sequences per iteration, all copies together."""
    data: int
    data_hb: int = 1

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return self.model.parts * self.data


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes that a GPU sends per iteration: tensor, data (within and between HB domains) and pipeline parallelism."""

    tensor: float
    data_hb: float
    data_nic: float
    pipeline: float

    @property
    def total(self) -> float:
        """All bytes that a GPU sends per iteration."""
        return self.tensor + self.data_hb + self.data_nic + self.pipeline


def _gpt(name: str, parameters: float, layers: int, hidden: int, tensor: int, pipeline: int) -> Model:
    return Model(name, parameters, layers, hidden, 2048, tensor, pipeline, gradient_bytes=2)


MEGATRON = (
    Training(_gpt("GPT-146B", 145.6e9, 80, 12288, 8, 8), 2304, 24),
    Training(_gpt("GPT-310B", 310.1e9, 96, 16384, 8, 16), 2160, 15),
    Training(_gpt("GPT-530B", 529.6e9, 105, 20480, 8, 35), 2520, 9),
    Training(_gpt("GPT-1T", 1008.0e9, 128, 25600, 8, 64), 3072, 6),
)
GH200 = Training(_gpt("GPT-1T", 1008.0e9, 128, 25600, 8, 8), 4096, 64, data_hb=32)
"""Figure 4: 16 GH200 of 256 GPUs. Two pipeline stages have 1024 GPUs, so 8 stages; 4096 / (8 * 64) tensor-parallel."""


def volume(training: Training) -> Volume:
    """Bytes that a GPU in the middle of the pipeline sends, with microbatches of one sequence.

    Copies within a domain reduce among themselves first. Traffic between domains is the remainder of the ring's total.
    """
    sent = traffic(training.model, Parallelism(training.data, microbatches=training.batch // training.data))
    within = traffic(training.model, Parallelism(training.data_hb)).data
    return Volume(tensor=sent.tensor, data_hb=within, data_nic=sent.data - within, pipeline=sent.pipeline)


def tensor_readings(training: Training) -> dict[str, float]:
    """Section III-B's "~300 GB across GPU pairs": bytes of tensor parallelism under other readings than `volume`'s.

    A GPU with l layers and m microbatches moves multiples of u = m * l * sequence * hidden * 2 bytes, an activation of
    each layer and microbatch: 100 GiB for GPT-1T. `volume` has 8 ring collectives of a layer, each (n - 1) / n u.
    """
    model = training.model
    rounds = training.batch // training.data * model.layers / model.pipeline
    unit = rounds * model.sequence * model.hidden * ACTIVATION_BYTES
    ring = (model.tensor - 1) / model.tensor * unit
    return {
        "one direction of two rings, or forward alone, or an all-gather and a reduce-scatter per pass": 4 * ring,
        "four all-reduces as their vectors": 4 * unit,
        "full recomputation": 12 * ring,
        "sequence parallelism, whose backward passes gather inputs again": 10 * ring,
        "four-byte activations": 16 * ring,
        "spread over all peers": 8 * ring / (model.tensor - 1),
        "three vectors, which no scheme sends": 3 * unit,
    }


MOE = Transformer("MoE-1.3B", 24, 2048, 16, experts=128)
"""Rajbhandari et al., "DeepSpeed-MoE" (ICML 2022), Table 1: 1.3B+MoE-128, top-1, experts in every second layer."""
MOE_GPUS, MOE_BATCH = 128, 512


def moe_volume() -> tuple[float, float, float]:
    """Figure 5: bytes that a GPU sends per iteration in all-to-alls, and in all-reduces over HB domains and NICs.

    One expert of each layer is on every GPU; all else has a copy on each, with two-byte gradients. A token goes to its
    expert and back, forward and backward.
    """
    layers = MOE.layers // 2
    attention, mlp = 4 * MOE.hidden**2, 8 * MOE.hidden**2
    static = MOE.layers * attention + (MOE.layers - layers) * mlp + MOE.vocabulary * MOE.hidden
    tokens = MOE_BATCH // MOE_GPUS * MOE.sequence
    exchanged = 4 * layers * 2 * tokens * MOE.hidden * (MOE_GPUS - 1) / MOE_GPUS
    within = 2 * 7 / 8 * 2 * static
    between = 2 * 15 / 16 * 2 * static / 8
    return exchanged, within, between


def pair_share(training: Training) -> tuple[float, float]:
    """Fractions of all ordered pairs of GPUs: pairs with tensor-parallel traffic, and pairs without any traffic.

    In a ring, each GPU sends to one other. Pipeline stages send to both neighbours; the first and last have only one.
    """
    gpus = training.gpus
    with_tensor, with_data = (gpus if degree > 1 else 0 for degree in (training.model.tensor, training.data))
    pipeline = 2 * gpus * (training.model.pipeline - 1) // training.model.pipeline
    pairs = gpus * (gpus - 1)
    return with_tensor / pairs, 1 - (with_tensor + with_data + pipeline) / pairs
