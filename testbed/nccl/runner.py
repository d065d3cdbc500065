# SPDX-License-Identifier: Apache-2.0
"""A run: ranks for each transport, every collective at every size over each, and a check of NCCL's logs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from testbed.errors import TestbedError
from testbed.nccl import environment, machine, netlog, sizes
from testbed.nccl.collectives import fit
from testbed.nccl.probe import Found
from testbed.nccl.ranks import Ranks
from testbed.nccl.results import Case, Results

_REPETITION_S = 0.1
"""Target duration of a repetition over the slower transport."""

_MOST_ITERATIONS = 200

_JOIN_S = 120.0
"""Timeout of joining: the first communicator of a process loads NCCL's kernels, some hundred MB."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. The first transport is compared with the second."""

    transports: tuple[str, ...]
    ranks: int
    gpus: int
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    repetitions: int
    nccl: Path
    cudart: Path
    plugin: Path | None
    interface: str
    log_dir: Path
    timeout_s: float
    mps: bool


def run(
    plan: Plan,
    found: Found,
    inherited: Mapping[str, str],
    say: Callable[[str], None],
    save: Callable[[Results], None],
) -> Results:
    """Carry out a plan. `say` is told of progress, `save` gets the results so far after each collective.

    Raises TestbedError when a rank fails, a result is wrong, or the traffic went another way than over its transport.
    """
    with ExitStack() as open_ranks:
        groups = {name: open_ranks.enter_context(_start(plan, name, inherited)) for name in plan.transports}
        results = Results(
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine.this(),
            found=found,
            ranks=plan.ranks,
            gpus=plan.gpus,
            mps=plan.mps,
            repetitions=plan.repetitions,
            transports=plan.transports,
            environment={name: environment.chosen(_environment(plan, name, 0, inherited)) for name in plan.transports},
        )
        for name, ranks in groups.items():
            say(f"{plan.ranks} ranks join over {name}")
            _join(ranks)
        for collective in plan.collectives:
            cases = []
            for size in sorted({fit(size, plan.ranks) for size in plan.sizes}):
                case = _measure(plan, groups, collective, size)
                say(_told(case))
                cases.append(case)
            logs = _logs(plan)
            _check(plan, logs)
            results = replace(
                results, cases=(*results.cases, *cases), routes=_routes(plan, logs), banners=_banners(plan, logs)
            )
            save(results)
        for ranks in groups.values():
            ranks.ask_all({"op": "leave"}, _JOIN_S)
    results = replace(results, complete=True)
    save(results)
    return results


def _start(plan: Plan, transport: str, inherited: Mapping[str, str]) -> Ranks:
    numbers = range(plan.ranks)
    argvs = [[str(plan.nccl), str(plan.cudart), str(number % plan.gpus)] for number in numbers]
    return Ranks(
        transport, argvs, [_environment(plan, transport, number, inherited) for number in numbers], plan.log_dir
    )


def _environment(plan: Plan, transport: str, rank: int, inherited: Mapping[str, str]) -> dict[str, str]:
    return environment.of_rank(
        inherited, transport, rank, plan.plugin, plan.interface, nccl_log(plan.log_dir, transport, rank)
    )


def nccl_log(log_dir: Path, transport: str, rank: int) -> Path:
    """The file with NCCL's log of a rank."""
    return log_dir / f"{transport}-rank{rank}.nccl.log"


def _join(ranks: Ranks) -> None:
    unique_id = ranks.ask({0: {"op": "unique_id"}}, _JOIN_S)[0]["unique_id"]
    commands = {
        rank: {"op": "join", "unique_id": unique_id, "rank": rank, "ranks": len(ranks)} for rank in range(len(ranks))
    }
    ranks.ask(commands, _JOIN_S)


def _measure(plan: Plan, groups: Mapping[str, Ranks], collective: str, size: int) -> Case:
    def once(transport: str, iterations: int) -> float:
        command = {"op": "measure", "collective": collective, "size": size, "iterations": iterations}
        answers = groups[transport].ask_all(command, plan.timeout_s)
        return max(float(answer["seconds"]) for answer in answers.values())

    # The first operation is the slowest (connections, caches). The second determines the iterations of a repetition.
    slowest = max(min(once(transport, 1), once(transport, 1)) for transport in plan.transports)
    iterations = max(1, min(_MOST_ITERATIONS, int(_REPETITION_S / max(slowest, 1e-9))))
    seconds: dict[str, list[float]] = {transport: [] for transport in plan.transports}
    for repetition in range(plan.repetitions):
        order: Sequence[str] = plan.transports if repetition % 2 == 0 else plan.transports[::-1]
        for transport in order:
            seconds[transport].append(once(transport, iterations))
    return Case(collective, size, iterations, {name: tuple(values) for name, values in seconds.items()})


def _told(case: Case) -> str:
    times = ", ".join(f"{name} {median(values) * 1e6:,.1f} us" for name, values in case.seconds.items())
    return f"{case.collective} {sizes.text(case.bytes)}: {times}"


def _logs(plan: Plan) -> dict[str, list[str]]:
    """NCCL's logs so far, by transport and rank."""
    try:
        return {
            name: [nccl_log(plan.log_dir, name, rank).read_text(errors="replace") for rank in range(plan.ranks)]
            for name in plan.transports
        }
    except OSError as error:
        raise TestbedError(f"NCCL has left no log: {error}") from error


def _check(plan: Plan, logs: Mapping[str, Sequence[str]]) -> None:
    """Raises TestbedError unless the logs show that all ranks used their transport and no other."""
    for transport, texts in logs.items():
        for rank, text in enumerate(texts):
            fault = netlog.fault(text, transport)
            if fault:
                raise TestbedError(
                    f"rank {rank} over {transport}: {fault}; the log is {nccl_log(plan.log_dir, transport, rank)}"
                )


def _routes(plan: Plan, logs: Mapping[str, Sequence[str]]) -> dict[str, dict[str, int]]:
    return {name: dict(sum((netlog.routes(text) for text in logs[name]), Counter())) for name in plan.transports}


def _banners(plan: Plan, logs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    said = {name: netlog.banner(logs[name][0], name) for name in plan.transports}
    return {name: banner for name, banner in said.items() if banner}
