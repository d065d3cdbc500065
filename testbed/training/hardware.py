# SPDX-License-Identifier: Apache-2.0
"""How long an accelerator computes and a network communicates.

Peak rates are from data sheets. What is reached of them depends on the hardware, and not on the model that is trained:

- Matrix products: NVIDIA, "Matrix Multiplication Background", sections 2.3 and 3. A product is cut into tiles of 256 x
  128, and a wave is one tile on each multiprocessor. A wave takes as long as a full one, and a tile as a whole one.
  Factors are read while a tile multiplies, and its results are written after that. `full_waves` finds from measured
  products which share of the peak full waves of tiles reach: a GPU lowers its clock when it multiplies for long.
- The share of the peak that memory and networks reach: M. Isaev et al., "Calculon: a methodology and tool for
  high-level co-design of systems and large language models", SC 2023; values for A100 are in
  `systems/a100_80g.json` of github.com/calculon-ai/calculon.
- The share that FlashAttention-2 reaches: T. Dao, "FlashAttention-2", 2023 (arXiv:2307.08691), section 1, for A100; J.
  Shah et al., "FlashAttention-3", 2024 (arXiv:2407.08608), abstract and Figure 6 (8,192 tokens), for H100.
- Multiprocessors of collectives: S. Jeaugey, github.com/NVIDIA/nccl/issues/689. NCCL takes 16 for the eight NICs of a
  DGX, and shares none of them with other kernels.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Literal, NamedTuple

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]


class Product(NamedTuple):
    """`copies` products of a (rows, inner) and an (inner, columns) matrix in one kernel."""

    rows: float
    inner: float
    columns: float
    copies: float = 1
    fp8: bool = False
    """Whether both factors are in FP8."""
    gradient: bool = False
    """Whether it is the gradient of weights."""

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2 * self.copies * self.rows * self.inner * self.columns


class Work(NamedTuple):
    """What one kernel does: a product on the matrix units, and `bytes` read from and written to memory."""

    product: Product | None = None
    bytes: float = 0.0
    """Bytes that the kernel moves; of a product, those of its factors, which are read while it multiplies."""
    results: float = 0.0
    """Of a product, the bytes of results that it writes and, where it adds to them, reads. Nothing overlaps with
    them, because a tile's results follow its last multiplication."""
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


_COLLECTIVE_MULTIPROCESSORS = 16

_TILE = 256, 128
"""Rows and columns of the most efficient tile (section 2.3)."""

Steps = tuple[tuple[float, float], ...]
"""(smallest size, fraction of the peak that is reached), by descending size; the last size is 0."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU. Kernels do not overlap with each other, as in Calculon's mode `no_overlap`.

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
    """The share of the peak that full waves of tiles reach."""
    memory_steps: Steps
    """The share of the peak that memory reaches, by the bytes of a kernel."""
    flash_forward: float
    """The share of the peak that FlashAttention reaches forward, and `flash_backward` backward."""
    flash_backward: float
    fp8_flops: float | None = None
    """Peak of dense products in FP8, in operations per second; None without units for them."""
    fp8_efficiency: float = 0.0
    """The share of it that full waves of tiles reach."""
    fp8_gradient_efficiency: float = 0.0
    """The same of gradients of weights."""

    def seconds(self, work: Work) -> float:
        """How long one kernel takes, in seconds. Raises ValueError for FP8 without units for it."""
        if work.fused is not None:
            reached = self.flash_forward if work.fused == "forward" else self.flash_backward
            return work.flops / (self.matrix_flops * reached)
        moves = self._moves_s(work.bytes)
        if work.product is None:
            return moves
        if work.product.fp8 and self.fp8_flops is None:
            raise ValueError(f"{self.name} has no units for FP8; take BF16")
        rate = self.matrix_flops * self.matrix_efficiency
        if work.product.fp8:
            share = self.fp8_gradient_efficiency if work.product.gradient else self.fp8_efficiency
            rate = (self.fp8_flops or 0.0) * share
        multiplies = padded_flops(work.product, self.multiprocessors) / rate
        return max(moves, multiplies) + self._moves_s(work.results)

    def exposed_s(self, sending_s: float, computing_s: float) -> float:
        """What a collective adds to a product that it overlaps with: what is sent after it, or what the product loses
        because the collective has multiprocessors to itself."""
        return max(sending_s - computing_s, sending_s * _COLLECTIVE_MULTIPROCESSORS / self.multiprocessors)

    def _moves_s(self, size: float) -> float:
        return _moves_s(size, self.memory_bps, self.memory_steps)


def padded_flops(product: Product, multiprocessors: int) -> float:
    """Operations of all waves, the last one full, with the better of both orientations of the tile."""
    flops = []
    for height, width in (_TILE, _TILE[::-1]):
        tiles = product.copies * ceil(product.rows / height) * ceil(product.columns / width)
        flops.append(ceil(tiles / multiprocessors) * multiprocessors * 2 * height * width * product.inner)
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


def _moves_s(size: float, memory_bps: float, steps: Steps) -> float:
    return 8 * size / (memory_bps * next(fraction for least, fraction in steps if size >= least))


def full_waves(
    measured: Iterable[tuple[Product, float]],
    matrix_flops: float,
    multiprocessors: int,
    memory_bps: float,
    memory_steps: Steps,
    result_bytes: float = 2,
) -> float:
    """The share of the peak `matrix_flops` that full waves of tiles reach, as the mean of `measured` products.

    Each has its rate in operations per second, and moves `result_bytes` for each of its results. What it takes beside
    moving them, all of its waves take.
    """
    shares = []
    for product, flops in measured:
        written_s = _moves_s(result_bytes * product.copies * product.rows * product.columns, memory_bps, memory_steps)
        waves_s = product.flops / flops - written_s
        shares.append(padded_flops(product, multiprocessors) / (waves_s * matrix_flops))
    return fmean(shares)


_MEMORY_STEPS = ((100e6, 0.9), (10e6, 0.75), (1e6, 0.6), (0.0, 0.3))
_HOPPER = 132, 8 * 3.35e12
"""Multiprocessors, and bits per second of memory: NVIDIA, "H100 Tensor Core GPU", data sheet, 2023: SXM."""

_CUBLAS_A100 = ((Product(8192, 8192, 8192), 257e12),)
"""H. He, "Strangely, Matrix Multiplications on GPUs Run Faster When Given 'Predictable' Data!", thonking.ai, 2024:
cuBLAS of 2022 with normally distributed numbers in BF16."""
_DEEPGEMM = (
    (Product(4096, 7168, 2112), 1058e12),
    (Product(4096, 1536, 24576), 990e12),
    (Product(4096, 512, 32768), 590e12),
    (Product(4096, 16384, 7168), 1358e12),
    (Product(4096, 7168, 4096), 1304e12),
    (Product(4096, 2048, 7168), 1025e12),
)
"""DeepSeek, "DeepGEMM", github.com/deepseek-ai/DeepGEMM, README of its first version, of February 2025: products in FP8
of 4,096 rows on H800, with a scale for each 128 numbers."""
_FASTER = 1.1, 1.0, 1.0, 1.2, 1.1, 1.1
"""How many times as fast as DeepSeek's own kernels on CUTLASS they are (the same table)."""
_GRADIENTS = (
    (Product(7168, 4096, 2112), 920e12),
    (Product(1536, 4096, 24576), 986e12),
    (Product(512, 4096, 32768), 878e12),
    (Product(16384, 4096, 7168), 994e12),
    (Product(7168, 4096, 4096), 942e12),
    (Product(2048, 4096, 7168), 920e12),
)
"""The same of gradients of weights, where both factors have a scale for each 128 numbers of a line, and results are
added to single-precision ones: Zheanxu, "Weight gradient kernels for dense and MoE models", May 2025,
github.com/deepseek-ai/DeepGEMM/pull/95."""
_GRADIENTS_FASTER = 1.2
"""How many times as fast as DeepSeek's own kernels on CUTLASS they are (the same page)."""
_DEEPGEMM_EFFICIENCY = full_waves(_DEEPGEMM, 1979e12, *_HOPPER, _MEMORY_STEPS)

A100 = Accelerator(
    "A100 80 GB",
    matrix_flops=312e12,
    multiprocessors=108,
    memory_bps=8 * 2.039e12,
    memory_bytes=80 * 2**30,
    matrix_efficiency=full_waves(_CUBLAS_A100, 312e12, 108, 8 * 2.039e12, _MEMORY_STEPS),
    memory_steps=_MEMORY_STEPS,
    flash_forward=0.73,
    flash_backward=0.63,
)
"""NVIDIA, "A100 Tensor Core GPU", data sheet, 2021: SXM, BF16 without sparsity."""
H100 = Accelerator(
    "H100 80 GB",
    matrix_flops=989e12,
    multiprocessors=_HOPPER[0],
    memory_bps=_HOPPER[1],
    memory_bytes=80 * 2**30,
    matrix_efficiency=0.78,
    memory_steps=_MEMORY_STEPS,
    flash_forward=0.35,
    flash_backward=318 / 989,
    fp8_flops=1979e12,
    fp8_efficiency=_DEEPGEMM_EFFICIENCY,
    fp8_gradient_efficiency=_DEEPGEMM_EFFICIENCY,
)
"""NVIDIA, "H100 Tensor Core GPU", data sheet, 2023: SXM, without sparsity. With 0.78 for full waves, linear layers of
GPT have the median rate that we measured, 0.69 of the peak (`docs/notes/model-accuracy.md`). Memory reaches what it
does on A100."""
H100_CUDNN = replace(H100, name="H100 80 GB, cuDNN", flash_forward=529 / 989, flash_backward=518 / 989)
"""With attention by cuDNN, for sequences of 8,192 tokens (arXiv:2407.08608, Figures 5 and 6)."""
H800 = replace(
    H100,
    name="H800 80 GB",
    flash_forward=579 / 989,
    flash_backward=542 / 989,
    fp8_efficiency=full_waves(
        [(product, rate / faster) for (product, rate), faster in zip(_DEEPGEMM, _FASTER, strict=True)],
        1979e12,
        *_HOPPER,
        _MEMORY_STEPS,
    ),
    fp8_gradient_efficiency=full_waves(
        [(product, rate / _GRADIENTS_FASTER) for product, rate in _GRADIENTS],
        1979e12,
        *_HOPPER,
        _MEMORY_STEPS,
        result_bytes=8,
    ),
)
"""An H100 with less NVLink, as DeepSeek-V3 was trained on it: with FlashAttention-3 for sequences of 4,096 tokens (the
same figures), and with the kernels for FP8 that came before DeepGEMM, which the profile of its training names."""
