# SPDX-License-Identifier: Apache-2.0
"""Writes Chakra execution traces, from the encoding's definition and not from the reader."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

METADATA, MEMORY, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 2, 4, 5, 6, 7
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = 0, 1, 2, 3, 5, 6, 7, 9


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value % (1 << 64))


def data(field_number: int, content: bytes) -> bytes:
    return varint(field_number << 3 | 2) + varint(len(content)) + content


Value = bool | int | str | float | list[bool]


def attribute(name: str, value: Value) -> bytes:
    """bool_list, bool_val, int64_val, string_val or double_val."""
    if isinstance(value, list):
        coded = data(28, data(1, bytes(value)))
    elif isinstance(value, bool):
        coded = number(27, value)
    elif isinstance(value, int):
        coded = number(9, value)
    elif isinstance(value, str):
        coded = data(29, value.encode())
    else:
        coded = varint(3 << 3 | 1) + struct.pack("<d", value)
    return data(1, name.encode()) + coded


@dataclass
class Node:
    id: int
    type: int
    after: list[int] = field(default_factory=list)
    duration_us: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)
    packed: bool = True
    calls: list[int] = field(default_factory=list)
    """ctrl_deps."""

    def coded(self) -> bytes:
        waits = (
            data(5, b"".join(map(varint, self.after)))
            if self.packed
            else b"".join(number(5, earlier) for earlier in self.after)
        )
        parts = [number(1, self.id), data(2, f"node {self.id}".encode()), number(3, self.type)]
        parts += [*(number(4, call) for call in self.calls), waits]
        parts += [number(7, self.duration_us)] if self.duration_us else []
        return b"".join([*parts, *(data(10, attribute(*entry)) for entry in self.attributes.items())])


def file_of(nodes: list[Node]) -> bytes:
    messages = [data(1, b"1.0.0"), *(node.coded() for node in nodes)]
    return b"".join(varint(len(message)) + message for message in messages)


def write(prefix: Path, ranks: list[list[Node]]) -> Path:
    for rank, nodes in enumerate(ranks):
        prefix.with_name(f"{prefix.name}.{rank}.et").write_bytes(file_of(nodes))
    return prefix


def golden() -> list[list[Node]]:
    """Four ranks compute and all-reduce; then rank 0 sends to rank 1, and both gather."""
    ranks = []
    for rank in range(4):
        nodes = [
            Node(1, METADATA, attributes={"rank": rank}),
            Node(2, COMPUTE, [1], 10, {"is_cpu_op": False}),
            Node(3, COLLECTIVE, [2], attributes={"comm_type": ALL_REDUCE, "comm_size": 40_000, "is_cpu_op": False}),
            Node(4, COMPUTE, [3, 2], 5, packed=False),
        ]
        if rank == 0:
            nodes.append(Node(5, SEND, [4], attributes={"comm_dst": 1, "comm_tag": 7, "comm_size": 3_000}))
        if rank == 1:
            nodes.append(Node(5, RECEIVE, [4], attributes={"comm_src": 0, "comm_tag": 7, "comm_size": 3_000}))
        if rank < 2:
            gather: dict[str, Value] = {"comm_type": ALL_GATHER, "comm_size": 1_000, "pg_name": "tp"}
            nodes.append(Node(6, COLLECTIVE, [5], attributes=gather))
        ranks.append(nodes)
    return ranks
