# SPDX-License-Identifier: Apache-2.0
"""The nodes of a Chakra execution trace of one rank, as Protocol Buffers or as JSON.

The schema is `schema/protobuf/et_def.proto` of github.com/mlcommons/chakra: messages after their lengths, first a
GlobalMetadata, then nodes. Until October 2023 that file had other fields of the same numbers.

JSON is what `src/feeder/json_node.cpp` there reads: an object with a list `workload_graph`, whose entries have `Id`,
`Name`, `NodeType`, `data_deps`, `is_cpu_op` and `runtime` in microseconds, and what attributes have in the other form.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.traces.files import LONGEST_S, bytes_of, text_of
from testbed.traces.protobuf import Field, Message, delimited

SEND, RECEIVE, COLLECTIVE = 5, 6, 7
"""Types of nodes that communicate."""
_BOOLEANS = 28  # field of an AttributeProto
_SIZED = ("comm_type", "comm_size", "comm_src", "comm_dst")
"""Attributes of which a node that moves data has at least one."""
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
"""Fields of an AttributeProto that are numbers of fixed size, with their `struct` codes."""
_MICROSECOND = 1e-6
_OLD_ATTRIBUTE = 11
"""The field of a node's attributes in the schema of 2023; the present one has no field of this number."""
_KEYS_JSON = ("is_cpu_op", "num_ops", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name")
"""Keys of a node in JSON that become attributes of the same name."""

Value = int | float | str


@dataclass(slots=True)
class Node:
    """A node of a trace."""

    file: Path
    place: str
    """Where the node is in the file: its first byte, or its number among the entries."""
    id: int = 0
    name: str = ""
    type: int = 0
    duration_us: int = 0
    waits: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    """`ctrl_deps`."""
    attributes: dict[str, Value] = field(default_factory=dict)
    dimensions: tuple[bool, ...] = ()
    """`involved_dim`: by dimension of the network, whether a collective goes through it. Empty: through all."""

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.file}: {self.place}: node {self.id} {what}")

    def number(self, name: str, default: int | None = None) -> int:
        value = self.attributes.get(name, default)
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise self.fail(f"needs an attribute {name} that is a whole number of 0 or more")
        return value

    @property
    def communicates(self) -> bool:
        """Whether the node moves data; a processor's launch of a communication does not."""
        if self.type not in (SEND, RECEIVE, COLLECTIVE):
            return False
        return not (self.attributes.get("is_cpu_op") and self.attributes.keys().isdisjoint(_SIZED))

    @property
    def group(self) -> str:
        return str(self.attributes.get("pg_name", ""))

    @property
    def seconds(self) -> float:
        if self.duration_us * _MICROSECOND > LONGEST_S:
            raise self.fail(f"takes {self.duration_us} us, and at most {LONGEST_S:g} s are read")
        if not self.duration_us and self.attributes.get("num_ops"):
            raise self.fail("has num_ops instead of a duration; add durations, which depend on the accelerator")
        return self.duration_us * _MICROSECOND


def nodes_of(path: Path, before: int, most: int) -> list[Node]:
    """The nodes of a file: JSON if its name ends so, else Protocol Buffers.

    Raises ValueError, one sentence with file and place, for a bad file and for more than `most` nodes with those of the
    ranks `before`.
    """
    found: list[Node] = []
    known: set[int] = set()
    for node in _json_nodes(path) if path.suffix == ".json" else _coded_nodes(path):
        if node.id in known:
            raise node.fail("has the id of a node before it")
        if before + len(found) == most:
            raise node.fail(f"is one more than the {most} of all ranks that are read")
        known.add(node.id)
        found.append(node)
    if not any(node.id in node.calls for node in found):
        for node in found:
            node.waits += node.calls
    return found


def _coded_nodes(path: Path) -> Iterator[Node]:
    """The nodes of a file of Protocol Buffers."""
    buffer = bytes_of(path)
    if buffer[:2] == b"\x1f\x8b":
        raise ValueError(f"{path}: byte 0: is compressed; decompress it with gunzip first")
    try:
        messages = delimited(buffer)
        metadata = next(messages, None)
        if metadata is None:
            raise ValueError("byte 0: is empty, and must begin with GlobalMetadata")
        for entry in metadata.fields():
            if entry.number == 1:
                entry.text()
        for message in messages:
            yield _node(path, message)
    except ValueError as error:
        raise error if str(error).startswith(str(path)) else ValueError(f"{path}: {error}") from None


def _node(path: Path, message: Message) -> Node:
    node = Node(path, f"byte {message.start}")
    entries = list(message.fields())
    if any(entry.number == _OLD_ATTRIBUTE for entry in entries):
        said = "is of Chakra's schema before October 2023; convert the trace anew with a later version of Chakra"
        raise ValueError(f"{node.place}: {said}")
    for entry in entries:
        match entry.number:
            case 1:
                node.id = entry.unsigned()
            case 2:
                node.name = entry.text()
            case 3:
                node.type = entry.unsigned()
            case 4:
                node.calls += entry.many_unsigned()
            case 5:
                node.waits += entry.many_unsigned()
            case 7:
                node.duration_us = entry.unsigned()
            case 10:
                name, value = _attribute(entry.message())
                if isinstance(value, tuple):
                    node.dimensions = value if name == "involved_dim" else node.dimensions
                elif value is not None:
                    node.attributes[name] = value
    return node


def _attribute(message: Message) -> tuple[str, Value | tuple[bool, ...] | None]:
    """Name and value; None for bytes and lists other than of booleans, which no attribute read here has."""
    name: str = ""
    value: Value | tuple[bool, ...] | None = None
    for entry in message.fields():
        if entry.number == 1:
            name = entry.text()
        elif entry.number == _BOOLEANS:
            value = _booleans(entry.message())
        elif (found := _value(entry)) is not None:
            value = found
    return name, value


def _booleans(message: Message) -> tuple[bool, ...]:
    """The values of a BoolList."""
    return tuple(bool(value) for each in message.fields() if each.number == 1 for value in each.many_unsigned())


def _value(entry: Field) -> Value | None:
    """The value of an AttributeProto's field, by the field's number."""
    match entry.number:
        case 7 | 9:
            return entry.signed()
        case 11 | 13 | 27:
            return entry.unsigned()
        case 15 | 17:
            return entry.zigzag()
        case 3 | 5 | 19 | 21 | 23 | 25:
            return entry.fixed(_FIXED[entry.number])
        case 29:
            return entry.text()
    return None


def _json_nodes(path: Path) -> Iterator[Node]:
    """The nodes of a file of JSON. What calls a node (`ctrlDeps`) is not followed there, as in Chakra's feeder."""
    text = text_of(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise ValueError(f"{path}:{getattr(error, 'lineno', 1)}: is not JSON") from None
    entries = document.get("workload_graph") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"{path}:1: must be a JSON object with a list workload_graph, whose entries are nodes")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: entry {number} of workload_graph: must be a JSON object")
        yield _json_node(path, number, entry)


def _json_node(path: Path, number: int, entry: dict[str, Any]) -> Node:
    where = f"entry {number} of workload_graph"

    def whole(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            raise ValueError(f"{path}: {where}: {key} must be a whole number of 0 or more")
        return value

    waits, dimensions = entry.get("data_deps", []), entry.get("involved_dim", [])
    if not isinstance(waits, list) or not isinstance(dimensions, list):
        raise ValueError(f"{path}: {where}: data_deps and involved_dim must be lists")
    attributes = {key: entry[key] for key in _KEYS_JSON if key in entry}
    if bad := [key for key, value in attributes.items() if not isinstance(value, (int, str))]:
        raise ValueError(f"{path}: {where}: {bad[0]} must be a whole number, true, false or a text")
    return Node(
        path,
        where,
        whole(entry.get("Id"), "Id"),
        str(entry.get("Name", "")),
        whole(entry.get("NodeType"), "NodeType"),
        whole(entry.get("runtime", 0), "runtime"),
        [whole(earlier, "data_deps") for earlier in waits],
        attributes=attributes,
        dimensions=tuple(map(bool, dimensions)),
    )
