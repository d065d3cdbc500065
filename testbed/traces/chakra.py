# SPDX-License-Identifier: Apache-2.0
"""Chakra execution traces: a file for each rank, `PREFIX.RANK.et`.

The schema is `schema/protobuf/et_def.proto` of github.com/mlcommons/chakra: messages after their lengths, first a
GlobalMetadata, then nodes. The attributes of nodes, and that `comm_size` is the size of a member's input, follow the
feeder of that repository and ASTRA-sim, which reads these files.

The converter of PyTorch's traces (`src/converter/pytorch_converter.py` there, 2024) has two peculiarities:

- `ctrl_deps` is the calling operator, which may be the node itself. What the node waits for is in `data_deps`. In a
  file with such a node, `data_deps` alone are followed.
- The operator by which the processor launches a communication (`c10d::allreduce_`) has the type of a communication,
  `is_cpu_op`, and neither type nor size. It takes its duration on the processor. The kernel that it launches has both.

Ranks issue the collectives of a process group in the same order, so the k-th of each rank is the same collective. The
k-th send with a tag from one rank to another belongs to the k-th receive there.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from testbed.traces.collectives import Operation, add_collective
from testbed.traces.files import LONGEST_S, MOST_TASKS, bytes_of
from testbed.traces.protobuf import Field, Message, delimited
from testbed.training.tasks import TaskGraph

_BARRIER = 9  # of `comm_type`
_BOOLEANS = 28  # field of an AttributeProto
_METADATA, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 1, 4, 5, 6, 7  # types of nodes
_OPERATIONS: dict[int, Operation] = {
    0: "all_reduce",
    1: "reduce",
    2: "all_gather",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
    9: "barrier",
}
_READ = ", ".join(_OPERATIONS.values())
_SIZED = ("comm_type", "comm_size", "comm_src", "comm_dst")
"""Attributes of which a node that moves data has at least one."""
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
"""Fields of an AttributeProto that are numbers of fixed size, with their `struct` codes."""
_MICROSECOND = 1e-6

Value = int | float | str


@dataclass(slots=True)
class _Node:
    file: Path
    place: int
    """Byte of the file at which the node starts."""
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
        return ValueError(f"{self.file}: byte {self.place}: node {self.id} {what}")

    def number(self, name: str, default: int | None = None) -> int:
        value = self.attributes.get(name, default)
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise self.fail(f"needs an attribute {name} that is a whole number of 0 or more")
        return value

    @property
    def communicates(self) -> bool:
        """Whether the node moves data; a processor's launch of a communication does not."""
        if self.type not in (_SEND, _RECEIVE, _COLLECTIVE):
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


def read_chakra(prefix: Path) -> TaskGraph:
    """The traces `PREFIX.0.et`, `PREFIX.1.et` and so on as one task graph, a device for each.

    Raises ValueError, one sentence with file and byte, for bad files and for what a task graph cannot say.
    """
    first = _file(prefix, 0)
    if not first.is_file():
        raise ValueError(f"{first}: there is no such file; give the traces' common prefix, to which .RANK.et is added")
    nodes: list[list[_Node]] = []
    while (path := _file(prefix, len(nodes))).is_file():
        nodes.append(_nodes(path, MOST_TASKS - sum(map(len, nodes))))
    return _Builder(prefix, nodes).build()


def _file(prefix: Path, rank: int) -> Path:
    return prefix.with_name(f"{prefix.name}.{rank}.et")


def _nodes(path: Path, most: int) -> list[_Node]:
    buffer = bytes_of(path)
    if buffer[:2] == b"\x1f\x8b":
        raise ValueError(f"{path}: byte 0: is compressed; decompress it with gunzip first")
    found: list[_Node] = []
    known: set[int] = set()
    try:
        messages = delimited(buffer)
        metadata = next(messages, None)
        if metadata is None:
            raise ValueError("byte 0: is empty, and must begin with GlobalMetadata")
        for entry in metadata.fields():
            if entry.number == 1:
                entry.text()
        for message in messages:
            node = _node(path, message)
            if node.id in known:
                raise node.fail("has the id of a node before it")
            if len(found) == most:
                raise node.fail(f"is one more than the {MOST_TASKS} of all ranks that are read")
            known.add(node.id)
            found.append(node)
    except ValueError as error:
        raise error if str(error).startswith(str(path)) else ValueError(f"{path}: {error}") from None
    if not any(node.id in node.calls for node in found):
        for node in found:
            node.waits += node.calls
    return found


def _node(path: Path, message: Message) -> _Node:
    node = _Node(path, message.start)
    for entry in message.fields():
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


class _Builder:
    def __init__(self, prefix: Path, nodes: list[list[_Node]]) -> None:
        self.prefix = prefix
        self.nodes = nodes
        self.graph = TaskGraph(len(nodes))
        self.tasks: dict[tuple[int, int], tuple[int, int]] = {}
        """By rank and node id: the first and the last task of the node."""

    def build(self) -> TaskGraph:
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.communicates:
                    continue
                if node.type == _COMPUTE and not node.attributes.get("is_cpu_op"):
                    number = self.graph.compute(rank, node.seconds, name=node.name)
                elif node.type in (_METADATA, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE):
                    number = self.graph.join((), node.name, delay_s=node.seconds)  # processors' nodes may overlap
                else:
                    raise node.fail(f"is of type {node.type}, which has no counterpart; remove it")
                self.tasks[rank, node.id] = number, number
        for members, same in self.collectives():
            both = self.collective(members, same)
            self.tasks |= {(rank, node.id): both for rank, node in zip(members, same, strict=True)}
        self.transfers()
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                for earlier in node.waits:
                    if (rank, earlier) not in self.tasks:
                        raise node.fail(f"waits for node {earlier}, which the file does not have")
                    self.graph.wait(self.tasks[rank, earlier][1], self.tasks[rank, node.id][0])
        try:
            self.graph.order()
        except ValueError:
            raise self.waiting().fail("waits for itself, maybe by way of other ranks") from None
        return self.graph

    def waiting(self) -> _Node:
        """A node of a circle of tasks that wait for each other."""
        after, later = self.graph.after, defaultdict[int, list[int]](list)
        for number, waits in enumerate(after):
            for earlier in waits:
                later[earlier].append(number)
        left = [len(waits) for waits in after]  # at the end: how many of them never end
        free = [number for number, count in enumerate(left) if not count]
        while free:
            for waiting in later[free.pop()]:
                left[waiting] -= 1
                if not left[waiting]:
                    free.append(waiting)
        of_task = {number: (rank, name) for (rank, name), both in self.tasks.items() for number in both}
        # Each of these waits for another, so that this walk ends in a circle; one of the circle belongs to a node.
        walk, seen = next(number for number, count in enumerate(left) if count), set[int]()
        while walk not in seen or walk not in of_task:
            seen.add(walk)
            walk = next(earlier for earlier in after[walk] if left[earlier])
        rank, name = of_task[walk]
        return next(node for node in self.nodes[rank] if node.id == name)

    def collectives(self) -> Iterator[tuple[list[int], list[_Node]]]:
        """The members of each collective in ascending order, and its node in each."""
        of_group: defaultdict[str, dict[int, list[_Node]]] = defaultdict(dict)
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.type == _COLLECTIVE and node.communicates:
                    of_group[node.group].setdefault(rank, []).append(node)
        for group, by_rank in of_group.items():
            members = list(by_rank) if group else list(range(len(self.nodes)))
            counts = {rank: len(by_rank.get(rank, ())) for rank in members}
            least, most = min(members, key=counts.__getitem__), max(members, key=counts.__getitem__)
            if counts[least] != counts[most]:
                extra = by_rank[most][counts[least]]
                raise extra.fail(f"is a collective of {group or 'all ranks'} in which rank {least} has no part")
            for place in range(counts[most]):
                yield members, [by_rank[rank][place] for rank in members]

    def collective(self, members: list[int], same: list[_Node]) -> tuple[int, int]:
        first = same[0]
        for node in same:
            if "comm_type" not in node.attributes:
                raise node.fail(
                    f"({node.name!r}) is a collective without comm_type; add it, or set is_cpu_op of a launch"
                )
        kind = first.number("comm_type")
        least = 0 if kind == _BARRIER else None  # a barrier has no size
        size = first.number("comm_size", least)
        for node in same:
            if not all(node.dimensions):
                raise node.fail(
                    "leaves out dimensions (involved_dim); name its members by pg_name, without involved_dim"
                )
            if (node.number("comm_type"), node.number("comm_size", least)) != (kind, size):
                raise node.fail(f"differs in type or size from node {first.id} of {first.file}, the same collective")
        what = _OPERATIONS.get(kind)
        if what is None:
            raise first.fail(f"is a collective of type {kind}, which has no counterpart; read are {_READ}")
        return add_collective(
            self.graph, what, size * len(members) if what == "all_gather" else size, members, first.name
        )

    def transfers(self) -> None:
        """A transfer for each send and its receive.

        It starts when the send can, as in ASTRA-sim, whose sends wait for no receiver. The receive ends when the data
        are there and what it waits for has ended.
        """
        waiting: defaultdict[tuple[int, int, int], list[tuple[int, _Node]]] = defaultdict(list)
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.type == _SEND and node.communicates:
                    ends = node.number("comm_src", rank), node.number("comm_dst")
                    if ends[0] != rank:
                        raise node.fail(f"sends for rank {ends[0]}, and the file is rank {rank}'s")
                    waiting[*ends, node.number("comm_tag", 0)].append((rank, node))
        taken: Counter[tuple[int, int, int]] = Counter()
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.type == _RECEIVE and node.communicates:
                    key = node.number("comm_src"), rank, node.number("comm_tag", 0)
                    if len(waiting[key]) <= taken[key]:
                        raise node.fail(f"receives from rank {key[0]} with tag {key[2]}, which has no send for it")
                    source, send = waiting[key][taken[key]]
                    taken[key] += 1
                    self.transfer(source, send, rank, node)
        for key, sends in waiting.items():
            if len(sends) > taken[key]:
                raise sends[taken[key]][1].fail(f"sends to rank {key[1]} with tag {key[2]}, which does not receive it")

    def transfer(self, source: int, send: _Node, target: int, receive: _Node) -> None:
        size = send.number("comm_size")
        if receive.number("comm_size", size) != size:
            raise receive.fail(f"receives another size than {send.file} sends by node {send.id}, which is {size}")
        if source == target:
            raise send.fail("sends to its own rank")
        number = self.graph.send(source, target, size, name=send.name)
        received = self.graph.join((number,), receive.name)
        self.tasks |= {(source, send.id): (number, number), (target, receive.id): (received, received)}
