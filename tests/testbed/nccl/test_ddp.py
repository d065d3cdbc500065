# SPDX-License-Identifier: Apache-2.0
"""Training with DDP over one network after the other: a program in place of the training, which needs a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.nccl import ddp
from testbed.nccl.ddp import Training

PROGRAM = """\
import json, os, sys
rank = int(os.environ["RANK"])
with open(os.environ["NCCL_DEBUG_FILE"], "w") as log:
    log.write(f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/{sys.argv[1]}/0\\n")
print("a library says something")
print(json.dumps({
    "seconds": [0.25, 0.5 + rank, 9.0], "alone": [0.125], "losses": [3.0, 2.0], "gradient_bytes": 4,
    "parameters": sys.argv[2] if rank else "same", "torch": "2", "gpu": "H"}))
sys.exit(int(sys.argv[3]))
"""


def trained(tmp_path: Path, network: str = "paralet", parameters: str = "same", status: str = "0") -> Training:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [network, parameters, status]
    return ddp.training(program, words, "tcp", 2, dict(os.environ), None, "lo", tmp_path, timeout_s=100)


def test_the_slowest_rank_and_the_median_step_count(tmp_path: Path) -> None:
    found = trained(tmp_path)
    assert (found.step_s, found.alone_s, found.losses) == (1.5, 0.125, (3.0, 2.0))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"network": "Socket"}, "rank 0 over tcp: NCCL moves data from rank 0 to rank 1 via NET/Socket/0, not via"),
        ({"parameters": "other"}, "the ranks over tcp have come to different parameters"),
        ({"status": "3"}, "rank 0 over tcp ended with status 3; its logs are in "),
    ],
)
def test_a_training_that_proves_nothing_is_an_error(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(TestbedError, match=sentence):
        trained(tmp_path, **options)


def test_transports_take_turns_in_one_order_and_back() -> None:
    said: list[str] = []

    def once(transport: str) -> Training:
        return Training(transport, 0.5 if transport == "tcp" else 1.0, 0.25, (1.0,), 4_000_000, "2.11", "H100")

    found = ddp.in_turn(["tcp", "Socket"], 3, once, said.append)
    assert [each.transport for each in found] == ["tcp", "Socket", "Socket", "tcp", "tcp", "Socket"]
    assert said[0] == "DDP over tcp: a step takes 500.0 ms, 250.0 ms alone"
    result = ddp.as_json(found, ["tcp", "Socket"], 2, mps=False)
    assert result["ratios"] == {"tcp": 0.5}
    text = ddp.as_text(result)
    assert "2 ranks on H100, torch 2.11, 4 MB of gradients" in text
    assert "| tcp | 500.0 | 250.0 | 0.50 |" in text
