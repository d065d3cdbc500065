# SPDX-License-Identifier: Apache-2.0
"""scripts/aside.sh: what computes beside tests."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "aside.sh"
LIMIT_S = 60


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_status_is_the_commands(tmp_path: Path, is_refused: bool) -> None:
    """Also where a container refuses the scheduler's idle class: then the command has the lowest priority."""
    if is_refused:
        (tmp_path / "chrt").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "chrt").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    shown = "echo $(nice) $(chrt -p $$ 2>/dev/null | head -n 1); exit 7"
    done = subprocess.run(
        [SCRIPT, "sh", "-c", shown], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 7
    assert done.stdout.startswith("19") if is_refused else "SCHED_IDLE" in done.stdout


def test_the_command_ends_with_whoever_waits_for_it() -> None:
    """The command has a session of its own, which a signal to the waiting one's group does not reach."""
    words = [SCRIPT, "sh", "-c", "echo $$; exec sleep 1000"]
    waiting = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, process_group=0)  # so that setsid forks
    assert waiting.stdout is not None
    command = os.pidfd_open(int(waiting.stdout.readline()))
    try:
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.wait()
        assert select.select([command], [], [], LIMIT_S)[0]  # it has ended
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(command, signal.SIGKILL)
        os.close(command)
        waiting.stdout.close()


def test_the_command_can_be_stopped_for_a_while_with_all_that_it_started(tmp_path: Path) -> None:
    group = tmp_path / "group"
    # A shell gives what it starts in the background no input but /dev/null, unless it is named.
    words = [SCRIPT, "sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait"]
    variables = {**os.environ, "PARALET_ASIDE": str(group)}
    with subprocess.Popen(words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        number = int(waiting.stdout.readline())

        def state() -> str:
            return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]

        os.killpg(int(group.read_text()), signal.SIGSTOP)
        until = time.monotonic() + LIMIT_S
        while state() != "T":
            assert time.monotonic() < until
            time.sleep(0.01)
        os.killpg(int(group.read_text()), signal.SIGCONT)
        waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == 0
