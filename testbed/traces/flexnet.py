# SPDX-License-Identifier: Apache-2.0
"""Task graphs that TopoOpt's FlexNet writes, the input of its packet simulation.

The schema is `taskgraph_generated.h` of github.com/hipersys-team/FlexFlow; what tasks mean follows FlexNetPacket
(github.com/Flasew/ffsim-opera, `src/clos/ffapp.cpp`). Released graphs are in github.com/hipersys-team/TopoOpt,
`simulation/scripts/fig16/fattree/tgs`. One device of the graph is a server with all its GPUs.
"""

from dataclasses import dataclass

from testbed.traces.files import MOST_ENTRIES, MOST_TASKS
from testbed.traces.flatbuffers import Table
from testbed.training.hardware import Collective
from testbed.training.tasks import TaskGraph

_TRANSFER, _ALL_REDUCE = 5, 6  # types of tasks; all others compute
_COMPUTES = {0: "forward", 1: "backward"}
_GPU, _LINK = 0, 14  # types of devices; links are a pair of nodes

# Fields of the tables by number.
_NODES, _SWITCHES, _RATE, _TASKS, _DEVICES = 1, 2, 5, 8, 9
_TASK_TYPE, _TASK_ID, _TASK_DEVICE, _TASK_MS, _TASK_BYTES, _TASK_NEXT = range(6)
_DEVICE_TYPE, _DEVICE_ID, _DEVICE_NODE, _DEVICE_PROPERTY = range(4)


@dataclass(frozen=True, slots=True)
class Released:
    """A graph, and the rate of the NICs for which its strategy was searched."""

    graph: TaskGraph
    rate_bps: float


def read(buffer: bytes) -> Released:
    """Read a task graph. Raises ValueError, in one sentence with the byte, where the bytes are not one."""
    root = Table.root(buffer)
    nodes = int(root.number(_NODES, "<I"))
    if nodes < 1:
        raise ValueError(f"byte {root.place}: the task graph has no nodes; it must be a FlexNet task graph")
    if nodes > MOST_TASKS:
        raise ValueError(
            f"byte {root.place}: the task graph has {nodes} nodes, and at most {MOST_TASKS} are read; make it smaller"
        )
    ends = nodes + int(root.number(_SWITCHES, "<I"))
    devices = {
        int(device.number(_DEVICE_ID, "<Q")): (
            int(device.number(_DEVICE_TYPE, "<h")),
            int(device.number(_DEVICE_NODE, "<Q")),
            int(device.number(_DEVICE_PROPERTY, "<Q")),
        )
        for device in root.tables(_DEVICES)
    }
    graph = TaskGraph(nodes)
    numbers: dict[int, int] = {}
    following: list[tuple[str, int, tuple[int, ...]]] = []
    entries = 0
    for task in root.tables(_TASKS):
        kind, seconds = int(task.number(_TASK_TYPE, "<h")), task.number(_TASK_MS, "<f") / 1e3
        size, name = task.number(_TASK_BYTES, "<Q"), int(task.number(_TASK_ID, "<Q"))
        if (entries := entries + task.length(_TASK_NEXT)) > MOST_ENTRIES:
            raise ValueError(f"byte {task.place}: the tasks up to this one have more than {MOST_ENTRIES} followers")
        after = task.numbers(_TASK_NEXT, "Q")
        of, where = int(task.number(_TASK_DEVICE, "<Q")), f"byte {task.place}: task {name}"
        if len(graph.tasks) == MOST_TASKS:
            raise ValueError(f"{where} is one more than the {MOST_TASKS} that are read; make the graph smaller")
        if kind != _ALL_REDUCE and of not in devices:
            raise ValueError(f"{where} is on device {of}, which the graph does not have")
        what, node, pair = devices.get(of, (_GPU, 0, 0))
        if kind != _ALL_REDUCE and what != _GPU and (kind, what) != (_TRANSFER, _LINK):
            raise ValueError(f"{where} of type {kind} is on a device of type {what}, which is neither GPU nor link")
        try:
            if kind == _ALL_REDUCE:  # its field of following tasks has its members; it holds nothing up
                number = graph.collective(Collective("all_reduce", size), after, delay_s=seconds, name="all-reduce")
            elif what == _LINK:
                number = graph.send(*divmod(pair, ends), size, name="transfer")
            else:
                number = graph.compute(node, seconds, name=_COMPUTES.get(kind, "update"))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if kind != _ALL_REDUCE:
            following.append((where, number, after))
        if name in numbers:
            raise ValueError(f"{where} has the id of an earlier task; each must have its own")
        numbers[name] = number
    for where, number, after in following:
        for name in after:
            if name not in numbers:
                raise ValueError(f"{where} is followed by task {name}, which the graph does not have")
            graph.wait(number, numbers[name])
    return Released(graph, 8e3 * root.number(_RATE, "<f"))
