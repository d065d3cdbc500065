# SPDX-License-Identifier: Apache-2.0
"""Workloads of SimAI, as AICB writes them: one iteration of a rank as text, layer by layer.

The format and its meaning are those of `astra-sim/workload/Workload.cc` of github.com/aliyun/SimAI. The first line has
the kind of parallelism and `key: value` pairs, the second the number of layers. A layer has a name, a field that is not
used, and for the forward pass, the input's gradient and the weights' gradient the computing time in nanoseconds, a
collective and its bytes; then the time of the weights' update.

All ranks do the same. The forward pass goes through the layers, the backward pass back. Collectives of the forward
pass and of inputs' gradients hold up their members; those of weights' gradients do not. Updates, which only a further
iteration waits for, are left out.

With `pp` stages the file has the layers of one stage, as often as there are microbatches (`ga`), each time from an
`embedding_layer` on, between layers that a stage does once. SimAI's simulation of packets takes all GPUs as one stage,
and its analysis adds times of a pipeline. Here stages are consecutive ranks, each does all the layers, and they pass on
`pp_comm` bytes per microbatch and rank, in the schedule 1F1B. What comes after the microbatches is done after their
backward passes. `vpp` is the number of layers in files of AICB, so it is not used.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.traces.collectives import Operation, add_collective
from testbed.traces.files import LONGEST_S, MOST_TASKS, text_of, whole
from testbed.training.schedule import passes
from testbed.training.strategies import Strategy
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
_FIRST_OF_BATCH = "embedding_layer"

Groups = list[list[int]]
Pass = tuple[float, Operation | None, int, str]
"""Seconds of computing, then a collective, its bytes, and the name of its groups."""


class Layer(NamedTuple):
    """A line of the file."""

    name: str
    forward: Pass
    gradient: Pass
    """Of its input."""
    weights: Pass
    """Their gradient."""


def read_simai(path: Path, ranks: int) -> TaskGraph:
    """A workload as a task graph of all its GPUs; of `ranks` where the file does not say how many.

    Raises ValueError, one sentence with file and line, for a bad file and for what a task graph cannot say.
    """
    lines = text_of(path).splitlines()
    if len(lines) < 2:
        raise ValueError(f"{path}:1: needs a line with the parallelism and one with the number of layers")
    header = _header(lines[0], path)
    stages, batches = max(1, header.get("pp", 1)), header.get("ga", 1)
    groups = _groups(header, ranks, path)
    count = whole(lines[1].strip(), "the number of layers", f"{path}:2", 1)
    devices = sum(map(len, groups["TP"]))
    if (6 * count + (8 * batches if stages > 1 else 0)) * devices * stages > MOST_TASKS:
        raise ValueError(f"{path}:2: {count} layers on {devices * stages} GPUs are more than {MOST_TASKS} tasks")
    layers: list[Layer] = []
    for number, line in enumerate(lines[2:], start=3):
        if words := line.split():
            if len(layers) == count:
                raise ValueError(f"{path}:{number}: line 2 says {count} layers, and this is one more")
            layers.append(_layer(words, f"{path}:{number}"))
    if len(layers) < count:
        raise ValueError(f"{path}:2: the number of layers is {count}, and the file has {len(layers)}")
    if stages == 1:
        iteration = _Iteration(devices)
        iteration.add(_forward(layers), groups)
        iteration.add(_backward(layers), groups)
        return iteration.graph
    return _pipeline(*_cut(layers, batches, path), groups, stages, header["pp_comm"])


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
        # AICB divides these bytes by the size of a tensor group, so that they are written like 3145728.0.
        digits = value.partition(".") if name == "pp_comm" else (value, "", "")
        found[name] = whole(digits[0], name, f"{path}:1")
        if digits[1] and not (digits[2].isascii() and digits[2].isdigit()):
            raise ValueError(f"{path}:1: {name} must be a number, not {value[:40]!r}")
    for name in ("checkpoints", "checkpoint_initiates"):
        if found.get(name):
            raise ValueError(f"{path}:1: {name} of layers, which recompute their forward pass, are not read")
    if found.get("pp", 1) > 1:
        for name in ("ga", "pp_comm"):
            if not found.get(name):
                raise ValueError(f"{path}:1: pp is {found['pp']}, so {name} is needed, above 0")
    return found


def _groups(header: dict[str, int], ranks: int, path: Path) -> dict[str, Groups]:
    """The groups of tensor, data and expert parallelism of the first stage, as SimAI forms them.

    Tensor groups are of consecutive ranks.
    """
    tensor, expert = max(1, header.get("model_parallel_NPU_group", 1)), max(1, header.get("ep", 1))
    devices, stages = header.get("all_gpus") or ranks, max(1, header.get("pp", 1))
    if devices % (tensor * expert * stages) or devices > MOST_TASKS:
        times = f"{tensor} (tensor) times {expert} (expert)" + (f" times {stages} (pp)" if stages > 1 else "")
        raise ValueError(f"{path}:1: {devices} GPUs are not a multiple of {times}")
    blocks = devices // (tensor * expert * stages)

    def rank(part: int, member: int, block: int) -> int:
        return part + tensor * (member + expert * block)

    parts, members, copies = range(tensor), range(expert), range(blocks)
    return {
        "TP": [[rank(t, e, b) for t in parts] for b in copies for e in members],
        "DP": [[rank(t, e, b) for b in copies for e in members] for t in parts],
        "EP": [[rank(t, e, b) for e in members] for b in copies for t in parts],
        "DP_EP": [[rank(t, e, b) for b in copies] for e in members for t in parts],
    }


def _layer(words: list[str], where: str) -> Layer:
    if len(words) != _WORDS:
        raise ValueError(f"{where}: a layer has {_WORDS} words, not {len(words)}")
    whole(words[11], "the time of the update", where)
    return Layer(
        words[0], _pass(words[2:5], "TP", where), _pass(words[5:8], "TP", where), _pass(words[8:11], "DP", where)
    )


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


def _cut(layers: list[Layer], batches: int, path: Path) -> tuple[list[Layer], list[list[Layer]], list[Layer]]:
    """The layers before the microbatches, those of each, and those after them."""
    begins = [number for number, layer in enumerate(layers) if layer.name == _FIRST_OF_BATCH]
    size = begins[1] - begins[0] if len(begins) > 1 else len(layers) - sum(begins)
    if len(begins) != batches or begins != [begins[0] + size * batch for batch in range(batches)]:
        raise ValueError(
            f"{path}:1: ga is {batches}, and the file does not have as many runs of layers of one length, each from an "
            f"{_FIRST_OF_BATCH} on"
        )
    end = begins[-1] + size
    if end > len(layers):
        raise ValueError(
            f"{path}:{begins[-1] + 3}: this microbatch has fewer layers than the others, which have {size}"
        )
    return layers[: begins[0]], [layers[begin : begin + size] for begin in begins], layers[end:]


class _Iteration:
    """A graph in which devices do passes one after the other."""

    def __init__(self, devices: int) -> None:
        self.graph = TaskGraph(devices)
        self.before: list[list[int]] = [[] for _ in range(devices)]
        """By device: the tasks that its next one waits for."""

    def add(self, steps: Iterable[tuple[Pass, bool]], groups: dict[str, Groups]) -> None:
        """What the members of the groups do in turn, and whether the collective of each pass holds them up."""
        graph, before = self.graph, self.before
        devices = [device for members in groups["TP"] for device in members]
        for (seconds, what, size, group), blocking in steps:
            for device in devices if seconds else ():
                before[device] = [graph.compute(device, seconds, before[device])]
            if what is None or not size:
                continue
            for members in groups[group]:
                if len(members) > 1:
                    first, last = add_collective(graph, what, size, members)
                    for earlier in sorted({earlier for member in members for earlier in before[member]}):
                        graph.wait(earlier, first)
                    for member in members if blocking else ():
                        before[member] = [last]

    def gates(self, devices: Sequence[int]) -> list[int]:
        """A task of each device, which its next one waits for."""
        for device in devices:
            self.before[device] = [self.graph.join(self.before[device])]
        return [self.before[device][0] for device in devices]


def _forward(layers: Sequence[Layer]) -> Iterator[tuple[Pass, bool]]:
    """What every rank does in turn, and whether its collective holds it up."""
    for layer in layers:
        yield layer.forward, True


def _backward(layers: Sequence[Layer]) -> Iterator[tuple[Pass, bool]]:
    """As `_forward`, back through the layers."""
    for layer in reversed(layers):
        yield layer.gradient, True
        yield layer.weights, False


def _pipeline(
    head: list[Layer],
    batches: list[list[Layer]],
    tail: list[Layer],
    groups: dict[str, Groups],
    stages: int,
    size: int,
) -> TaskGraph:
    """An iteration of all stages. `groups` are those of the first one; between stages a rank sends `size` bytes."""
    per_stage = sum(map(len, groups["TP"]))
    iteration = _Iteration(per_stage * stages)
    strategy = Strategy(pipeline=stages, microbatches=len(batches))
    begins: dict[tuple[int, bool, int], list[int]] = {}  # by stage, whether backward, and microbatch: of each rank
    ends: dict[tuple[int, bool, int], list[int]] = {}
    for stage in range(stages):
        first = stage * per_stage
        ranks = range(first, first + per_stage)
        own = {name: [[first + member for member in members] for members in some] for name, some in groups.items()}
        iteration.add(_forward(head), own)
        for step in passes(strategy, stage):
            layers = batches[step.microbatch]
            begins[stage, step.backward, step.microbatch] = iteration.gates(ranks)
            iteration.add(_backward(layers) if step.backward else _forward(layers), own)
            ends[stage, step.backward, step.microbatch] = iteration.gates(ranks)
        iteration.add(_forward(tail), own)
        iteration.add(_backward(tail), own)
        iteration.add(_backward(head), own)
    for (stage, backward, batch), done in ends.items():
        following = stage + (-1 if backward else 1)
        if 0 <= following < stages:
            for place, begin in enumerate(begins[following, backward, batch]):
                src, dst = stage * per_stage + place, following * per_stage + place
                iteration.graph.wait(iteration.graph.send(src, dst, size, [done[place]]), begin)
    return iteration.graph
