# SPDX-License-Identifier: Apache-2.0
"""Flows of the simulator of HPCC (Li et al., SIGCOMM 2019), on ns-3.

The format is that of `simulation/scratch/third.cc` and `traffic_gen` of
github.com/alibaba-edu/High-Precision-Congestion-Control. The first line has the number of flows. A flow is a line
`src dst priority_group destination_port bytes start`, with node ids and seconds. Flows wait for nothing. The simulator
reads no further than that number; its own flow.txt has more flows, and then sentences.
"""

from math import isfinite
from pathlib import Path

from testbed.traces.files import LONGEST_S, MOST_TASKS, text_of, whole
from testbed.training.tasks import TaskGraph

_COLUMNS = ("src", "dst", "priority group", "destination port", "bytes", "start")
_LARGEST = 10**18


def read_flows(path: Path, first: int | None = None) -> TaskGraph:
    """The flows as transfers. Device d is node `first` + d; by default nodes that occur are numbered in order.

    Raises ValueError, one sentence with file and line, for a bad file.
    """
    said, flows = -1, list[tuple[int, int, int, float]]()
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        words, where = line.split(), f"{path}:{number}"
        if not words:
            continue
        if said < 0:
            said = whole(words[0], "the number of flows", where, 0, MOST_TASKS)
            continue
        if len(flows) == said:
            break
        if len(words) != len(_COLUMNS):
            raise ValueError(f"{where}: a flow has {len(_COLUMNS)} numbers ({', '.join(_COLUMNS)}), not {len(words)}")
        src, dst, _, _, size = (
            whole(word, name, where, 0, _LARGEST if name == "bytes" else 2**31)
            for word, name in zip(words[:-1], _COLUMNS[:-1], strict=True)
        )
        if src == dst:
            raise ValueError(f"{where}: node {src} sends to itself")
        if first is not None and not first <= min(src, dst) <= max(src, dst) < first + MOST_TASKS:
            raise ValueError(f"{where}: nodes {src} and {dst} must be {first} (`first`) to {first + MOST_TASKS - 1}")
        flows.append((src, dst, size, _seconds(words[-1], where)))
    if said != len(flows):
        raise ValueError(f"{path}:1: must be the number of flows, which is {len(flows)} at most, not {max(said, 0)}")
    nodes = sorted({node for src, dst, *_ in flows for node in (src, dst)})
    device = {node: place if first is None else node - first for place, node in enumerate(nodes)}
    graph = TaskGraph(max(device.values(), default=-1) + 1)
    for src, dst, size, start_s in flows:
        graph.send(device[src], device[dst], size, delay_s=start_s)
    return graph


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or not 0 <= value <= LONGEST_S:
        raise ValueError(f"{where}: start must be seconds, 0 to {LONGEST_S:g}, not {text[:40]!r}")
    return value
