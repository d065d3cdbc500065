# SPDX-License-Identifier: Apache-2.0
"""The idle GPUs of a cluster as integer arrays, with counts per server and per leaf, so that a job is placed without a
scan of all GPUs."""

from collections.abc import Iterable, Iterator, Set
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Gpu(NamedTuple):
    """A GPU with a NIC of its own."""

    leaf: int
    server: int
    """The server's number within its leaf."""
    number: int
    """The GPU's number within its server."""


class IdleGpus(Set[Gpu]):
    """An immutable set of GPUs. L leaves, H servers per leaf, T GPUs per server."""

    __slots__ = ("at", "per_server", "whole")

    at: NDArray[np.bool_]
    """By leaf, server and number: whether the GPU is idle. Shape (L, H, T)."""
    per_server: NDArray[np.int32]
    """By leaf and server: the number of idle GPUs. Shape (L, H)."""
    whole: NDArray[np.int32]
    """By leaf: the number of servers whose GPUs are all idle, R[n]. Shape (L,)."""

    def __init__(self, at: NDArray[np.bool_]) -> None:
        """The GPUs whose entry of `at` is True. Counts them in O(L * H * T)."""
        self.at = at
        self.per_server = at.sum(axis=2, dtype=np.int32)
        self.whole = (self.per_server == at.shape[2]).sum(axis=1, dtype=np.int32)

    @classmethod
    def of(cls, leaves: int, servers_per_leaf: int, gpus_per_server: int, gpus: Iterable[Gpu]) -> "IdleGpus":
        """These GPUs of a cluster of this shape. Raises IndexError for a GPU outside it."""
        at = np.zeros((leaves, servers_per_leaf, gpus_per_server), dtype=np.bool_)
        at[_columns(gpus)] = True
        return cls(at)

    def __contains__(self, gpu: object) -> bool:
        return isinstance(gpu, Gpu) and all(map(int.__lt__, gpu, self.at.shape)) and bool(self.at[gpu])

    def __iter__(self) -> Iterator[Gpu]:
        return map(Gpu._make, np.argwhere(self.at).tolist())

    def __len__(self) -> int:
        return int(self.per_server.sum())

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self.at, other.at) if isinstance(other, IdleGpus) else super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def servers(self, leaf: int) -> list[int]:
        """The servers of a leaf whose GPUs are all idle, ascending."""
        return np.flatnonzero(self.per_server[leaf] == self.at.shape[2]).tolist()

    def holds(self, gpus: Iterable[Gpu]) -> NDArray[np.bool_]:
        """Whether each of these GPUs is idle."""
        held: NDArray[np.bool_] = self.at[_columns(gpus)]
        return held

    def changed(self, gpus: Iterable[Gpu], *, idle: bool) -> "IdleGpus":
        """The set with these GPUs (`idle`) or without them. Copies the arrays, and counts only what changed."""
        leaves, servers, numbers = _columns(gpus)
        fresh = object.__new__(IdleGpus)
        fresh.at, fresh.per_server, fresh.whole = self.at.copy(), self.per_server.copy(), self.whole.copy()
        fresh.at[leaves, servers, numbers] = idle
        fresh.per_server[leaves, servers] = fresh.at[leaves, servers].sum(axis=1)
        fresh.whole[leaves] = (fresh.per_server[leaves] == self.at.shape[2]).sum(axis=1)
        return fresh


@lru_cache(maxsize=1 << 14)
def gpus_of_server(leaf: int, server: int, per_server: int) -> tuple[Gpu, ...]:
    """Every GPU of a server."""
    return tuple(Gpu(leaf, server, number) for number in range(per_server))


def _columns(gpus: Iterable[Gpu]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The leaves, servers and numbers of GPUs, to index arrays with."""
    leaves, servers, numbers = np.fromiter(chain.from_iterable(gpus), dtype=np.intp).reshape(-1, 3).T
    return leaves, servers, numbers
