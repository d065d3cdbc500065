# SPDX-License-Identifier: Apache-2.0
"""How long an accelerator computes and a network communicates.

Peak rates are from data sheets. What is reached of them depends on the hardware, and not on the model that is trained:

- Matrix products: NVIDIA, "Matrix Multiplication Background", sections 2.3 and 3. A product is cut into tiles of 256 x
  128, and a wave is one tile on each multiprocessor. A wave takes as long as a full one, and a tile as a whole one.
- The share of the peak that a full wave reaches, and that memory and networks reach: M. Isaev et al., "Calculon: a
  methodology and tool for high-level co-design of systems and large language models", SC 2023; values for A100 are in
  `systems/a100_80g.json` of github.com/calculon-ai/calculon.
- The share that FlashAttention-2 reaches: T. Dao, "FlashAttention-2", 2023 (arXiv:2307.08691), section 1, for A100; J.
  Shah et al., "FlashAttention-3", 2024 (arXiv:2407.08608), abstract, for H100.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]


class Product(NamedTuple):
    """`copies` products of a (rows, inner) and an (inner, columns) matrix in one kernel."""

    rows: float
    inner: float
    columns: float
    copies: float = 1

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2 * self.copies * self.rows * self.inner * self.columns


class Work(NamedTuple):
    """What one kernel does: a product on the matrix units, and `bytes` read from and written to memory."""

    product: Product | None = None
    bytes: float = 0.0
    fused: Literal["forward", "backward"] | None = None
    """The pass of FlashAttention that the kernel is: `product` has the operations of all its products, and the share of
    the peak that it reaches has its traffic."""

    @property
    def flops(self) -> float:
        """Operations on the matrix units."""
        return self.product.flops if self.product else 0.0


class Collective(NamedTuple):
    """A collective. `bytes` is the size of a member's whole vector: its input, or with all-gather its output."""

    kind: Kind
    bytes: float


_TILE = 256, 128
"""Rows and columns of the most efficient tile (section 2.3)."""

Steps = tuple[tuple[float, float], ...]
"""(smallest size, fraction of the peak that is reached), by descending size; the last size is 0."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU. A kernel takes the time of its matrix products plus that of its memory traffic.

    Both are added, as in Calculon's mode `no_overlap`: the tail of one kernel does not overlap with the next one.
    Vector instructions are left out. They need at least 38 operations per byte on A100 to take longer than memory.
    """

    name: str
    matrix_flops: float
    """Peak of dense half-precision products, in operations per second."""
    multiprocessors: int
    memory_bps: float
    """Peak rate of memory, in bits per second."""
    memory_bytes: float
    matrix_efficiency: float
    """The share of the peak that a full wave of tiles reaches."""
    memory_steps: Steps
    """The share of the peak that memory reaches, by the bytes of a kernel."""
    flash_forward: float
    """The share of the peak that FlashAttention-2 reaches forward, and `flash_backward` backward."""
    flash_backward: float

    def seconds(self, work: Work) -> float:
        """How long one kernel takes, in seconds."""
        if work.fused is not None:
            reached = self.flash_forward if work.fused == "forward" else self.flash_backward
            return work.flops / (self.matrix_flops * reached)
        moves = 8 * work.bytes / (self.memory_bps * _reached(self.memory_steps, work.bytes))
        if work.product is None:
            return moves
        return moves + self._padded_flops(work.product) / (self.matrix_flops * self.matrix_efficiency)

    def _padded_flops(self, product: Product) -> float:
        """Operations of all waves, the last one full, with the better of both orientations of the tile."""
        flops = []
        for height, width in ((_TILE[0], _TILE[1]), (_TILE[1], _TILE[0])):
            tiles = product.copies * ceil(product.rows / height) * ceil(product.columns / width)
            flops.append(ceil(tiles / self.multiprocessors) * self.multiprocessors * 2 * height * width * product.inner)
        return min(flops)


@dataclass(frozen=True, slots=True)
class Network:
    """What a GPU sends into: its HB domain (NVLink) or the fabric (its NIC). Without congestion."""

    rate_bps: float
    """The rate of one GPU in bit/s, in each direction."""
    efficiency: float
    """The share of the rate that large messages reach."""
    latency_s: float
    """The latency of one operation in seconds."""

    def seconds(self, collective: Collective, members: int) -> float:
        """Time of a collective as rings among `members` GPUs, or of a `send` to one other GPU."""
        if members < 2 or not collective.bytes:
            return 0.0
        return self.latency_s + 8 * sent_bytes(collective, members) / (self.rate_bps * self.efficiency)


_ROUNDS: dict[Kind, Callable[[int], float]] = {
    "all_reduce": lambda members: 2 * (members - 1) / members,
    "all_gather": lambda members: (members - 1) / members,
    "reduce_scatter": lambda members: (members - 1) / members,
    "all_to_all": lambda members: (members - 1) / members,
    "send": lambda members: 1.0,
}


def sent_bytes(collective: Collective, members: int) -> float:
    """Bytes that each member sends, with rings. A `send` has one sender."""
    return _ROUNDS[collective.kind](members) * collective.bytes


def _reached(steps: Steps, size: float) -> float:
    return next(fraction for least, fraction in steps if size >= least)


_MEMORY_STEPS = ((100e6, 0.9), (10e6, 0.75), (1e6, 0.6), (0.0, 0.3))

A100 = Accelerator("A100 80 GB", 312e12, 108, 8 * 2.039e12, 80 * 2**30, 0.95, _MEMORY_STEPS, 0.73, 0.63)
"""NVIDIA, "A100 Tensor Core GPU", data sheet, 2021: SXM, BF16 without sparsity."""
H100 = Accelerator("H100 80 GB", 989e12, 132, 8 * 3.35e12, 80 * 2**30, 0.95, _MEMORY_STEPS, 0.35, 0.35)
"""NVIDIA, "H100 Tensor Core GPU", data sheet, 2023: SXM, BF16 without sparsity. Efficiencies are those of A100."""
