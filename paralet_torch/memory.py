# SPDX-License-Identifier: Apache-2.0
"""Tensors as memory for `hostlib.collectives`, and their types and reductions in its terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from hostlib.collectives import DataType, ReduceOp

_DTYPES: dict[torch.dtype, DataType] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
_PARTS: dict[torch.dtype, torch.dtype] = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_OPS: dict[str, ReduceOp] = {
    "SUM": "sum",
    "AVG": "avg",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "BAND": "band",
    "BOR": "bor",
    "BXOR": "bxor",
    "PREMUL_SUM": "sum",
}


@dataclass(frozen=True)
class Reduction:
    """A reduction of tensors of one type. `factor` multiplies the input first (PREMUL_SUM)."""

    dtype: DataType
    op: ReduceOp
    parts: int = 1
    """Elements of `dtype` per element of the tensor: 2 for complex numbers."""
    factor: float | torch.Tensor | None = None


def reduction(tensor: torch.Tensor, op: dist.ReduceOp) -> Reduction:
    """The reduction `op` of tensors like this one. Raises ValueError when there is none."""
    name = getattr(op, "op", op).name
    element = _PARTS.get(tensor.dtype, tensor.dtype)
    if name not in _OPS or element not in _DTYPES:
        raise ValueError(f"backend paralet has no reduction {name} of {tensor.dtype}")
    complex_ = tensor.dtype in _PARTS
    if complex_ and name not in ("SUM", "AVG"):
        raise ValueError(f"complex tensors have no reduction {name}")
    if name in ("BAND", "BOR", "BXOR") and element.is_floating_point:
        raise ValueError(f"floating-point tensors have no reduction {name}")
    factor = op.factor if name == "PREMUL_SUM" else None
    return Reduction(_DTYPES[element], _OPS[name], 2 if complex_ else 1, factor)


class Staged:
    """A tensor's elements in contiguous memory: its own, or a copy."""

    def __init__(self, memory: torch.Tensor, tensor: torch.Tensor | None) -> None:
        self.memory = memory
        self.tensor = tensor
        """Where the result is to be copied."""

    @classmethod
    def source(cls, tensor: torch.Tensor, how: Reduction | None = None) -> Staged:
        """The memory that an operation reads."""
        tensor = _dense(tensor)
        if how is not None and how.factor is not None:
            return cls((tensor * how.factor).to(tensor.dtype).contiguous(), None)
        return cls(tensor.resolve_conj().resolve_neg().contiguous(), None)

    @classmethod
    def target(cls, tensor: torch.Tensor) -> Staged:
        """To be written; the tensor has the result after `settle`."""
        tensor = _dense(tensor)
        if _plain(tensor):
            return cls(tensor, None)
        return cls(torch.empty_like(tensor, memory_format=torch.contiguous_format), tensor)

    @classmethod
    def in_place(cls, tensor: torch.Tensor, how: Reduction | None = None) -> Staged:
        """The memory that an operation reads and overwrites."""
        staged = cls.source(tensor, how)
        if staged.memory.data_ptr() != tensor.data_ptr() or not _plain(tensor):
            staged.tensor = _dense(tensor)
        return staged

    @property
    def address(self) -> int:
        """Of the first byte; 0 when there is none."""
        return int(self.memory.data_ptr())

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.memory.numel() * self.memory.element_size())

    def count(self, how: Reduction) -> int:
        """Number of elements of the reduction's type."""
        return int(self.memory.numel()) * how.parts

    def settle(self) -> None:
        """Copy the result to the tensor, where it was not written there."""
        if self.tensor is not None:
            self.tensor.copy_(self.memory)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        raise ValueError(f"backend paralet has no operation for tensors of layout {tensor.layout} but allreduce (sum)")
    if tensor.device.type != "cpu":
        raise ValueError(f"backend paralet works with CPU tensors, not with one on {tensor.device}")
    return tensor.detach()


def _plain(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def the_only(tensors: Sequence[torch.Tensor] | torch.Tensor, what: str) -> torch.Tensor:
    """The tensor of a list of one, or the tensor. Raises ValueError."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what} needs a list of one tensor, not of {len(tensors)}")
    return tensors[0]


def same_dtype(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raises ValueError unless all have the same type."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"{what} needs tensors of one type, not {', '.join(str(t.dtype) for t in tensors)}")


def same_bytes(tensor: torch.Tensor, other: torch.Tensor, what: str, which: str) -> None:
    """Raises ValueError unless both have the same number of elements."""
    if tensor.numel() != other.numel():
        raise ValueError(f"{what}: {which} has {other.numel()} elements, and the input {tensor.numel()}")


def block_bytes(blocks: Sequence[Staged]) -> int | list[int]:
    """Size of each block; one number when all are the same."""
    sizes = [block.nbytes for block in blocks]
    return sizes[0] if len(set(sizes)) == 1 else sizes
