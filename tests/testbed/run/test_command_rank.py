# SPDX-License-Identifier: Apache-2.0
"""Ranks that are commands of the user's, on loopback addresses without a fabric: their variables, order and ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run.command_rank import CommandRun
from testbed.workloads.command import Commands
from tests.testbed.experiments import experiment, on_loopback
from tests.testbed.run.fake_fabric import HOSTLIB_AGENT, runner_on


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def made(opened: ExitStack, program: dict[str, Any], transport: str = "paralet") -> CommandRun:
    """Rank 1 of two, which receives from rank 0."""
    workload = Commands.model_validate({"bytes": 800, "pairs": [[0, 1]], "commands": [program]})
    device = messages.DeviceConfig(address="127.0.0.2", lanes=4, policy="ecmp", seed=7, line_rate_bps=10_000_000)
    prepare = messages.Prepare.model_validate(
        {"rank": 1, "ranks": 2, "seed": 3, "device": device, "workload": workload, "transport": transport}
    )
    run = CommandRun(prepare, workload)
    opened.callback(run.close)
    return run


def start(run: CommandRun, timeout_s: float = 60) -> messages.Finished:
    run.connect(messages.Connect(handles={0: "127.0.0.1"}, timeout_s=timeout_s))
    return run.start(messages.Start(at_s=time.monotonic(), timeout_s=timeout_s))


def test_each_rank_tells_the_others_its_address(opened: ExitStack) -> None:
    assert made(opened, {"run": "true"}).prepared().handles == {0: "127.0.0.2"}


@pytest.mark.parametrize(("transport", "lanes"), [("paralet", "4"), ("socket", "none")])
def test_a_command_has_the_variables_of_its_rank_and_policy(
    opened: ExitStack, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, transport: str, lanes: str
) -> None:
    monkeypatch.setenv("PARALET_LANES", "9")  # of whoever runs the test
    shown = "echo $RANK of $WORLD_SIZE seed $SEED at $ADDRESS_1 from $ADDRESS_0 lanes ${PARALET_LANES:-none} $MINE"
    finished = start(made(opened, {"run": shown, "environment": {"MINE": "too"}}, transport))
    assert f"1 of 2 seed 3 at 127.0.0.2 from 127.0.0.1 lanes {lanes} too\n" in capfd.readouterr().err
    assert finished.last_arrival_s == {0: finished.finished_s}
    assert (finished.wrong_bytes, finished.lanes) == (0, [])


def test_a_command_that_is_ready_first_has_begun_before_the_start(opened: ExitStack, tmp_path: Path) -> None:
    began = tmp_path / "began"
    run = made(opened, {"run": f"touch {began}; echo it is open now; sleep 0.2", "ready": "open"})
    run.connect(messages.Connect(handles={0: "127.0.0.1"}, timeout_s=60))
    assert began.exists()
    run.start(messages.Start(at_s=time.monotonic(), timeout_s=60))


@pytest.mark.parametrize(
    ("program", "timeout_s", "said"),
    [
        ({"run": "echo no route; exit 3"}, 60, "the command ended with status 3, not 0: no route"),
        ({"run": "echo no route; echo -----; exit 3"}, 60, "the command ended with status 3, not 0: no route"),
        ({"run": "true", "status": 3}, 60, "the command ended with status 0, not 3"),
        ({"run": "kill -9 $$"}, 60, "signal SIGKILL ended the command"),
        ({"run": "sleep 1000", "timeout_s": 0.1}, 60, "the command has not ended after 0.1 s"),
        ({"run": "sleep 1000"}, 0.1, "the command has not ended after 0.1 s"),
        ({"run": "echo closed", "ready": "open"}, 60, "the command ended before it printed 'open': closed"),
        ({"run": "sleep 1000", "ready": "open"}, 0.1, "did not print 'open' within 0.1 s; raise timeouts.connect_s"),
    ],
    ids=str,
)
def test_a_command_that_fails_is_one_sentence(
    opened: ExitStack, program: dict[str, Any], timeout_s: float, said: str
) -> None:
    with pytest.raises(TestbedError, match=said.replace("$", r"\$")):
        start(made(opened, program), timeout_s)


def test_the_right_status_may_be_another_than_zero(opened: ExitStack) -> None:
    start(made(opened, {"run": "exit 3", "status": 3}))


def test_what_a_command_has_started_ends_with_the_run(opened: ExitStack, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    run = made(opened, {"run": f"sleep 1000 >/dev/null 2>&1 & echo $! >{noted}"})
    start(run)
    pid = int(noted.read_text())
    assert os.path.exists(f"/proc/{pid}")
    run.close()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and "Z" not in Path(f"/proc/{pid}/stat").read_text().split():
        assert time.monotonic() < deadline
        time.sleep(0.01)


SERVER = """
import os, socket, sys
listener = socket.create_server((os.environ["ADDRESS_0"], 0))
print("port", listener.getsockname()[1], file=open(sys.argv[1], "w"), flush=True)
print("it listens", flush=True)
listener.accept()[0].recv(1)
"""
CLIENT = """
import os, socket, sys
port = int(open(sys.argv[1]).read().split()[1])
socket.create_connection((os.environ["ADDRESS_0"], port)).send(b"x")
"""


def test_a_run_of_commands_ends_when_all_have_ended(tmp_path: Path) -> None:
    for name, program in {"server": SERVER, "client": CLIENT}.items():
        (tmp_path / f"{name}.py").write_text(program)
    run = f"python3 {tmp_path}/%s.py {tmp_path}/port.$SEED"
    commands = [{"run": run % "server", "ready": "it listens"}, f"sleep 0.3; {run % 'client'}"]
    workload = {"kind": "command", "bytes": 800, "pairs": [[1, 0]], "commands": commands}
    policies = [{"name": "sockets", "policy": "ecmp", "transport": "socket"}]
    placement = {"hosts": ["h1", "h2"]}
    spec = on_loopback(experiment(tmp_path, workload=workload, policies=policies, placement=placement))
    with Steps(1) as steps:
        records = list(runner_on(spec, tmp_path / "logs", HOSTLIB_AGENT).runs(steps))
    assert [record.seed for record in records] == [1, 2]
    for record in records:
        (flow,) = record.flows  # has arrived when the receiver has ended
        assert 0.3 < flow.completion_s <= record.completion_s
