# SPDX-License-Identifier: Apache-2.0
"""Connection matrices of htsim (.cm) as task graphs, and task graphs as connection matrices.

The format is that of `sim/datacenter/connection_matrix.cpp` and `sim/trigger.h` of github.com/Broadcom/csg-htsim. A
line is a flow, `SRC->DST id N size BYTES`, which starts at `start PICOSECONDS` or by `trigger N`, and which at its end
activates `send_done_trigger` or `recv_done_trigger`; or a trigger, `trigger id N` with `oneshot`, `multishot` or
`barrier count N`. A task graph has one end of a transfer, so both kinds of done are the same. Only `send_done_trigger`
is written: htsim reads the other one, but none of its receivers activates it (commit 841d9e7). Nor does it use
`addon`, a key without a value.

The k-th activation of a multishot trigger starts the k-th of its flows. Here that is the end of the k-th flow that
activates it in the order of the file; in htsim it is the k-th flow that ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from testbed.traces.files import MOST_TASKS
from testbed.training.tasks import TaskGraph

_PICOSECOND = 1e-12
_FLOW_KEYS = ("start", "size", "id", "trigger", "send_done_trigger", "recv_done_trigger", "prio")
_FLOW_FLAGS = ("addon",)
_NO_FAILURES = "a task graph has no failed links; remove them, and cut the links of the topology"
_SHOTS = ("oneshot", "multishot", "barrier")
_MOST_BYTES = 2**31 - 1
"""The largest size that htsim reads: `stoi` of a 32-bit integer."""


@dataclass(slots=True)
class _Trigger:
    line: int
    shot: str = ""
    count: int = 0
    activators: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


class _Reader:
    """Reads one file; every error names the file and the line."""

    def __init__(self, text: str, file: str) -> None:
        self.file, self.line = file, 0
        self.lines = text.splitlines()
        self.declared: dict[str, tuple[int, int]] = {}
        self.triggers: dict[int, _Trigger] = {}
        self.graph = TaskGraph(0)
        self.ids: dict[int, int] = {}

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.file}:{self.line}: {what}")

    def number(self, text: str, what: str, least: int = 0) -> int:
        try:
            value = float(text)
        except ValueError:
            raise self.fail(f"{what} must be a number, not {text!r}") from None
        if not least <= value < 2**63:
            raise self.fail(f"{what} must be {least} or more, not {text}")
        return int(value)

    def read(self) -> TaskGraph:
        counted = {"Connections": 0, "Triggers": 0}
        for number, text in enumerate(self.lines, start=1):
            self.line = number
            words = text.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] in ("Nodes", "Connections", "Triggers", "Failures"):
                self.header(words)
            elif words[0] == "trigger":
                counted["Triggers"] += 1
                self.trigger(words)
            elif words[0] == "failure":
                raise self.fail(_NO_FAILURES)
            elif "->" in words[0]:
                counted["Connections"] += 1
                self.flow(words)
            else:
                raise self.fail(f"{words[0]!r} begins neither a header, a flow nor a trigger")
        if "Nodes" not in self.declared:
            self.line = 1
            raise self.fail("has no line with Nodes and their number")
        for what, count in counted.items():
            said, line = self.declared.get(what, (0, 1))
            if said != count:
                self.line = line
                raise self.fail(f"{what} is {said}, and the file has {count}")
        self.connect()
        return self.graph

    def header(self, words: list[str]) -> None:
        if len(words) < 2:
            raise self.fail(f"{words[0]} needs a number")
        value = self.number(words[1], words[0])
        self.declared[words[0]] = value, self.line
        if words[0] == "Nodes":
            if not 1 <= value <= MOST_TASKS:
                raise self.fail(f"Nodes must be 1 to {MOST_TASKS}, not {value}")
            self.graph.devices = value
        if words[0] == "Failures" and value:
            raise self.fail(_NO_FAILURES)

    def pairs(self, words: list[str], flags: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        rest = iter(words)
        for word in rest:
            if word in flags:
                yield word, ""
                continue
            value = next(rest, None)
            if value is None:
                raise self.fail(f"{word} needs a value")
            yield word, value

    def flow(self, words: list[str]) -> None:
        if "Nodes" not in self.declared:
            raise self.fail("Nodes and their number must come before flows")
        if len(self.graph.tasks) == MOST_TASKS:
            raise self.fail(f"this flow is one more than the {MOST_TASKS} that are read")
        source, _, destination = words[0].partition("->")
        ends = self.number(source, "a sender"), self.number(destination, "a receiver")
        values: dict[str, int] = {}
        for key, text in self.pairs(words[1:], _FLOW_FLAGS):
            if key in _FLOW_FLAGS:
                continue
            if key not in _FLOW_KEYS:
                known = ", ".join((*_FLOW_KEYS, *_FLOW_FLAGS))
                raise self.fail(f"{key!r} is not a key of a flow; known are {known}")
            values[key] = self.number(text, key, 1 if key in ("id", "size", "trigger") else 0)
        if "size" not in values:
            raise self.fail("a flow needs a size; a task graph has no endless ones")
        if ("start" in values) == ("trigger" in values):
            raise self.fail("a flow needs either a start or a trigger")
        try:
            number = self.graph.send(
                *ends, values["size"], delay_s=values.get("start", 0) * _PICOSECOND, name=str(values.get("id", ""))
            )
        except ValueError as error:
            raise self.fail(str(error)) from None
        if (name := values.get("id")) is not None:
            if name in self.ids:
                raise self.fail(f"flow id {name} is that of line {self.ids[name]} too")
            self.ids[name] = self.line
        if "trigger" in values:
            self.known(values["trigger"]).targets.append(number)
        for done in {values[key] for key in ("send_done_trigger", "recv_done_trigger") if values.get(key)}:
            self.known(done).activators.append(number)

    def known(self, number: int) -> _Trigger:
        return self.triggers.setdefault(number, _Trigger(self.line))

    def trigger(self, words: list[str]) -> None:
        values = dict(self.pairs(words[1:], _SHOTS))
        unknown = values.keys() - {"id", "count", *_SHOTS}
        shots = [shot for shot in _SHOTS if shot in values]
        if unknown or len(shots) != 1 or "id" not in values:
            raise self.fail(f"a trigger has an id and one of {', '.join(_SHOTS)}")
        found = self.known(self.number(values["id"], "a trigger's id", 1))
        if found.shot:
            raise self.fail(f"trigger {values['id']} is that of line {found.line} too")
        found.shot, found.line = shots[0], self.line
        if found.shot == "barrier":
            found.count = self.number(values.get("count", ""), "a barrier's count", 1)

    def connect(self) -> None:
        for number, trigger in self.triggers.items():
            self.line = trigger.line
            if not trigger.shot:
                raise self.fail(f"trigger {number} is used, but not defined")
            flows, activators = len(trigger.targets), len(trigger.activators)
            if trigger.shot == "multishot":
                if activators < flows:
                    raise self.fail(
                        f"trigger {number} starts its {flows} flows one by one, and {activators} flows activate it"
                    )
                for earlier, target in zip(trigger.activators, trigger.targets, strict=False):
                    if earlier == target:
                        raise self.fail(f"trigger {number} would let a flow wait for itself; write its flows in order")
                    self.graph.wait(earlier, target)
                continue
            wanted = trigger.count if trigger.shot == "barrier" else 1
            if flows and activators != wanted:
                raise self.fail(f"trigger {number} needs {wanted} activations, and {activators} flows have it")
            last = (
                self.graph.join(trigger.activators) if min(len(trigger.activators), len(trigger.targets)) > 1 else None
            )
            for target in trigger.targets:
                for earlier in trigger.activators if last is None else [last]:
                    self.graph.wait(earlier, target)


def read_connections(text: str, file: str = "<text>") -> TaskGraph:
    """A connection matrix as a task graph: a transfer for each flow, and joins for triggers that wait for several.

    Raises ValueError, one sentence with file and line, for a bad file and for what a task graph cannot say.
    """
    return _Reader(text, file).read()


def write_connections(graph: TaskGraph) -> str:
    """A graph of transfers and joins as a connection matrix. Flow ids are the transfers' numbers in the file, from 1.

    Raises ValueError for computing, collectives and delays after other tasks, which htsim lacks, for a transfer that
    two triggers would need, because a flow activates one at its end, and for sizes that htsim cannot read.
    """
    flows = [number for number, task in enumerate(graph.tasks) if task.kind == "send"]
    ids = {number: place for place, number in enumerate(flows, start=1)}
    waits = _flattened(graph)
    triggers: dict[frozenset[int], int] = {}
    fired: dict[int, int] = {}
    for number in flows:
        if graph.tasks[number].bytes > _MOST_BYTES:
            raise ValueError(
                f"task {number} sends {graph.tasks[number].bytes:.0f} bytes, and htsim reads at most {_MOST_BYTES}; "
                "make the workload smaller"
            )
        if not waits[number]:
            continue
        if graph.tasks[number].delay_s:
            raise ValueError(f"task {number} starts later than the tasks before it end, which htsim has no way to say")
        trigger = triggers.setdefault(waits[number], len(triggers) + 1)
        for earlier in waits[number]:
            if fired.setdefault(earlier, trigger) != trigger:
                raise ValueError(f"task {earlier} would activate two triggers; htsim's flows activate one")
    lines = [f"Nodes {graph.devices}", f"Connections {len(flows)}"]
    lines += [f"Triggers {len(triggers)}"] if triggers else []
    for number in flows:
        task = graph.tasks[number]
        begin = f"trigger {triggers[waits[number]]}" if waits[number] else f"start {round(task.delay_s / _PICOSECOND)}"
        done = f" send_done_trigger {fired[number]}" if number in fired else ""
        source, destination = task.devices
        size = max(1, round(task.bytes))  # htsim takes 0 for a flow without end
        lines.append(f"{source}->{destination} id {ids[number]} {begin} size {size}{done}")
    for activators, trigger in triggers.items():
        shot = "oneshot" if len(activators) == 1 else f"barrier count {len(activators)}"
        lines.append(f"trigger id {trigger} {shot}")
    return "\n".join(lines) + "\n"


def _flattened(graph: TaskGraph) -> dict[int, frozenset[int]]:
    """By task: the transfers that it waits for, through joins."""
    found: dict[int, frozenset[int]] = {}
    for number in graph.order():
        task = graph.tasks[number]
        if task.kind != "send" and (task.kind is not None or task.devices or task.delay_s):
            raise ValueError(f"task {number} is not a transfer; htsim has neither computing nor collectives")
        found[number] = frozenset(
            flow
            for earlier in graph.after[number]
            for flow in ([earlier] if graph.tasks[earlier].kind == "send" else found[earlier])
        )
    return found
