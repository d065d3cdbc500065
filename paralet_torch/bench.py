# SPDX-License-Identifier: Apache-2.0
"""All-reduce over backend paralet beside Gloo, in the same processes: a rank of `paralet bench torch`.

`python -m paralet_torch.bench RANK RANKS STORE REPETITIONS BYTES...` measures every size alternately over both. Rank 0
prints a JSON object per repetition and size: ``bytes``, and the seconds of one operation as the slowest rank saw it,
``paralet`` and ``gloo``. Every result is compared with the expected data.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from paralet_torch.process_group import NAME

_BYTES_PER_CASE = 64 << 20
_MOST_ITERATIONS = 500


def measure(group: Any, tensor: torch.Tensor, iterations: int) -> float:
    """Mean seconds of an in-place all-reduce of float32 in this rank."""
    tensor.fill_(0.0)
    dist.all_reduce(tensor, group=group)
    begin_s = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(tensor, group=group)
    seconds = (time.perf_counter() - begin_s) / iterations
    tensor.fill_(float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    expected = float(sum(range(1, dist.get_world_size() + 1)))
    if not torch.all(tensor == expected):
        raise SystemExit(f"an all-reduce of {tensor.nbytes} bytes gave wrong numbers")
    return seconds


def main() -> None:
    """Entry point."""
    rank, ranks, store, repetitions = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    groups = {NAME: dist.new_group(backend=NAME), "gloo": dist.group.WORLD}
    for repetition in range(repetitions):
        for size in map(int, sys.argv[5:]):
            tensor = torch.empty(max(1, size // 4))
            iterations = max(3, min(_MOST_ITERATIONS, _BYTES_PER_CASE // size))
            order = list(groups) if repetition % 2 == 0 else list(reversed(groups))
            seconds = {name: measure(groups[name], tensor, iterations) for name in order}
            slowest = torch.tensor([seconds[name] for name in groups])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if rank == 0:
                times = dict(zip(groups, slowest.tolist(), strict=True))
                print(json.dumps({"bytes": size, **times}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
