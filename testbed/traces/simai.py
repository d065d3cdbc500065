# SPDX-License-Identifier: Apache-2.0
"""Workloads of SimAI, as AICB writes them: one iteration of a rank as text, layer by layer.

The format and its meaning are those of `astra-sim/workload/Workload.cc` of github.com/aliyun/SimAI. The first line has
the kind of parallelism and `key: value` pairs, the second the number of layers. A layer has a name, a field that is not
used, and for the forward pass, the input's gradient and the weights' gradient the computing time in nanoseconds, a
collective and its bytes; then the time of the weights' update.

All ranks do the same. The forward pass goes through the layers, the backward pass back. Collectives of the forward
pass and of inputs' gradients hold up their members; those of weights' gradients do not. Updates, which only a further
iteration waits for, are left out.
"""

from collections.abc import Iterator
from pathlib import Path

from testbed.traces.collectives import Operation, add_collective
from testbed.traces.files import LONGEST_S, MOST_TASKS, text_of, whole
from testbed.training.tasks import TaskGraph

_NANOSECOND = 1e-9
_PARALLELISM = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER", "MICRO")
_OPERATIONS: dict[str, Operation] = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast",
}
_WORDS = 12  # of a layer's line

Groups = list[list[int]]
Pass = tuple[float, Operation | None, int, str]
"""Seconds of computing, then a collective, its bytes, and the name of its groups."""


def read_simai(path: Path, ranks: int) -> TaskGraph:
    """A workload as a task graph of all its GPUs; of `ranks` where the file does not say how many.

    Raises ValueError, one sentence with file and line, for a bad file and for what a task graph cannot say.
    """
    lines = text_of(path).splitlines()
    if len(lines) < 2:
        raise ValueError(f"{path}:1: needs a line with the parallelism and one with the number of layers")
    groups = _groups(_header(lines[0], path), ranks, path)
    count = whole(lines[1].strip(), "the number of layers", f"{path}:2", 1)
    devices = sum(map(len, groups["TP"]))
    if 6 * count * devices > MOST_TASKS:
        raise ValueError(f"{path}:2: {count} layers on {devices} GPUs are more than {MOST_TASKS} tasks")
    layers: list[tuple[Pass, Pass, Pass]] = []
    for number, line in enumerate(lines[2:], start=3):
        if words := line.split():
            if len(layers) == count:
                raise ValueError(f"{path}:{number}: line 2 says {count} layers, and this is one more")
            layers.append(_layer(words, f"{path}:{number}"))
    if len(layers) < count:
        raise ValueError(f"{path}:2: the number of layers is {count}, and the file has {len(layers)}")
    return _graph(layers, groups, devices)


def _header(line: str, path: Path) -> dict[str, int]:
    words = line.split()
    if not words or words[0] not in _PARALLELISM:
        raise ValueError(f"{path}:1: must begin with one of {', '.join(_PARALLELISM)}, not {''.join(words[:1])[:40]!r}")
    found: dict[str, int] = {}
    rest = iter(words[1:])
    for key in rest:
        name, value = key.removesuffix(":"), next(rest, "")
        if name in found:
            raise ValueError(f"{path}:1: {name} is given twice")
        found[name] = whole(value, name, f"{path}:1")
    for name in ("checkpoints", "checkpoint_initiates"):
        if found.get(name):
            raise ValueError(f"{path}:1: {name} of layers, which recompute their forward pass, are not read")
    if found.get("pp", 1) > 1:
        raise ValueError(f"{path}:1: pp is {found['pp']}; the file has one stage, and not when stages wait for others")
    return found


def _groups(header: dict[str, int], ranks: int, path: Path) -> dict[str, Groups]:
    """The groups of tensor, data and expert parallelism, as SimAI forms them: tensor groups of consecutive ranks."""
    tensor, expert = max(1, header.get("model_parallel_NPU_group", 1)), max(1, header.get("ep", 1))
    devices = header.get("all_gpus") or ranks
    if devices % (tensor * expert) or devices > MOST_TASKS:
        raise ValueError(f"{path}:1: {devices} GPUs are not a multiple of {tensor} (tensor) times {expert} (expert)")
    blocks = devices // (tensor * expert)

    def rank(part: int, member: int, block: int) -> int:
        return part + tensor * (member + expert * block)

    parts, members, copies = range(tensor), range(expert), range(blocks)
    return {
        "TP": [[rank(t, e, b) for t in parts] for b in copies for e in members],
        "DP": [[rank(t, e, b) for b in copies for e in members] for t in parts],
        "EP": [[rank(t, e, b) for e in members] for b in copies for t in parts],
        "DP_EP": [[rank(t, e, b) for b in copies] for e in members for t in parts],
    }


def _layer(words: list[str], where: str) -> tuple[Pass, Pass, Pass]:
    if len(words) != _WORDS:
        raise ValueError(f"{where}: a layer has {_WORDS} words, not {len(words)}")
    whole(words[11], "the time of the update", where)
    return _pass(words[2:5], "TP", where), _pass(words[5:8], "TP", where), _pass(words[8:11], "DP", where)


def _pass(words: list[str], default: str, where: str) -> Pass:
    seconds = whole(words[0], "a computing time", where, 0, int(LONGEST_S / _NANOSECOND)) * _NANOSECOND
    size = whole(words[2], "the bytes of a collective", where)
    if words[1] == "NONE":
        return seconds, None, 0, default
    name, _, group = words[1].partition("_")
    if name not in _OPERATIONS or group not in ("", "EP", "DP_EP"):
        known = ", ".join(_OPERATIONS)
        raise ValueError(f"{where}: {words[1][:40]!r} is not a collective; known are NONE, {known}, with _EP or _DP_EP")
    return seconds, _OPERATIONS[name], size, group or default


def _graph(layers: list[tuple[Pass, Pass, Pass]], groups: dict[str, Groups], devices: int) -> TaskGraph:
    graph = TaskGraph(devices)
    before: list[list[int]] = [[] for _ in range(devices)]
    for (seconds, what, size, group), blocking in _passes(layers):
        if seconds:
            before = [[graph.compute(device, seconds, after)] for device, after in enumerate(before)]
        if what is None or not size:
            continue
        for members in groups[group]:
            if len(members) > 1:
                first, last = add_collective(graph, what, size, members)
                for earlier in sorted({earlier for member in members for earlier in before[member]}):
                    graph.wait(earlier, first)
                for member in members if blocking else ():
                    before[member] = [last]
    return graph


def _passes(layers: list[tuple[Pass, Pass, Pass]]) -> Iterator[tuple[Pass, bool]]:
    """What every rank does in turn, and whether its collective holds it up."""
    for forward, _, _ in layers:
        yield forward, True
    for _, gradient, weights in reversed(layers):
        yield gradient, True
        yield weights, False
