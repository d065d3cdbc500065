# SPDX-License-Identifier: Apache-2.0
"""Backend paralet of torch.distributed compared with Gloo: all-reduces by ranks and size, and steps of training.

Ranks are processes on loopback with one thread for computing each. Both backends take turns in the same processes for
all-reduces, and in processes of their own for the example experiments/torch/transformer.py.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from testbed.bench.frame import Measurement, Result, result
from testbed.errors import InputError, TestbedError
from testbed.progress import Steps

PEER = "gloo"
RANKS = (2, 4)
SIZES = (1 << 10, 32 << 10, 1 << 20, 16 << 20, 256 << 20)
LATENCY_BYTES = 1 << 10
REPETITIONS = 3
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "experiments" / "torch" / "transformer.py"
_EXAMPLE_OPTIONS = ("--steps", "12", "--width", "256", "--layers", "3")


def measure() -> Result:
    """Run every case. Raises InputError where torch is missing, TestbedError when a run fails or is wrong."""
    if find_spec("torch") is None:
        raise InputError("torch is not installed: run 'make torch' in a checkout, or pip install 'paralet[torch]'")
    with Steps(len(RANKS) * 2, every_s=3.0) as steps:
        measurements: list[Measurement] = []
        for ranks in RANKS:
            steps.now(f"all-reduces among {ranks} ranks")
            measurements += all_reduces(ranks)
            steps.advance()
            steps.now(f"training on {ranks} ranks")
            measurements += training(ranks)
            steps.advance()
    return result("torch", measurements)


def all_reduces(ranks: int, sizes: Sequence[int] = SIZES, repetitions: int = REPETITIONS) -> Iterator[Measurement]:
    """Latency of the smallest size; bus bandwidth, 2 (n - 1) / n times the size over the time, of all others."""
    with tempfile.TemporaryDirectory(prefix="paralet-bench-") as folder:
        words = [f"{folder}/store", str(repetitions), *map(str, sizes)]
        commands: list[tuple[list[str], dict[str, str]]] = [
            ([sys.executable, "-m", "paralet_torch.bench", str(rank), str(ranks), *words], {}) for rank in range(ranks)
        ]
        rows = _rank_0(commands)
    for row in rows:
        case = f"{ranks} ranks, {_size(row['bytes'])}"
        if row["bytes"] <= LATENCY_BYTES:
            yield Measurement("all-reduce latency", case, "us", 1e6 * row["paralet"], 1e6 * row["gloo"], PEER)
        else:
            gbit = 2 * (ranks - 1) / ranks * row["bytes"] * 8e-9
            ours, peer = gbit / row["paralet"], gbit / row["gloo"]
            yield Measurement("all-reduce bus bandwidth", case, "Gbit/s", ours, peer, PEER)


def training(ranks: int, repetitions: int = REPETITIONS) -> Iterator[Measurement]:
    """Median time of a step of the example with DDP. Nothing where the example is not installed."""
    if not EXAMPLE.is_file():
        return
    for _ in range(repetitions):
        ours, peer = (_step_s(ranks, backend) for backend in ("paralet", "gloo"))
        yield Measurement("DDP step", f"{ranks} ranks", "ms", 1e3 * ours, 1e3 * peer, PEER)


def _step_s(ranks: int, backend: str) -> float:
    argv = [sys.executable, str(EXAMPLE), "--backend", backend, *_EXAMPLE_OPTIONS]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])  # is free for the store of rank 0
    commands = [
        (argv, {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        for rank in range(ranks)
    ]
    return float(median(row["seconds"] for row in _rank_0(commands)))


def _rank_0(commands: Sequence[tuple[list[str], dict[str, str]]]) -> list[dict[str, Any]]:
    """Run the ranks; the JSON objects that rank 0 printed. Raises TestbedError when a rank fails."""
    common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PARALET_ADDRESSES": "127.0.0.1"}
    common["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), common.get("PYTHONPATH")]))
    with ExitStack() as undo:
        running = []
        for argv, variables in commands:
            output, errors = (undo.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=common | variables
            )
            undo.callback(process.wait)
            undo.callback(process.kill)
            running.append((process, output, errors))
        for rank, (process, _, errors) in enumerate(running):
            if process.wait():
                errors.seek(0)
                said = errors.read().strip().splitlines()
                raise TestbedError(f"rank {rank} failed: {said[-1] if said else f'status {process.returncode}'}")
        _, output, _ = running[0]
        output.seek(0)
        return [json.loads(line) for line in output]


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
