# SPDX-License-Identifier: Apache-2.0
"""Training jobs as released with O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324).

The files are `traffic_pairs/**/job_N-MODEL.txt` of github.com/ofircohen205/dcn-simulators, read by its class
`JobEpochSchedule`. A line is a hop of a ring: `src dst src_tor dst_tor start_time flow_size compute_time stage_index`,
with node ids, nanoseconds and bytes. `flow_size` is what a hop carries in each of the 2 (n - 1) steps of an all-reduce
among n members. Following `DataParallelism` there, a step starts when all hops of its ring have ended; a job begins
with an all-reduce at its start time, and computes between iterations.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.traces.files import LONGEST_S, MOST_TASKS, files_in, text_of, whole
from testbed.training.tasks import Phase, TaskGraph

_NANOSECOND = 1e-9
_COLUMNS = ("src", "dst", "src_tor", "dst_tor", "start_time", "flow_size", "compute_time", "stage_index")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""What a job may be called."""
_LONGEST = int(LONGEST_S / _NANOSECOND)


@dataclass(frozen=True, slots=True)
class RingJob:
    """A job whose copies all-reduce in rings, one for each part of its model."""

    name: str
    start_s: float
    """When the first all-reduce of the job begins, in seconds."""
    compute_s: float
    """Seconds from the end of an all-reduce until the next begins."""
    hop_bytes: int
    """The bytes that a member sends in each step."""
    rings: tuple[tuple[int, ...], ...]
    """Node ids, each followed by the one that it sends to."""
    where: str = ""
    """File and line of the first hop."""


def read_jobs(path: Path) -> list[RingJob]:
    """The job of a file, or those of all files `job_*.txt` of a folder.

    Raises ValueError, one sentence with file and line, for a bad file.
    """
    return [_job(file) for file in files_in(path, "job_*.txt")]


def _job(path: Path) -> RingJob:
    following: dict[int, dict[int, tuple[int, int]]] = {}  # by stage and source: destination and line
    common: list[int] | None = None
    begin, found = "", 0
    lines = text_of(path).splitlines()
    for number, line in enumerate(lines, start=1):
        words, where = line.split(), f"{path}:{number}"
        if not words or words[0].startswith("#"):
            continue
        if len(words) != len(_COLUMNS):
            raise ValueError(f"{where}: needs {len(_COLUMNS)} numbers ({' '.join(_COLUMNS)}), not {len(words)}")
        src, dst, _, _, start, size, compute, stage = (
            whole(word, name, where, 0, _LONGEST if name.endswith("time") else 2**63 - 1)
            for word, name in zip(words, _COLUMNS, strict=True)
        )
        if common not in (None, [start, size, compute]):
            raise ValueError(f"{where}: start_time, flow_size and compute_time differ from those of the lines before")
        common, begin = [start, size, compute], begin or where
        hops = following.setdefault(stage, {})
        if (found := found + 1) > MOST_TASKS:
            raise ValueError(f"{where}: this hop is one more than the {MOST_TASKS} that are read")
        if src == dst or src in hops:
            raise ValueError(f"{where}: node {src} sends to itself, or twice in stage {stage}")
        hops[src] = dst, number
    if common is None:
        raise ValueError(f"{path}:1: has no hop of a ring")
    rings = tuple(_ring(hops, stage, path) for stage, hops in sorted(following.items()))
    start, size, compute = common
    return RingJob(path.stem, start * _NANOSECOND, compute * _NANOSECOND, size, rings, begin)


def _ring(hops: dict[int, tuple[int, int]], stage: int, path: Path) -> tuple[int, ...]:
    first = next(iter(hops))
    ring = [first]
    while (found := hops.get(ring[-1])) is not None and found[0] != first and len(ring) < len(hops):
        ring.append(found[0])
    if found is None or found[0] != first or len(ring) < len(hops):
        line = hops[ring[-1]][1] if ring[-1] in hops else hops[ring[-2]][1]
        raise ValueError(f"{path}:{line}: the hops of stage {stage} are not a ring of all its {len(hops)} nodes")
    return tuple(ring)


def graph_of(jobs: Sequence[RingJob], iterations: int, first: int | None = None) -> TaskGraph:
    """The jobs as one task graph. Device d is node `first` + d; by default nodes that occur are numbered in order.

    The graph names the `jobs` if there are several and no two of them share a node.

    Raises ValueError, with the file and line of a job, if it makes the graph too large or has a node before `first`.
    """
    tasks = 0
    for job in jobs:
        least, most = (end(node for ring in job.rings for node in ring) for end in (min, max))
        if first is not None and least < first:
            raise ValueError(f"{job.where}: node {least} is before `first`, which is {first}")
        if first is not None and most - first >= MOST_TASKS:
            raise ValueError(f"{job.where}: node {most} is device {most - first}, and at most {MOST_TASKS} are read")
        tasks += iterations * sum(2 * (len(ring) - 1) * (len(ring) + 1) for ring in job.rings)
        if tasks > MOST_TASKS:
            raise ValueError(
                f"{job.where}: {iterations} iterations of the jobs up to this one are more than {MOST_TASKS} tasks"
            )
    nodes_of = [sorted({node for ring in job.rings for node in ring}) for job in jobs]
    nodes = sorted({node for own in nodes_of for node in own})
    devices = len(nodes) if first is None else nodes[-1] - first + 1
    device = {node: place if first is None else node - first for place, node in enumerate(nodes)}
    graph = TaskGraph(devices)
    if len(jobs) > 1 and sum(map(len, nodes_of)) == len(nodes):  # no two of them share a node
        names = [job.name if _NAME.fullmatch(job.name) else f"job{n}" for n, job in enumerate(jobs, start=1)]
        graph.jobs = {name: [device[node] for node in own] for name, own in zip(names, nodes_of, strict=True)}
    for number, job in enumerate(jobs):
        begin = graph.join((), job.name, delay_s=job.start_s)
        for iteration in range(iterations):
            ends = []
            for ring in job.rings:
                members = [device[node] for node in ring]
                gate = begin
                for _ in range(2 * (len(members) - 1)):
                    sent = [
                        graph.send(src, dst, job.hop_bytes, [gate])
                        for src, dst in zip(members, members[1:] + members[:1], strict=True)
                    ]
                    gate = graph.join(sent)
                ends.append(gate)
            begun, begin = begin, graph.join(ends, job.name)
            graph.phases.append(Phase(number, begun, begin))
            if iteration + 1 < iterations:
                engines = [device[node] for node in nodes_of[number]]
                begin = graph.join([graph.compute(engine, job.compute_s, [begin]) for engine in engines])
    return graph
