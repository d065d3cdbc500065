# SPDX-License-Identifier: Apache-2.0
"""Ranks of training scripts, on loopback addresses without a fabric: what they report, and how they fail.

The scripts here need no torch, except where a test says so: `paralet_torch.steps` is replaced by the lines it prints.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis import metrics
from testbed.analysis.flows import flows_of
from testbed.analysis.observations import Observations, RunRecord
from testbed.analysis.results import summary
from testbed.errors import InputError, PeerLostError, TestbedError
from testbed.process_group import ProcessError
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run.torch_rank import TorchRun
from testbed.workloads.torch_training import TorchTraining
from tests.testbed.experiments import experiment, on_loopback
from tests.testbed.run.fake_fabric import HOSTLIB_AGENT, runner_on

ROOT = Path(__file__).parents[3]
LOOP = """
import json, os, sys, time
print("made", sys.argv[1:], os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)
print(json.dumps({"ready": True}), flush=True)
at_s = json.loads(sys.stdin.readline())["at_s"]
"""
STEPS = (
    LOOP
    + """
lines = [json.dumps({"step": n, "loss": 3.0 - n, "seconds": 0.1, "at_s": at_s + 0.1 * (n + 1)}) for n in range(2)]
print("\\n".join([*lines, json.dumps({"done": True})]), flush=True)
sys.stdin.readline()
"""
)
"""A script of two steps, which reports all at once."""


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TorchRun]:
    """Rank 0 of two ranks over Gloo, with the script that is the test's parameter."""
    script = tmp_path / "script.py"
    script.write_text(request.param)
    workload = TorchTraining(bytes=800, script=str(script), steps=2, arguments=["--width", "8"])
    device = messages.DeviceConfig(address="127.0.0.1", lanes=1, policy="ecmp", seed=7, line_rate_bps=10_000_000)
    made = TorchRun(
        messages.Prepare(rank=0, ranks=2, seed=3, device=device, workload=workload, transport="socket"), workload
    )
    yield made
    made.close()


def start(run: TorchRun) -> messages.Finished:
    run.connect(messages.Connect(handles={}, timeout_s=120))
    return run.start(messages.Start(at_s=time.monotonic(), timeout_s=120))


@pytest.mark.parametrize("run", [STEPS], indirect=True)
def test_steps_that_arrive_together_are_all_read(run: TorchRun, capfd: pytest.CaptureFixture[str]) -> None:
    finished = start(run)
    assert finished.losses == [3.0, 2.0]
    assert finished.step_finished_s[1] - finished.step_finished_s[0] == pytest.approx(0.1)
    assert finished.last_arrival_s == {1: finished.finished_s}
    arguments = "['--backend', 'gloo', '--parallel', 'ddp', '--steps', '2', '--seed', '3', '--width', '8'] 0 2"
    assert arguments in capfd.readouterr().err


@pytest.mark.parametrize("run", [STEPS], indirect=True)
def test_the_port_of_the_store_is_given_to_no_other_socket(run: TorchRun) -> None:
    _, port = run.prepared().handles[1].split(":")
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 <= int(port) < first


FAILING = {
    "import sys; sys.exit('script.py: error: unrecognized arguments: --widht')": (
        PeerLostError,
        "ended with status 1 before 'ready': script.py: error: unrecognized arguments: --widht",
    ),
    "print('hello')": (TestbedError, "ended before 'ready'; its loop must be paralet_torch.steps"),
    LOOP + "os.kill(os.getpid(), 9)": (TestbedError, "ended by signal SIGKILL before 'step'"),
    LOOP + "print(json.dumps({'step': 1, 'loss': 1.0, 'at_s': at_s}), flush=True); sys.stdin.readline()": (
        TestbedError,
        "reported step 1 when step 0 was due",
    ),
    LOOP + "print(json.dumps({'step': 0, 'loss': float('nan'), 'at_s': at_s}), flush=True); sys.stdin.readline()": (
        TestbedError,
        "reported the loss nan of step 0",
    ),
}


@pytest.mark.parametrize(
    ("run", "kind", "said"),
    [(script, kind, said) for script, (kind, said) in FAILING.items()],
    ids=["wrong option", "no loop", "killed", "step missing", "loss no number"],
    indirect=["run"],
)
def test_a_script_that_fails_is_one_sentence(run: TorchRun, kind: type[TestbedError], said: str) -> None:
    with pytest.raises(TestbedError, match=said) as caught:
        start(run)
    assert type(caught.value) is kind


@pytest.mark.parametrize("run", ["import sys; sys.stdin.readline()"], indirect=True)
def test_a_late_script_is_one_sentence(run: TorchRun) -> None:
    with pytest.raises(TestbedError, match=r"did not report 'ready' in time; raise timeouts\.connect_s"):
        run.connect(messages.Connect(handles={}, timeout_s=0.1))


def test_missing_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.workloads.torch_training.find_spec", lambda name: None)
    with pytest.raises(InputError, match="torch is not installed: run 'make torch'"):
        TorchTraining(bytes=8, script="train.py").check_installed()


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: run 'make torch'")
SCRIPT = str(ROOT / "experiments" / "torch" / "transformer.py")


def records(folder: Path, **workload: Any) -> list[RunRecord]:
    """The runs of the example on two hosts at loopback addresses, with one seed."""
    options = ["--layers", "1", "--width", "32", "--batch", "2", *workload.pop("arguments", [])]
    made = on_loopback(
        experiment(
            folder,
            workload={"kind": "torch", "script": SCRIPT, "bytes": 63_232, "arguments": options, **workload},
            policies=[{"name": "ecmp-2", "policy": "ecmp", "m": 2}, {"name": "pinned", "policy": "pinned"}],
            placement={"rule": "cross_leaf", "ranks": 2},
            seeds=1,
            timeouts={"connect_s": 120},
        )
    )
    with Steps(2) as steps:
        runs = list(runner_on(made, folder / "logs", HOSTLIB_AGENT).runs(steps))
    written = summary(made, metrics.by_policy(made, flows_of(made, Observations(runs=runs))), [], None)
    json.dumps(written, allow_nan=False)
    assert [policy["largest_loss_difference"] for policy in written["policies"]] == [0.0, 0.0]
    return runs


@needs_torch
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_policies_give_the_same_losses(tmp_path: Path, parallel: str) -> None:
    one, other = records(tmp_path, parallel=parallel, steps=4)
    assert one.jobs[0].losses == other.jobs[0].losses
    assert len(one.jobs[0].losses) == 4
    assert one.wrong_bytes == other.wrong_bytes == 0
    assert {entry.lane.lane for entry in one.lanes} == {0, 1}


OPTIONS = """
import argparse
parser = argparse.ArgumentParser()
for option in ("backend", "parallel", "steps", "seed", "layers", "width", "batch"):
    parser.add_argument(f"--{option}")
parser.parse_args()
"""
"""Takes the options of the example, as quickly as a script without torch can."""


@needs_torch
def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    script = tmp_path / "transformer.py"
    script.write_text(OPTIONS)
    with pytest.raises(ProcessError, match=r"transformer.py: error: unrecognized arguments: --widht 8; its log is"):
        records(tmp_path, script=str(script), arguments=["--widht", "8"], steps=2)


KILLED = """
import os, signal, torch, torch.distributed as dist, paralet_torch
dist.init_process_group("paralet")
for step in paralet_torch.steps(4):
    if step.number == 1 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(100_000))
"""


@needs_torch
def test_the_rank_that_was_killed_in_mid_training_is_named(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with pytest.raises(ProcessError, match="the agent on h3 failed: the script was ended by signal SIGKILL"):
        records(tmp_path, script=str(script), steps=4)
