# SPDX-License-Identifier: Apache-2.0
"""Soak test: processes exchange messages all to all, with random sizes, directions and closes, while packets are lost.

    python -m tests.hostlib.soak --minutes 10 --processes 8 --loss 0.01

Each two processes share one connection at a time. Both derive its script from a seed: the messages, their directions,
and when which side closes it with messages in flight. Every message that arrives is compared with the script, every
request must end, and a process must end with the same number of file descriptors and threads as at its start. Prints
one JSON object per process. Exits with status 1 when a message was lost or wrong, a request never ended, or a resource
was left.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostlib import Connection, ConnectionClosed, Device, Faults, Request

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
SIZES = (0, 1, 300, 4096, 20_000, 150_000)  # largest message sizes, one of which is drawn first
MAX_MESSAGES = 40
DEPTH = 6  # messages in flight per connection
SAMPLE_S = 0.5


def address(rank: int) -> str:
    return f"127.0.1.{1 + rank}"


@dataclass(frozen=True)
class Step:
    """One message of a connection's script."""

    sender: int
    size: int
    tag: int

    def payload(self, seed: int) -> bytes:
        return random.Random(seed * 1000 + self.tag).randbytes(self.size)


@dataclass(frozen=True)
class Script:
    """The script of one connection between two ranks, known to both."""

    seed: int
    steps: tuple[Step, ...]
    closer: int
    close_after: int
    """Number of messages that `closer` sees done before it closes; the remaining messages fail."""


def script(low: int, high: int, generation: int) -> Script:
    seed = (low * 64 + high) * 1_000_000 + generation
    draw = random.Random(seed)
    count = draw.randint(1, MAX_MESSAGES)
    steps = tuple(Step(draw.choice((low, high)), draw.randint(0, draw.choice(SIZES)), tag) for tag in range(count))
    return Script(seed, steps, draw.choice((low, high)), draw.choice((count, draw.randint(0, count))))


@dataclass
class Outcome:
    """Results of a process; lists are samples over time."""

    connections: int = 0
    messages: int = 0
    cut_off: int = 0
    """Requests that failed because the script closed the connection."""
    faults: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


def resources() -> tuple[float, int, int]:
    """Resident memory in MiB and numbers of file descriptors and threads of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    rss_mib = int(status["VmRSS"].split()[0]) / 1024
    return rss_mib, len(os.listdir("/proc/self/fd")), int(status["Threads"])


def starved_s() -> float:
    """The longest time in seconds that a thread of this process was ready and did not get a processor."""
    waits = [0.0]
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waits.append(int(path.read_text().split()[1]) * 1e-9)
    return max(waits)


def run_script(connection: Connection, rank: int, part: Script, outcome: Outcome) -> None:
    """Run one side of a script. Raises TimeoutError when a request does not end."""
    in_flight: list[tuple[Step, Request, bytearray | None]] = []
    done, closed = 0, False

    def finish(step: Step, request: Request, buffer: bytearray | None) -> None:
        nonlocal closed
        try:
            moved = request.wait(DEADLINE_S)
        except ConnectionClosed:
            closed = True
            outcome.cut_off += 1
            return
        outcome.messages += 1
        if moved != step.size or (buffer is not None and buffer != step.payload(part.seed)):
            outcome.faults.append(f"message {step.tag} of connection {part.seed} arrived with wrong content")

    for step in part.steps:
        if closed or (rank == part.closer and done >= part.close_after):
            break
        if step.sender == rank:
            in_flight.append((step, connection.send(step.payload(part.seed), step.tag), None))
        else:
            buffer = bytearray(step.size)
            in_flight.append((step, connection.recv(buffer, step.tag), buffer))
        if len(in_flight) == DEPTH:
            finish(*in_flight.pop(0))
            done += 1
    if rank != part.closer or part.close_after >= len(part.steps):
        while in_flight:
            finish(*in_flight.pop(0))
    if rank != part.closer and part.close_after < len(part.steps) and not closed:
        finish(
            Step(part.closer, 0, 2**32 - 1), connection.recv(bytearray(1), 2**32 - 1), None
        )  # until the other closes
    connection.close()
    while in_flight:
        finish(*in_flight.pop(0))


def pair(device: Device, rank: int, other: int, handle: bytes, arrived: queue.SimpleQueue[Connection],
         until: float, outcome: Outcome) -> None:  # fmt: skip
    """One connection after the other with one rank. Both ranks stop after the same one: the lower says which."""
    low, high = sorted((rank, other))
    generation, last = 0, False
    while not last:
        if rank == low:
            connection = device.connect(handle, DEADLINE_S)
            last = time.monotonic() >= until
            connection.send(bytes([last]), 2**32 - 2).wait(DEADLINE_S)
        else:
            connection = arrived.get(timeout=DEADLINE_S)
            word = bytearray(1)
            connection.recv(word, 2**32 - 2).wait(DEADLINE_S)
            last = bool(word[0])
        run_script(connection, rank, script(low, high, generation), outcome)
        outcome.connections += 1
        generation += 1


def run_rank(rank: int, ranks: int, seconds: float, loss: float, outcome: Outcome) -> None:
    """Run one rank: print its handle, read all handles, and exchange messages with all other ranks."""
    faults = Faults(drop=loss, seed=rank)
    with Device(address(rank), lanes=4, min_timeout_s=0.02, retry_time_s=DEADLINE_S, faults=faults) as device:
        listener = device.listen()
        print(listener.handle.hex(), flush=True)
        handles = [bytes.fromhex(word) for word in sys.stdin.readline().split()]
        until = time.monotonic() + seconds
        arrived: dict[str, queue.SimpleQueue[Connection]] = {address(r): queue.SimpleQueue() for r in range(ranks)}
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    connection = listener.accept(0.2)
                except TimeoutError:
                    continue
                arrived[connection.peer].put(connection)

        def guarded(other: int) -> None:
            try:
                pair(device, rank, other, handles[other], arrived[address(other)], until, outcome)
            except Exception as error:
                when = time.monotonic() - until + seconds
                outcome.faults.append(
                    f"with rank {other} after {when:.0f} s ({starved_s():.0f} s of them waiting for a processor): "
                    f"{type(error).__name__}: {error}"
                )

        accepting = threading.Thread(target=accept)
        pairs = [threading.Thread(target=guarded, args=(other,)) for other in range(ranks) if other != rank]
        for thread in (accepting, *pairs):
            thread.start()
        while any(thread.is_alive() for thread in pairs):
            time.sleep(SAMPLE_S)
            rss, fds, alive = resources()
            outcome.rss_mib.append(rss)
            outcome.descriptors.append(fds)
            outcome.threads.append(alive)
        print("done", flush=True)
        sys.stdin.readline()  # until all others are done: they may wait for our acknowledgements
        over.set()
        accepting.join()


def process(rank: int, ranks: int, seconds: float, loss: float) -> Outcome:
    """Run one rank, and compare its resources before and after."""
    outcome = Outcome()
    before = resources()[1:]
    run_rank(rank, ranks, seconds, loss, outcome)
    gc.collect()
    until = time.monotonic() + DEADLINE_S  # the kernel still lists a joined thread for a moment
    while (after := resources()[1:]) != before and time.monotonic() < until:
        time.sleep(0.01)
    for what, was, now in zip(("file descriptors", "threads"), before, after, strict=True):
        if now != was:
            outcome.faults.append(f"{now} {what} at the end, {was} at the start")
    return outcome


@contextmanager
def started(ranks: int, seconds: float, loss: float) -> Iterator[list[subprocess.Popen[str]]]:
    argv = [sys.executable, "-m", __spec__.name, "--rank"] if __spec__ else [sys.executable, __file__, "--rank"]
    options = ["--processes", str(ranks), "--minutes", str(seconds / 60), "--loss", str(loss)]
    processes = [
        subprocess.Popen(
            [*argv, str(rank), *options],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def soak(ranks: int, seconds: float, loss: float) -> list[dict[str, Any]]:
    """Run all processes and return the outcome of each."""
    with started(ranks, seconds, loss) as processes:

        def lines() -> list[str]:
            return [process.stdout.readline().strip() for process in processes if process.stdout]

        def tell(line: str) -> None:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(line + "\n")
                process.stdin.flush()

        tell(" ".join(lines()))
        assert lines() == ["done"] * ranks, "a process exited early"
        tell("")
        return [json.loads(line) for line in lines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--loss", type=float, default=0.01, help="probability of loss per packet")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        print(
            json.dumps(vars(process(options.rank, options.processes, 60 * options.minutes, options.loss))), flush=True
        )
        return 0
    outcomes = soak(options.processes, 60 * options.minutes, options.loss)
    for outcome in outcomes:
        print(json.dumps({key: value if key == "faults" or not isinstance(value, list) else
                          [value[0], max(value), value[-1]] for key, value in outcome.items()}))  # fmt: skip
    return int(any(outcome["faults"] for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
