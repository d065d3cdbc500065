# SPDX-License-Identifier: Apache-2.0
"""However a sandbox ends, nothing of it remains, and nothing outside it changes."""

from __future__ import annotations

import ast
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emul import sandbox

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TOKEN_VARIABLE = "PARALET_TEST_TOKEN"
GONE_TIMEOUT_S = 60.0


@dataclass
class Run:
    """A fabric in a sandbox, started by the command line of `emul.sandbox`. A token marks all its processes."""

    log_dir: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    namespace: str = ""
    fabric: str = "mininet"
    inside: dict[int, str] = field(default_factory=dict)
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        script = HERE / "fabric_that_waits.py"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "emul.sandbox", sys.executable, str(script), str(self.log_dir), self.fabric],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), TOKEN_VARIABLE: self.token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait_until_up(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("namespace"):
                self.namespace = line.split()[1]
            if line == "up\n":
                members = [pid for pid in all_processes() if namespace(pid) == self.namespace]
                self.inside = {pid: start_time(pid) for pid in members}
                return
        pytest.fail(f"the fabric did not come up; see {self.log_dir}")

    def processes(self) -> list[int]:
        """Every process that descends from this run, also after its parent has changed."""
        return [pid for pid in all_processes() if f"{TOKEN_VARIABLE}={self.token}" in environment(pid)]

    def alive(self) -> list[int]:
        """The same, and those that were in its namespace once it was up, whose number another one may have by now."""
        return self.processes() + [pid for pid, start in self.inside.items() if start and start_time(pid) == start]

    def wait_until_gone(self) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while alive := self.alive():
            assert time.monotonic() < deadline, [(pid, commandline(pid)) for pid in alive]
            time.sleep(0.05)
        self.process.wait()
        self.process.stdout.close()


def all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def commandline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def start_time(pid: int) -> str:
    """When a process began, which tells it from a later one with its number; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def outside() -> tuple[list[str], list[str], list[str]]:
    """What the sandbox must not change: links and mounts of this namespace, and our files in shared scratch folders."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    scratch = [name for name in ("ovs", "bystander", "scratch") if (sandbox.SCRATCH_DIR / name).exists()]
    return sorted(os.listdir("/sys/class/net")), mounts, scratch


@pytest.fixture
def unchanged_outside() -> Iterator[None]:
    before = outside()
    yield
    assert outside() == before


pytestmark = [pytest.mark.usefixtures("unchanged_outside"), pytest.mark.long]


NOT_UNDER_NOHUP = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="these tests run under nohup, which is respected"
)


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=NOT_UNDER_NOHUP)],
)
def test_a_signal_to_the_starter_removes_a_running_fabric(number: int, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.wait_until_up()
    assert len(run.processes()) > 8
    run.process.send_signal(number)
    run.wait_until_gone()
    assert run.process.returncode == (128 + number if number in (signal.SIGINT, signal.SIGTERM) else -number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_removes_a_running_fabric_of_routers_with_all_daemons(number: int, tmp_path: Path) -> None:
    run = Run(tmp_path, fabric="routed")
    run.wait_until_up()
    names = [Path(commandline(pid)[0]).name for pid in run.processes() if commandline(pid)]
    assert names.count("bgpd") == names.count("zebra") == 4
    run.process.send_signal(number)
    run.wait_until_gone()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.1, 0.3, 0.6, 0.9])
def test_a_signal_during_startup_removes_the_fabric(number: int, delay_s: float, tmp_path: Path) -> None:
    run = Run(tmp_path)
    time.sleep(delay_s)
    run.process.send_signal(number)
    run.wait_until_gone()
    assert run.process.returncode != 0


@pytest.mark.parametrize("victim", ["unshare", "sandbox_init.py", "fabric_that_waits.py"])
def test_killing_one_process_removes_the_fabric(victim: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.wait_until_up()
    pid = next(
        pid
        for pid in run.processes()
        if (words := commandline(pid))
        and (words[0] == victim or any(word.endswith(victim) for word in words[1:5]))
        and ("unshare" in words) == (victim == "unshare")
        and "emul.sandbox" not in words
    )
    os.kill(pid, signal.SIGKILL)
    run.wait_until_gone()
    assert run.process.returncode != 0


def test_another_ovs_on_the_machine_keeps_running(tmp_path: Path) -> None:
    lifeline, held = os.pipe()
    argv = [sys.executable, str(HERE / "bystander.py"), str(tmp_path / "bystander")]
    with subprocess.Popen(
        sandbox.namespace_argv(lifeline, argv),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(lifeline,),
    ) as bystander:
        os.close(lifeline)
        assert bystander.stdin is not None
        assert bystander.stdout is not None

        def state() -> str:
            assert bystander.stdin is not None
            assert bystander.stdout is not None
            print("state", file=bystander.stdin, flush=True)
            return bystander.stdout.readline()

        before, system = state(), system_ovs()
        assert before.startswith("['leaf1'] 1 ")
        for number in (signal.SIGINT, signal.SIGKILL):
            run = Run(tmp_path / "fabric")
            run.wait_until_up()
            assert state() == before
            run.process.send_signal(number)
            run.wait_until_gone()
            assert state() == before
        assert system_ovs() == system
        bystander.stdin.close()
        assert bystander.wait(GONE_TIMEOUT_S) == 0
    os.close(held)


def system_ovs() -> str | None:
    """The state of the machine's own Open vSwitch, as it reports it; None if it does not run."""
    shown = subprocess.run(["ovs-vsctl", "--timeout=2", "show"], capture_output=True, text=True)
    return shown.stdout if shown.returncode == 0 else None


def test_exit_status_and_output_are_those_of_the_command() -> None:
    assert sandbox.run(["sh", "-c", "exit 7"]) == 7
    assert sandbox.run(["sh", "-c", "kill -TERM $$"]) == 128 + signal.SIGTERM
    done = subprocess.run(
        [sys.executable, "-m", "emul.sandbox", "no-such-command"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 127
    assert done.stderr == "sandbox: cannot run no-such-command: No such file or directory\n"


def test_the_sandbox_has_separate_namespaces(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = (
        "import os, pathlib, socket;"
        "from emul import sandbox;"
        "server = socket.create_server(('127.0.0.1', 80));"  # loopback is up and not shared
        "pathlib.Path('/dev/shm/scratch').write_text('x');"
        "pathlib.Path(os.environ['SEEN']).write_text(repr((sandbox.inside(), sorted(os.listdir('/sys/class/net')),"
        " os.getpid() < 10, os.listdir('/dev/shm'))))"
    )
    assert sandbox.run([sys.executable, "-c", script], env={**os.environ, "SEEN": str(seen)}, cwd=ROOT) == 0
    inside, links, low_pid, scratch = ast.literal_eval(seen.read_text())
    assert inside
    assert "lo" in links
    assert not any(name.startswith("e") for name in links)
    assert low_pid
    assert scratch == ["scratch"]
    assert not sandbox.inside()


@pytest.mark.parametrize("ending", ["exit 0", "kill -KILL $$"])
def test_orphans_of_the_command_end_with_it(ending: str) -> None:
    token = uuid.uuid4().hex
    sandbox.run(["sh", "-c", f"setsid sleep 1000 & {ending}"], env={**os.environ, TOKEN_VARIABLE: token})
    assert not any(f"{TOKEN_VARIABLE}={token}" in environment(pid) for pid in all_processes())


COUNTS_INTERRUPTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
end = time.monotonic() + 20
while not seen and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(0.5)
print("interrupts", len(seen), flush=True)
sys.exit(40 + len(seen))
"""


def test_ctrl_c_at_a_terminal_reaches_the_command_once() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "emul.sandbox", sys.executable, "-c", COUNTS_INTERRUPTS])
    text = b""
    while b"ready" not in text:
        text += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 41


def test_an_interrupt_of_the_starter_alone_reaches_the_command_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "emul.sandbox", sys.executable, "-c", COUNTS_INTERRUPTS],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        starter.send_signal(signal.SIGINT)
        assert starter.wait(GONE_TIMEOUT_S) == 41


IGNORES_INTERRUPTS = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""


@contextmanager
def started(program: str, grace_s: float, path: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a Python program in a sandbox and exits with the status of `sandbox.run`."""
    call = f"sandbox.run([sys.executable, '-c', {program!r}], grace_s={grace_s})"
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; from emul import sandbox; sys.exit({call})"],
        cwd=ROOT,
        env={**os.environ, "PATH": path or os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as starter:
        yield starter


def test_a_command_that_ignores_the_first_interrupt_is_killed_by_the_second() -> None:
    with started(IGNORES_INTERRUPTS, grace_s=1000.0) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        starter.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert starter.poll() is None
        starter.send_signal(signal.SIGINT)
        assert starter.wait(GONE_TIMEOUT_S) == 128 + signal.SIGKILL


def test_a_command_that_ignores_an_interrupt_is_killed_after_the_grace_period() -> None:
    with started(IGNORES_INTERRUPTS, grace_s=0.5) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        starter.send_signal(signal.SIGINT)
        assert starter.wait(GONE_TIMEOUT_S) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_grace_a_signal_ends_a_command_that_ignores_it(number: int) -> None:
    with started(IGNORES_INTERRUPTS, grace_s=0.0) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        starter.send_signal(number)
        assert starter.wait(GONE_TIMEOUT_S) == 128 + number


@pytest.mark.parametrize("grace_s", [0.0, 1000.0])
def test_an_interrupt_during_startup_of_the_sandbox_is_not_lost(grace_s: float, tmp_path: Path) -> None:
    real = shutil.which("unshare")
    slow = tmp_path / "unshare"  # interrupts the starter before the sandbox has a process 1
    slow.write_text(f'#!/bin/sh\nkill -INT $PPID\nsleep 0.2\nexec {real} "$@"\n')
    slow.chmod(0o755)
    for _ in range(4):  # the signal may come before, during or after exec
        with started("import time; time.sleep(1000)", grace_s, f"{tmp_path}:{os.environ['PATH']}") as starter:
            assert starter.wait(GONE_TIMEOUT_S) == 128 + signal.SIGINT
