# SPDX-License-Identifier: Apache-2.0
"""The formats of traces by name, and a packed form in which a spec carries the graph of its trace."""

import base64
import binascii
import json
import zlib
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

from testbed.traces.chakra import read_chakra
from testbed.traces.files import LARGEST_FILE, LONGEST_S, MOST_ENTRIES, MOST_TASKS, bytes_of, text_of
from testbed.traces.flexnet import read as read_flexnet
from testbed.traces.floodns import graph_of, read_jobs
from testbed.traces.goal import read_goal
from testbed.traces.hpcc import read_flows
from testbed.traces.htsim import read_connections
from testbed.traces.nccl_inspector import read_inspector
from testbed.traces.simai import read_simai
from testbed.training.hardware import Kind
from testbed.training.tasks import Phase, Task, TaskGraph

Format = Literal["chakra", "flexnet", "floodns", "goal", "hpcc", "htsim", "nccl_inspector", "simai"]

_LARGEST_BYTES = 1e18
"""Of a task."""
_MOST_LISTS = 4 * MOST_TASKS
"""Of a packed graph: a task is three, a phase one."""
_PART = 1 << 20
"""Bytes that are inflated at a time."""


def read_trace(form: Format, path: Path, ranks: int, *, iterations: int = 1, first: int | None = None) -> TaskGraph:
    """The trace at `path` as a task graph.

    `ranks` is the number of devices where a format does not say it. `iterations` of each job are for `floodns`, and
    `first`, the node that is device 0, for `floodns` and `hpcc`.

    Raises ValueError, in one sentence with file and line or byte, for a bad file.
    """
    match form:
        case "chakra":
            graph = read_chakra(path)
        case "flexnet":
            buffer = bytes_of(path)
            try:
                graph = read_flexnet(buffer).graph
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
        case "floodns":
            graph = graph_of(read_jobs(path), iterations, first)
        case "goal":
            graph = read_goal(path)
        case "hpcc":
            graph = read_flows(path, first)
        case "htsim":
            graph = read_connections(text_of(path), str(path))
        case "nccl_inspector":
            graph = read_inspector(path)
        case "simai":
            graph = read_simai(path, ranks)
    try:
        _check(graph)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return graph


def _check(graph: TaskGraph) -> None:
    """Raises ValueError for a graph that is too large to run, or whose tasks wait for each other."""
    if not 1 <= graph.devices <= MOST_TASKS:  # readers say where
        raise ValueError(f"has {graph.devices} devices; 1 to {MOST_TASKS} are read")
    if len(graph.tasks) > MOST_TASKS:
        raise ValueError(f"task {MOST_TASKS} is one of {len(graph.tasks)}, and {MOST_TASKS} are read; cut the trace")
    for number, task in enumerate(graph.tasks):
        if not (isfinite(task.delay_s) and task.delay_s <= LONGEST_S and task.bytes <= _LARGEST_BYTES) or task.blocking:
            raise ValueError(
                f"task {number} takes {task.delay_s:g} s and sends {task.bytes:g} bytes, which is too much"
            )
    graph.order()


def pack(graph: TaskGraph) -> str:
    """A graph as text: base64 of compressed JSON, without names. Raises ValueError for one that `unpack` refuses."""
    both = zip(graph.tasks, graph.after, strict=True)
    rows = [[task.kind, task.devices, task.delay_s, task.bytes, after] for task, after in both]
    text = json.dumps([graph.devices, rows, *graph.phases], separators=(",", ":")).encode()
    if text.count(b",") > MOST_ENTRIES or len(text) > LARGEST_FILE:
        raise ValueError(f"its tasks have more than {MOST_ENTRIES} devices and waits; cut the trace")
    return base64.b64encode(zlib.compress(text, 9)).decode()


def unpack(packed: str) -> TaskGraph:
    """The graph of a text that `pack` made. Raises ValueError for any other text."""
    try:
        devices, rows, *phases = json.loads(_inflated(base64.b64decode(packed, validate=True)))
        graph = TaskGraph(int(devices))
        for kind, members, delay_s, size, after in rows:
            graph.tasks.append(_task(graph.devices, kind, members, delay_s, size))
            graph.after.append([int(earlier) for earlier in after])
        if any(not 0 <= earlier < len(graph.tasks) for after in graph.after for earlier in after):
            raise ValueError
        graph.phases += [Phase(*map(int, phase)) for phase in phases]
        if any(not 0 <= phase.begin < phase.end < len(graph.tasks) for phase in graph.phases):
            raise ValueError
        if any(graph.tasks[end].senders for phase in graph.phases for end in (phase.begin, phase.end)):
            raise ValueError
        _check(graph)
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error, zlib.error):
        raise ValueError("is not a packed trace; give format and file") from None
    return graph


def _inflated(packed: bytes) -> bytes:
    """The text that was compressed. Raises ValueError for one whose values would take much more memory than a graph.

    They are counted while the text grows: a thousandth of it, compressed, can stand for any number of them.
    """
    inflate, text, entries, lists = zlib.decompressobj(), bytearray(), 0, 0
    while not inflate.eof:
        part = inflate.decompress(packed, _PART)
        packed = inflate.unconsumed_tail
        if not part and not packed:
            break  # its end is missing
        text += part
        entries, lists = entries + part.count(b","), lists + part.count(b"[")
        if entries > MOST_ENTRIES or lists > _MOST_LISTS or b"{" in part or len(text) > LARGEST_FILE:
            raise ValueError
    return bytes(text)


def _task(devices: int, kind: Any, members: Any, delay_s: Any, size: Any) -> Task:
    found = tuple(int(member) for member in members)
    if kind not in (None, *get_args(Kind)) or len(set(found)) < len(found) or min(delay_s, size) < 0:
        raise ValueError
    if not all(0 <= member < devices for member in found):
        raise ValueError
    if (kind is not None and len(found) < 2) or (kind == "send" and len(found) > 2):
        raise ValueError
    return Task(kind, found, float(delay_s), float(size))
