# SPDX-License-Identifier: Apache-2.0
"""Chakra execution traces: a file for each rank, `PREFIX.RANK.et` or `PREFIX.RANK.json`.

The attributes of nodes, and that `comm_size` is the size of a member's input, follow the feeder of
github.com/mlcommons/chakra and ASTRA-sim, which reads these files.

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
from pathlib import Path

from testbed.traces.chakra_nodes import COLLECTIVE, RECEIVE, SEND, Node, nodes_of
from testbed.traces.collectives import Operation, add_collective
from testbed.traces.files import MOST_TASKS
from testbed.training.tasks import TaskGraph

_BARRIER = 9  # of `comm_type`
_METADATA, _COMPUTE = 1, 4  # types of nodes
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


def read_chakra(prefix: Path) -> TaskGraph:
    """The traces `PREFIX.0.et`, `PREFIX.1.et` and so on, or *.json, as one task graph, a device for each.

    Raises ValueError, one sentence with file and place, for bad files and for what a task graph cannot say.
    """
    endings = [ending for ending in ("et", "json") if _file(prefix, 0, ending).is_file()]
    if len(endings) != 1:
        first, other = _file(prefix, 0, "et"), _file(prefix, 0, "json").name
        said = f"{other} is there too; remove one of the two" if endings else f"there is no such file, and no {other}"
        raise ValueError(f"{first}: {said}; give the traces' common prefix, to which .RANK.et or .RANK.json is added")
    nodes: list[list[Node]] = []
    while (path := _file(prefix, len(nodes), *endings)).is_file():
        nodes.append(nodes_of(path, sum(map(len, nodes)), MOST_TASKS))
    return _Builder(prefix, nodes).build()


def _file(prefix: Path, rank: int, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{rank}.{ending}")


class _Builder:
    def __init__(self, prefix: Path, nodes: list[list[Node]]) -> None:
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
                elif node.type in (_METADATA, _COMPUTE, SEND, RECEIVE, COLLECTIVE):
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

    def waiting(self) -> Node:
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

    def collectives(self) -> Iterator[tuple[list[int], list[Node]]]:
        """The members of each collective in ascending order, and its node in each."""
        of_group: defaultdict[str, dict[int, list[Node]]] = defaultdict(dict)
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.type == COLLECTIVE and node.communicates:
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

    def collective(self, members: list[int], same: list[Node]) -> tuple[int, int]:
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
        waiting: defaultdict[tuple[int, int, int], list[tuple[int, Node]]] = defaultdict(list)
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.type == SEND and node.communicates:
                    ends = node.number("comm_src", rank), node.number("comm_dst")
                    if ends[0] != rank:
                        raise node.fail(f"sends for rank {ends[0]}, and the file is rank {rank}'s")
                    waiting[*ends, node.number("comm_tag", 0)].append((rank, node))
        taken: Counter[tuple[int, int, int]] = Counter()
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.type == RECEIVE and node.communicates:
                    key = node.number("comm_src"), rank, node.number("comm_tag", 0)
                    if len(waiting[key]) <= taken[key]:
                        raise node.fail(f"receives from rank {key[0]} with tag {key[2]}, which has no send for it")
                    source, send = waiting[key][taken[key]]
                    taken[key] += 1
                    self.transfer(source, send, rank, node)
        for key, sends in waiting.items():
            if len(sends) > taken[key]:
                raise sends[taken[key]][1].fail(f"sends to rank {key[1]} with tag {key[2]}, which does not receive it")

    def transfer(self, source: int, send: Node, target: int, receive: Node) -> None:
        size = send.number("comm_size")
        if receive.number("comm_size", size) != size:
            raise receive.fail(f"receives another size than {send.file} sends by node {send.id}, which is {size}")
        if source == target:
            raise send.fail("sends to its own rank")
        number = self.graph.send(source, target, size, name=send.name)
        received = self.graph.join((number,), receive.name)
        self.tasks |= {(source, send.id): (number, number), (target, receive.id): (received, received)}
