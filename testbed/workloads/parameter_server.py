# SPDX-License-Identifier: Apache-2.0
"""Parameter servers: every worker sends its gradients to the servers (incast), which send the sum to all (broadcast).

The input is cut into a shard for each server (M. Li et al., OSDI 2014). Servers work, too: of n ranks the first
`servers` keep a shard each. A server takes in n - 1 shards, and sends out as many; nobody passes anything on.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from testbed.conflict import Conflict
from testbed.workloads.base import Elements, Transfer, VerifiedWorkload, cut


class ParameterServer(VerifiedWorkload):
    """`kind: parameter_server`. `phase`: `incast`, `broadcast`, or `both`, one after the other."""

    kind: Literal["parameter_server"] = "parameter_server"
    servers: int = Field(default=1, ge=1)
    phase: Literal["incast", "broadcast", "both"] = "both"

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict also for more servers than ranks."""
        super().check_ranks(ranks)
        if self.servers > ranks:
            raise Conflict(f"{ranks} ranks cannot be {self.servers} servers", "servers")

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """One step per phase. A server sends its shard once the shard is complete. `seed` is not used."""
        phases = {"incast": [True], "broadcast": [False], "both": [True, False]}[self.phase]
        return tuple(
            Transfer(step, part, *((worker, server) if gather else (server, worker)), start, start, count, gather)
            for step, gather in enumerate(phases)
            for server in range(self.servers)
            for worker in range(ranks)
            if worker != server
            for part, start, count in cut(self._shard(server).start, self._shard(server).stop, self.slices)
        )

    def result(self, rank: int, ranks: int) -> slice:
        """All of it; after an incast alone, a server's shard, and nothing of the others."""
        if self.phase != "incast":
            return slice(None)
        return self._shard(rank) if rank < self.servers else slice(0, 0)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """Sums, or, after a broadcast alone, what the servers had in their shards."""
        if self.phase != "broadcast":
            return super().expected(rank, ranks, seed)
        return np.concatenate([self.data(server, seed)[self._shard(server)] for server in range(self.servers)])

    def _shard(self, server: int) -> slice:
        return slice(server * self.elements // self.servers, (server + 1) * self.elements // self.servers)
