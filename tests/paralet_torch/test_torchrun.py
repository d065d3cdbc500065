# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: the example of docs/torch.md, and a restart after a rank has died."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paralet_torch.world import ROOT, environment

RESTARTING = """
import os
import torch
import torch.distributed as dist
import paralet_torch

dist.init_process_group("paralet")
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
total = torch.ones(1000)
dist.all_reduce(total)
if attempt == 0 and rank == 1:
    os._exit(3)
for _ in range(20):
    dist.all_reduce(total)
print(f"attempt {attempt} rank {rank} of {dist.get_world_size()} ends", flush=True)
dist.destroy_process_group()
"""

EXAMPLES = """
import runpy
import sys

for name, argv in {examples!r}.items():
    print("example", name, flush=True)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
"""
"""Runs programs with their arguments one after the other, and prints the name of each before its output."""


def torchrun(logs: Path, program: Path, *, restarts: int = 0) -> list[str]:
    """What each of two ranks printed in the last attempt, in order of rank. Fails the test when torchrun fails."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv += ["--max-restarts", str(restarts), "--redirects", "3", "--log-dir", str(logs)]  # the ranks' lines would mix
    argv.append(str(program))
    done = subprocess.run(argv, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        said = [f"{file}:\n{file.read_text()}" for file in sorted(logs.rglob("stderr.log"))]
        pytest.fail("\n".join([done.stderr, *said]), pytrace=False)
    last = max(logs.rglob("attempt_*"))
    return [(last / str(rank) / "stdout.log").read_text() for rank in range(2)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each rank printed in each example. One torchrun runs all, because starting and importing take the time."""
    folder = tmp_path_factory.mktemp("examples")
    page = (ROOT / "docs" / "torch.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    documented = folder / "example.py"
    documented.write_text(example)
    transformer = [str(ROOT / "experiments" / "torch" / "transformer.py"), "--steps", "8", "--width", "32"]
    transformer += ["--layers", "1", "--parallel"]
    # That of the documentation is the last: it leaves its group to the end of the process.
    argv = {"ddp": [*transformer, "ddp"], "fsdp": [*transformer, "fsdp"], "documentation": [str(documented)]}
    program = folder / "examples.py"
    program.write_text(EXAMPLES.format(examples=argv))
    outputs = [
        re.split(r"^example (\w+)\n", output, flags=re.MULTILINE) for output in torchrun(folder / "logs", program)
    ]
    by_rank = [dict(zip(words[1::2], words[2::2], strict=True)) for words in outputs]
    return {name: [rank[name] for rank in by_rank] for name in argv}


def test_example_of_the_documentation(printed: dict[str, list[str]]) -> None:
    assert printed["documentation"] == ["tensor([3., 3.])\n"] * 2


def test_torchrun_restarts_all_ranks_when_one_dies(tmp_path: Path) -> None:
    program = tmp_path / "restarting.py"
    program.write_text(RESTARTING)
    assert torchrun(tmp_path / "logs", program, restarts=1) == [
        f"attempt 1 rank {rank} of 2 ends\n" for rank in range(2)
    ]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_example_experiment_learns(printed: dict[str, list[str]], parallel: str) -> None:
    losses = [[json.loads(line)["loss"] for line in lines.splitlines()] for lines in printed[parallel]]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 8
    assert losses[0][-1] < losses[0][0]
