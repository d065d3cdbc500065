# SPDX-License-Identifier: Apache-2.0
"""Commands as a spec writes them, and the demands that they state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emul.shaping import burst_bytes
from netmodel import SpecError
from testbed.spec import Instance
from testbed.workloads.command import Program
from tests.testbed.experiments import experiment

POLICIES = [{"name": "sockets", "policy": "ecmp", "transport": "socket"}]


def workload(**changes: Any) -> dict[str, Any]:
    return {"kind": "command", "bytes": "1 MB", "pairs": [[0, 1]], "commands": ["true"], **changes}


def test_the_ideal_follows_from_pairs(tmp_path: Path) -> None:
    made = experiment(tmp_path, workload=workload(pairs=[[0, 1], [2, 1]]), policies=POLICIES)
    assert Instance(made, 1).ideal_s() == pytest.approx(8 * (2e6 - burst_bytes(100_000_000, 9000)) / 100e6)


def test_one_command_is_for_all_ranks_and_a_line_stands_for_a_program(tmp_path: Path) -> None:
    made = experiment(tmp_path, workload=workload(commands=["echo $RANK"]), policies=POLICIES)
    assert made.spec.workload.model_dump()["commands"] == [Program(run="echo $RANK").model_dump()]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"commands": ["true", "true"]}, r"workload.commands: there are 2 commands for 4 ranks; give one for each"),
        ({"commands": [{"ready": "x"}]}, r"workload.commands\[0\].run"),
        ({"commands": [{"run": "true", "status": 256}]}, r"workload.commands\[0\].status"),
        ({"pairs": [[0, 1], [1, 1]]}, r"workload.pairs\[1\]: a pair is two ranks"),
        ({"pairs": [[0, 4]]}, r"workload.pairs\[0\]: rank 4 is none of 0 to 3"),
        ({"pairs": []}, r"workload.pairs"),
    ],
)
def test_mistakes_have_their_place(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        experiment(tmp_path, workload=workload(**changes), policies=POLICIES)


def test_a_model_runs_no_commands(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="workload command runs on fabric mininet"):
        experiment(tmp_path, workload=workload(), policies=[{"name": "ecmp", "policy": "ecmp"}], fabric="fluid")
