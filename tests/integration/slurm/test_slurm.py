# SPDX-License-Identifier: Apache-2.0
"""Jobs of Debian's Slurm get planned ports: by `srun paralet pin`, and by a task prolog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
SLURM = ROOT / "build" / "slurm"
HERE = Path(__file__).parent
JOBS = ROOT / "deploy" / "jobs"
TASK = f"{sys.executable} {HERE / 'task.py'}"
TIMEOUT_S = 240

pytestmark = [
    pytest.mark.skipif(not SLURM.is_dir(), reason="Slurm is missing: make slurm"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the nodes are namespaces, which need root"),
]


def test_the_tasks_of_a_job_get_planned_ports(tmp_path: Path) -> None:
    sent_from = free_ports(1)[0]
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "token").chmod(0o600)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TASK_PROLOG": str(JOBS / "pin-task-prolog.sh"),
        "PARALET_PATH_SERVICE": "10.9.0.1:4792",  # which the jobs ask for; ports by hand take its place
        "PARALET_PATH_SERVICE_TOKEN_FILE": str(tmp_path / "token"),
        "PARALET_PORTS": f"10.9.0.1={sent_from}",
        "PARALET_PIN_WAIT_US": "60000000",
    }
    options = f"--nodes 2 --ntasks-per-node 1 --gpus-per-node 0 --chdir {tmp_path}"
    batch = f"sbatch --wait {options} --output {tmp_path}/batch {JOBS / 'pin.sbatch'} {TASK}"
    direct = f"PARALET_PIN=1 srun {options} --job-name direct --output {tmp_path}/direct {TASK}"
    done = subprocess.run(
        [HERE / "cluster.sh", SLURM, tmp_path, "bash", "-c", f"{batch} && {direct}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    said = {name: (tmp_path / name).read_text() for name in ("batch", "direct") if (tmp_path / name).exists()}
    logs = {log.name: log.read_text() for log in tmp_path.glob("*.log")}
    assert done.returncode == 0, (done.stderr, said, logs)
    assert {name: json.loads(text) for name, text in said.items()} == {
        "batch": {"port": sent_from, "job": "train-1"},
        "direct": {"port": sent_from, "job": "direct-2"},
    }
