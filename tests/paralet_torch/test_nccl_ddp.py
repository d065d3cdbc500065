# SPDX-License-Identifier: Apache-2.0
"""The training of `testbed.nccl.ddp`, on processors over Gloo: a GPU is not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from testbed.nccl import bundle

ROOT = Path(__file__).parents[2]


def test_every_rank_comes_to_the_same_parameters_and_learns() -> None:
    words = ["--device", "cpu", "--width", "16", "--layers", "1", "--steps", "30", "--length", "8", "--batch", "2"]
    argv = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(ROOT / bundle.TRAINING), *words]
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert first["parameters"] == second["parameters"]
    assert len(first["seconds"]) == len(first["alone"]) == 30
    assert sum(first["losses"][-5:]) < sum(first["losses"][:5])
