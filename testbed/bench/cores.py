# SPDX-License-Identifier: Apache-2.0
"""How transports use the cores of a machine with 8 to 64 of them: pairs with cores of their own, and NCCL's ranks.

Pairs exchange messages of 1 MiB on loopback (`paralet-bench flow`): more and more pairs with a core per side, and one
pair with more and more cores. All-reduces of the real NCCL on the CPU device (`paralet nccl --cores-per-rank`) have 8 B
to 64 MiB. Every back end of the build stands beside TCP in NCCL's settings. The whole ends within `LIMIT_S`. The
result says what the machine or the time did not allow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from netmodel.printable import printable
from testbed.bench import flows
from testbed.bench.flows import Case
from testbed.bench.frame import Measurement, Result, result
from testbed.bench.transport import bench_program
from testbed.errors import InputError, TestbedError
from testbed.nccl import devices, sizes
from testbed.progress import Steps

LIMIT_S = 450.0
"""Seconds after which the benchmark ends, whatever it has measured."""

REPETITIONS = 3
SOCKETS = ("Socket:4x1", "Socket:2x8", "Socket:4x2", "Socket")
"""NCCL's Socket transport as at Google, as at Amazon, as many users set it, and by default."""

NCCL_SIZES = "8,64K,1M,4M,64M"
CORES = (1, 2, 4, 8)
"""Cores of a rank, and of a side of one pair."""
SHARDS = (1, 2, 4)
"""Shards of a device (docs/notes/sharding.md), on a core each at least."""

_PEERS = (flows.STREAM, flows.SOCKET[0], flows.SOCKET[3])
_LEAST_S = 30.0
"""A step does not begin when less time than this is left."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the benchmark. `run` gets the seconds that are left."""

    name: str
    run: Callable[[float], Iterator[Measurement]]


def measure() -> Result:
    """Run every step that the machine and the time allow, and say on standard error what was left out.

    Raises InputError when something is not built, TestbedError when a step fails.
    """
    program = bench_program()
    try:
        ours = flows.built_back_ends()
    except FileNotFoundError as error:
        raise InputError(str(error)) from error
    steps, left_out = plan(len(os.sched_getaffinity(0)), program, ours, nccl=bool(devices.installed()))
    with Steps(len(steps), every_s=3.0) as progress:
        measurements = carry_out(steps, left_out, LIMIT_S, progress.now, progress.advance)
    for sentence in left_out:
        print(printable(f"cores: left out: {sentence}"), file=sys.stderr)
    return result("cores", measurements)


def plan(cores: int, program: Path, ours: Sequence[str], *, nccl: bool) -> tuple[list[Step], list[str]]:
    """The steps on a machine with this many cores, and a sentence for everything that it does not allow. Pure."""
    steps = [Step("pairs", partial(_flows, program, pair_cases(cores), ours))]
    left_out = []
    if cores < 4:
        left_out.append(f"several pairs, and several cores for a side or a rank: they need 4 cores, there are {cores}")
        left_out.append("several shards of a device: they need 4 cores")
    for ranks in (2, 4):
        for each in CORES:
            if not nccl or ranks * each > cores:
                continue
            name = f"{ranks} ranks, {_cores(each)} each"
            steps.append(Step(name, partial(_nccl, name, ranks, each, with_shards(ours, each))))
    if not nccl:
        left_out.append("NCCL, which is not installed: `make nccl` installs it")
    elif cores < 4:
        left_out.append("4 ranks with a core each: they need 4 cores")
    if cores < 2:
        left_out.append("2 ranks with a core each: they need 2 cores")
    return steps, left_out


def pair_cases(cores: int) -> list[Case]:
    """One pair with more and more cores per side, with more and more shards on the most cores of these, then more and
    more pairs with a core per side, as far as the cores go. Pure."""
    widths = [each for each in CORES if 2 * each <= max(2, cores)]
    shards = [each for each in SHARDS if 1 < each <= widths[-1]]
    pairs = [1 << power for power in range(1, 7) if 2 << power <= cores]
    wide = f"1 MiB, 1 pair, {_cores(widths[-1])} a side"
    return [
        *(Case(f"1 MiB, 1 pair, {_cores(each)} a side", ("--cores", str(each))) for each in widths),
        *(Case(f"{wide}, {each} shards", ("--cores", str(widths[-1]), "--shards", str(each))) for each in shards),
        *(Case(f"1 MiB, {count} pairs, 1 core a side", ("--pairs", str(count)), count) for count in pairs),
    ]


def with_shards(ours: Sequence[str], cores: int) -> list[str]:
    """The back ends, and each with more and more shards as far as a rank's cores go, as `paralet nccl` names them."""
    more = [each for each in SHARDS if 1 < each <= cores]
    return [name for back_end in ours for name in (back_end, *(f"{back_end}:{each}" for each in more))]


def carry_out(
    steps: Sequence[Step],
    left_out: list[str],
    limit_s: float,
    now: Callable[[str], None],
    advance: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Measurement]:
    """The measurements of the steps. What the time does not allow is added to `left_out`.

    `now` and `advance` show progress.
    """
    end = clock() + limit_s
    out: list[Measurement] = []
    for step in steps:
        left_s = end - clock()
        if left_s < min(_LEAST_S, limit_s / 2):
            left_out.append(f"{step.name}: {limit_s:.0f} s are over")
            continue
        now(step.name)
        for measurement in step.run(left_s):
            out.append(measurement)
            if clock() > end:
                break
        if clock() > end:
            left_out.append(f"{step.name}, or a part of it: {limit_s:.0f} s are over")
        advance()
    return out


def _flows(program: Path, cases: Sequence[Case], ours: Sequence[str], _left_s: float) -> Iterator[Measurement]:
    for repetition in range(REPETITIONS):
        yield from flows.measurements(program, cases, ours, repetition, peers=_PEERS)


def _nccl(name: str, ranks: int, each: int, ours: Sequence[str], left_s: float) -> Iterator[Measurement]:
    """All-reduces of ranks with so many cores each. Raises TestbedError when they fail or an element is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--ranks", str(ranks), "--cores-per-rank", str(each), "--transports", ",".join([*ours, *SOCKETS])]
        options += ["--collectives", "all_reduce", "--sizes", NCCL_SIZES, "--repetitions", str(REPETITIONS)]
        argv = [sys.executable, "-m", "testbed.nccl", "--device", "cpu", *options, "--json", "--out", folder]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=left_s)
        except subprocess.TimeoutExpired:
            return
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise TestbedError(printable(f"{name}: {lines[-1] if lines else f'status {done.returncode}'}"))
        yield from nccl_measurements(name, json.loads(done.stdout), ours)


def nccl_measurements(name: str, found: dict[str, Any], ours: Sequence[str]) -> Iterator[Measurement]:
    """Bus bandwidths of the back ends beside those of Socket, of what `paralet nccl --json` prints. Pure."""
    rates: dict[tuple[str, int], float] = {
        (row["transport"], row["size"]): row["out_of_place"]["bus_bw"] for row in found["results"]
    }
    for size in sorted({size for _, size in rates}):
        for back_end in ours:
            for peer in SOCKETS:
                case, values = f"{name}, {sizes.text(size)}", (rates[back_end, size], rates[peer, size])
                yield Measurement(f"all-reduce, {back_end}", case, "GB/s", *values, f"NCCL {peer}")


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
