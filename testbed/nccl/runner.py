# SPDX-License-Identifier: Apache-2.0
"""A run: ranks for each transport, every operation at every size over each, and a check of NCCL's logs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.machine import this_machine
from testbed.nccl import cores, environment, netlog, sizes
from testbed.nccl.collectives import COLLECTIVES, Operation, fit
from testbed.nccl.devices import Libraries
from testbed.nccl.elements import COPY, TYPES
from testbed.nccl.probe import Found
from testbed.nccl.ranks import Answer, Ranks
from testbed.nccl.results import Case, Results, Setup, Timing

_REPETITION_S = 0.1
"""Target duration of a repetition over the slower transport."""

_MOST_ITERATIONS = 200

JOIN_S = 120.0
"""Timeout of joining: the first communicator of a process loads NCCL's kernels, some hundred MB."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of measurements. Every transport is compared with the last."""

    libraries: Libraries
    transports: tuple[str, ...]
    ranks: int
    gpus: int
    setups: tuple[Setup, ...]
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    types: tuple[str, ...]
    redops: tuple[str, ...]
    in_place: bool
    """Measure in place too, where a collective can be."""
    repetitions: int
    plugin: Path | None
    interface: str
    log_dir: Path
    timeout_s: float
    mps: bool
    cores_per_rank: int | None = None
    """Cores of its own that each rank has. None: all share all cores."""

    def operations(self, setup: Setup) -> list[list[Operation]]:
        """The operations under `setup`, a list per collective. NCCL's trees are for all-reduce only."""
        return [
            [
                Operation(COLLECTIVES[name], element, redop, self.ranks, size // element.width)
                for element in (TYPES[each] for each in self.types)
                for redop in (self.redops if COLLECTIVES[name].reduces else (COPY,))
                for size in sorted({fit(size, self.ranks, element) for size in self.sizes})
            ]
            for name in self.collectives
            if setup.algorithm != "Tree" or name == "all_reduce"
        ]


def run(
    plan: Plan,
    found: Found,
    inherited: Mapping[str, str],
    say: Callable[[str], None],
    save: Callable[[Results], None],
) -> Results:
    """Carry out a plan. `say` gets progress messages, `save` the results so far after each collective.

    Raises TestbedError when a rank fails or the traffic did not use its transport. Wrong elements are counted in the
    results.
    """
    results = Results(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=this_machine(),
        found=found,
        ranks=plan.ranks,
        gpus=plan.gpus,
        mps=plan.mps,
        repetitions=plan.repetitions,
        transports=plan.transports,
        cores_per_rank=plan.cores_per_rank,
        environment={
            name: environment.chosen(_environment(plan, Setup(), name, 0, inherited)) for name in plan.transports
        },
    )
    for setup in plan.setups:
        results = _run(plan, setup, results, inherited, say, save)
    results = replace(results, complete=True)
    save(results)
    return results


def _run(
    plan: Plan,
    setup: Setup,
    results: Results,
    inherited: Mapping[str, str],
    say: Callable[[str], None],
    save: Callable[[Results], None],
) -> Results:
    """All operations under one setup, by processes of their own, added to `results`."""
    with ExitStack() as open_ranks:
        groups = {name: open_ranks.enter_context(_start(plan, setup, name, inherited)) for name in plan.transports}
        for name, ranks in groups.items():
            say(f"{plan.ranks} ranks join over {name}{f' ({setup})' if str(setup) else ''}")
            join(ranks)
        before = {name: Counter(routes) for name, routes in results.routes.items()}
        for operations in plan.operations(setup):
            cases = []
            for operation in operations:
                places = (False, True) if plan.in_place and operation.kind.placement is not None else (False,)
                for in_place in places:
                    cases.append(_measure(plan, setup, groups, operation, in_place=in_place, say=say))
            logs = _logs(plan, setup)
            _check(plan, setup, logs)
            results = replace(
                results,
                cases=(*results.cases, *cases),
                routes={name: dict(before.get(name, Counter()) + _routes(logs[name])) for name in plan.transports},
                interfaces=_said(logs, netlog.interface),
                banners=_said(logs, netlog.banner),
            )
            save(results)
        for ranks in groups.values():
            ranks.ask_all({"op": "leave"}, JOIN_S)
    return results


def _start(plan: Plan, setup: Setup, transport: str, inherited: Mapping[str, str]) -> Ranks:
    numbers = range(plan.ranks)
    return Ranks(
        _name(setup, transport),
        [[*plan.libraries.words(), str(number % max(1, plan.gpus))] for number in numbers],
        [_environment(plan, setup, transport, number, inherited) for number in numbers],
        plan.log_dir,
        cores=None if plan.cores_per_rank is None else cores.cores_of(plan.ranks, plan.cores_per_rank),
    )


def _environment(plan: Plan, setup: Setup, transport: str, rank: int, inherited: Mapping[str, str]) -> dict[str, str]:
    log = nccl_log(plan.log_dir, setup, transport, rank)
    return environment.of_rank(inherited, transport, rank, plan.plugin, plan.interface, log, setup)


def _name(setup: Setup, transport: str) -> str:
    """The ranks over a transport under a setup, in messages and names of logs: `paralet`, `paralet-Ring-Simple`."""
    transport = environment.file_name(transport)
    return "-".join([transport, *str(setup).split(", ")]) if str(setup) else transport


def nccl_log(log_dir: Path, setup: Setup, transport: str, rank: int) -> Path:
    """The file with NCCL's log of a rank."""
    return log_dir / f"{_name(setup, transport)}-rank{rank}.nccl.log"


def join(ranks: Ranks) -> None:
    """Let all ranks join one communicator."""
    unique_id = ranks.ask({0: {"op": "unique_id"}}, JOIN_S)[0]["unique_id"]
    commands = {
        rank: {"op": "join", "unique_id": unique_id, "rank": rank, "ranks": len(ranks)} for rank in range(len(ranks))
    }
    ranks.ask(commands, JOIN_S)


def _measure(
    plan: Plan,
    setup: Setup,
    groups: Mapping[str, Ranks],
    operation: Operation,
    *,
    in_place: bool,
    say: Callable[[str], None],
) -> Case:
    wrong = dict.fromkeys(plan.transports, 0)

    def once(transport: str, iterations: int) -> list[float]:
        """Seconds of each operation, of the slowest rank."""
        command: dict[str, Any] = {
            "op": "measure",
            "collective": operation.kind.name,
            "size": operation.size,
            "element": operation.element.name,
            "redop": operation.redop,
            "in_place": in_place,
            "iterations": iterations,
        }
        answers = groups[transport].ask_all(command, plan.timeout_s)
        wrong[transport] += sum(answer["wrong"] for answer in answers.values())
        for sentence in wrong_sentences(transport, answers):
            say(sentence)
        return [max(each) for each in zip(*(answer["seconds"] for answer in answers.values()), strict=True)]

    # The first operation is the slowest (connections, caches). The second determines the iterations of a repetition.
    slowest = max(min(once(transport, 1) + once(transport, 1)) for transport in plan.transports)
    iterations = max(1, min(_MOST_ITERATIONS, int(_REPETITION_S / 2 / max(slowest, 1e-9))))
    seconds: dict[str, list[list[float]]] = {transport: [] for transport in plan.transports}
    for _ in range(plan.repetitions):
        # In one order and back: what a transport gains or loses by its place, it loses or gains on the way back.
        there = [(transport, once(transport, iterations)) for transport in plan.transports]
        back = [(transport, once(transport, iterations)) for transport in plan.transports[::-1]]
        for (transport, first), (_, second) in zip(there, back[::-1], strict=True):
            seconds[transport].append(first + second)
    timings = {
        name: Timing(
            repetitions_s=tuple(sum(each) / len(each) for each in repetitions),
            operations_s=tuple(operation_s for each in repetitions for operation_s in each),
            wrong=wrong[name],
        )
        for name, repetitions in seconds.items()
    }
    place = ", in place" if in_place else ""
    times = ", ".join(f"{name} {timing.seconds * 1e6:,.1f} us" for name, timing in timings.items())
    reduction = "" if operation.redop == COPY else f" {operation.redop}"
    say(f"{operation.kind.name} {sizes.text(operation.size)} {operation.element.name}{reduction}{place}: {times}")
    return Case(setup, operation, in_place, timings)


def wrong_sentences(transport: str, answers: Mapping[int, Answer]) -> list[str]:
    """A sentence for every rank whose result is wrong."""
    return [
        f"rank {rank} over {transport}: {answer['sentence']}" for rank, answer in answers.items() if answer["wrong"]
    ]


def _logs(plan: Plan, setup: Setup) -> dict[str, list[str]]:
    """NCCL's logs so far, by transport and rank."""
    try:
        return {
            name: [nccl_log(plan.log_dir, setup, name, rank).read_text(errors="replace") for rank in range(plan.ranks)]
            for name in plan.transports
        }
    except OSError as error:
        raise TestbedError(f"NCCL has left no log: {error}") from error


def _check(plan: Plan, setup: Setup, logs: Mapping[str, Sequence[str]]) -> None:
    """Raises TestbedError unless the logs show that all ranks used their transport and no other."""
    for transport, texts in logs.items():
        for rank, text in enumerate(texts):
            fault = netlog.fault(text, environment.named(transport).net)
            if fault:
                log = nccl_log(plan.log_dir, setup, transport, rank)
                raise TestbedError(f"rank {rank} over {transport}: {fault}; the log is {log}")


def _routes(texts: Sequence[str]) -> Counter[str]:
    return sum((netlog.routes(text) for text in texts), Counter())


def _said(logs: Mapping[str, Sequence[str]], find: Callable[[str, str], str | None]) -> dict[str, str]:
    """By transport: what `find` finds in the log of rank 0."""
    said = {name: find(texts[0], environment.named(name).net) for name, texts in logs.items()}
    return {name: text for name, text in said.items() if text}
