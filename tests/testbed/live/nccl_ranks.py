# SPDX-License-Identifier: Apache-2.0
"""Made-up operations of NCCL, as ranks publish them."""

from __future__ import annotations

from typing import Any

from testbed.live.nccl_operations import Operation, RankOperations, SlowestFlowlet, Waiting


def waiting(peer: int, on: str = "network", since_s: float = 10.0, send: bool = False) -> Waiting:
    """A wait of channel 0's third step."""
    return Waiting(peer=peer, channel=0, send=send, step=2, steps=16, on=on, since_s=since_s)


def operation(rank: int, *waits: Waiting, **changes: Any) -> Operation:
    """An all-reduce of four ranks that began at second 10 and is under way."""
    plain: dict[str, Any] = {
        "communicator": 0xAB,
        "name": "training",
        "ranks": 4,
        "rank": rank,
        "function": "AllReduce",
        "type": "ncclFloat32",
        "algorithm": "RING",
        "protocol": "SIMPLE",
        "sequence": 7,
        "count": 1024,
        "number": 8,
        "peer": -1,
        "enqueued_s": 9.0,
        "began_s": 10.0,
        "ended_s": 0.0,
        "sent_bytes": 1_000_000,
        "received_bytes": 500_000,
        "flowlets": 2,
        "flowlets_s": 0.004,
        "slowest": SlowestFlowlet(0.003 + rank * 0.001, rank, "10.0.0.9", 50_000 + rank),
        "waits": waits,
    }
    return Operation(**{**plain, **changes})


def ranks(*operations: Operation, clock_s: float = 14.0) -> list[RankOperations]:
    """A process for each operation."""
    return [RankOperations(100 + operation.rank, clock_s, (operation,)) for operation in operations]


def hanging_ranks() -> list[RankOperations]:
    """Rank 3 waits for rank 2, which has not begun the operation; 0 waits for 3, and 1 for 0."""
    late = operation(2, sequence=6, ended_s=9.5, began_s=9.0)
    return ranks(operation(0, waiting(3)), operation(1, waiting(0, "peer", 11.0, True)), late, operation(3, waiting(2)))
