# SPDX-License-Identifier: Apache-2.0
"""The demand of a training job in one iteration: all-reduce groups and model-parallel transfers (TopoOpt, section 2.1).

Servers are numbered from 0. Sizes are in bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
"""Bytes by source and destination server, shape (servers, servers), its diagonal zero."""


@dataclass(frozen=True, slots=True)
class AllReduceGroup:
    """Servers that each hold a copy of the same `bytes` of parameters and sum their gradients."""

    members: tuple[int, ...]
    bytes: float

    @property
    def sent_bytes(self) -> float:
        """Bytes that all members send in a ring all-reduce: 2 (k - 1) / k of the size each."""
        return 2 * (len(self.members) - 1) * self.bytes


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """The demand of a job. `mp[i, j]`: bytes from server i to server j for model parallelism.

    Raises ValueError when a group or the matrix does not fit the servers.
    """

    servers: int
    groups: tuple[AllReduceGroup, ...]
    mp: Matrix

    def __post_init__(self) -> None:
        if self.mp.shape != (self.servers, self.servers) or (self.mp < 0).any() or self.mp.diagonal().any():
            raise ValueError(
                f"the transfers of {self.servers} servers are a square matrix of that size, none below zero, and none "
                "from a server to itself"
            )
        for group in self.groups:
            if len(group.members) < 2 or len(set(group.members)) < len(group.members):
                raise ValueError(f"an all-reduce group has two servers or more, each once, not {group.members}")
            if not all(0 <= member < self.servers for member in group.members):
                raise ValueError(f"the group {group.members} has a server that is not in 0..{self.servers - 1}")


def data_parallel(servers: int, model_bytes: float) -> Demand:
    """Every server holds the whole model. Raises ValueError below two servers."""
    return Demand(servers, (AllReduceGroup(tuple(range(servers)), model_bytes),), np.zeros((servers, servers)))


def dlrm(
    servers: int,
    tables: Sequence[int],
    dense_bytes: float,
    batch: int,
    columns: int = 512,
    item_bytes: int = 8,
) -> Demand:
    """A recommendation model: embedding table t is on server `tables[t]`, all other parameters are replicated.

    In the forward pass the owner of a table sends every other server the rows of its `batch` samples, batch * columns *
    item_bytes. In the backward pass it receives their gradients, the same size (section 2.1, appendix D).
    Raises ValueError for a table on no server.
    """
    mp = np.zeros((servers, servers))
    for owner in tables:
        if not 0 <= owner < servers:
            raise ValueError(f"a table lies on server {owner}, but the servers are 0..{servers - 1}")
        mp[owner, :] += batch * columns * item_bytes
        mp[:, owner] += batch * columns * item_bytes
    np.fill_diagonal(mp, 0)
    return Demand(servers, (AllReduceGroup(tuple(range(servers)), dense_bytes),), mp)
