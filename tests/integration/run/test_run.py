# SPDX-License-Identifier: Apache-2.0
"""`paralet run` as a user runs it, on a real fabric: its results, its failures, and that nothing of it stays."""

from __future__ import annotations

import csv
import json
import os
import pty
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
import yaml

from emul import sandbox
from testbed.live.runs_so_far import Began, Finished, entries

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
MARK = "PARALET_RUN_TEST"
PARALET = (sys.executable, "-c", "from testbed.cli import main; main()")


def spec(**changes: Any) -> dict[str, Any]:
    """Four hosts on two leaves; every hop of their ring crosses leaves."""
    return {
        "name": "small",
        "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "20 Mbit/s"}},
        "workload": {"kind": "ring_allreduce", "bytes": 400_000},
        "placement": {"rule": "cross_leaf"},
        "policies": [
            {"name": "ecmp", "policy": "ecmp"},
            {"name": "paralet-4", "policy": "ecmp", "m": 4},
            {"name": "pinned", "policy": "pinned"},
        ],
        "path_mtu": 2048,
        **changes,
    }


STUCK: dict[str, Any] = {
    "timeouts": {"run_s": 0.5},
    "events": [{"at_s": 0.05, "links": {"h1:1": {"loss": "100 %"}}}],
}
"""Changes after which a run of `spec` cannot end: the ideal is 0.24 s."""


class Paralet:
    """Starts the command with a mark in its environment, which all that it starts inherits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.argv: Sequence[str] = PARALET

    def write(self, document: dict[str, Any]) -> Path:
        path = self.folder / "spec.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def start(self, document: dict[str, Any], *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.argv, "run", self.write(document), "--results", self.folder / "results", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self.mark},
        )

    def run(self, document: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
        process = self.start(document, *options)
        out, errors = process.communicate(timeout=100)
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    def left_over(self) -> list[str]:
        """Processes that carry the mark."""
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{MARK}={self.mark}".encode() in environment.read_bytes().split(b"\0"):
                    found.append((environment.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # it has ended meanwhile
        return found


@pytest.fixture
def paralet(tmp_path: Path) -> Iterator[Paralet]:
    interfaces = sorted(os.listdir("/sys/class/net"))
    command = Paralet(tmp_path)
    yield command
    assert command.left_over() == []
    assert sorted(os.listdir("/sys/class/net")) == interfaces


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read what `process` says until a line of it has `text`."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"the run ended without saying {text!r}")


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("ring_allreduce", 400_000),
        ("ring_allreduce", 100_000),
        ("permutation", 100_000),
        ("pairwise_alltoall", 400_000),
    ],
)
def test_every_workload_is_verified_and_goes_as_predicted(paralet: Paralet, kind: str, size: int) -> None:
    """Short messages beat their rate by the burst of shaped ports, which the ideal leaves out."""
    done = paralet.run(spec(workload={"kind": kind, "bytes": size}), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert all(policy["verified"] for policy in summary["policies"])
    assert 0 < summary["predictions"]["checked"] == summary["predictions"]["matched"]
    assert all(min(policy["completions_s"]) > summary["ideal_s"] for policy in summary["policies"])
    folder = paralet.folder / "results" / "small"
    assert (folder / "report.html").stat().st_size > 100_000
    assert (folder / "logs" / "agent-h1.log").read_text() == ""


def test_pinned_flows_share_no_uplink(paralet: Paralet) -> None:
    done = paralet.run(spec(), "--policy", "pinned", "--seeds", "2", "--json")
    assert done.returncode == 0, done.stderr
    with (paralet.folder / "results" / "small" / "links.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["uplink_to"]]
    assert len(rows) == 2 * 4
    share = 2 * 3 * 400_000 // 4
    for row in rows:  # control messages, packets sent again, headers and acknowledgements add a little
        assert share <= int(row["predicted_payload_bytes"]) < 1.2 * share
        assert share < int(row["tx_bytes"]) < 1.3 * share


def test_a_run_that_exceeds_its_timeout_gives_one_sentence(paralet: Paralet) -> None:
    done = paralet.run(spec(**STUCK))
    assert done.returncode == 1
    *_, sentence = done.stderr.splitlines()
    assert sentence.startswith("paralet: the agent on h")
    assert "still waited for slice" in sentence
    log = Path(sentence.rpartition("its log is ")[2])
    assert "TransferTimeout" in log.read_text()
    assert not (paralet.folder / "results" / "latest").exists()


# Until a Ctrl-C, after a line of progress: the fabric comes up; agents get ready; connections are made; data flows.
@pytest.mark.parametrize(
    ("line", "delay_s"),
    [("bringing up", 0.0), ("bringing up", 0.4), ("ecmp (m = 1)", 0.0), ("ecmp (m = 1)", 0.3), ("ecmp (m = 1)", 1.5)],
)
def test_ctrl_c_ends_with_130_and_leaves_nothing(paralet: Paralet, line: str, delay_s: float) -> None:
    process = paralet.start(spec(workload={"kind": "ring_allreduce", "bytes": 40_000_000}))
    wait_for(process, line)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    # An interrupted run is not even given the time that others have. Had it to be killed, its status would be 1.
    out, errors = process.communicate(timeout=sandbox.GRACE_S)
    assert process.returncode == 130, errors
    assert out == ""
    assert errors.splitlines()[-1] == "paralet: interrupted"
    assert "Traceback" not in errors


def test_ctrl_c_leaves_the_terminal_in_order(paralet: Paralet) -> None:
    spec_file = paralet.write(spec(workload={"kind": "ring_allreduce", "bytes": 40_000_000}))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        argv = [*paralet.argv, "run", str(spec_file), "--results", str(paralet.folder / "results")]
        os.execvpe(argv[0], argv, {**os.environ, MARK: paralet.mark, "TERM": "xterm"})
    text = b""
    while b"ecmp" not in text:
        text += os.read(terminal, 10_000)
    os.write(terminal, b"\x03")
    with suppress(OSError):  # EIO: the other end is closed
        while True:
            text += os.read(terminal, 10_000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    show_cursor, hide_cursor, clear_line = b"\x1b[?25h", b"\x1b[?25l", b"\r\x1b[2K"
    assert text.rindex(show_cursor) > text.rindex(hide_cursor)
    assert text.endswith(clear_line + b"paralet: interrupted\r\n")


def watched(paralet: Paralet, document: dict[str, Any], awaited: bytes, key: bytes) -> tuple[int, bytes]:
    """The exit status and the output of a run with --watch, in which `key` is pressed once `awaited` was shown."""
    spec_file = paralet.write(document)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        argv = [*paralet.argv, "run", str(spec_file), "--results", str(paralet.folder / "results"), "--watch"]
        os.execvpe(argv[0], argv, {**os.environ, MARK: paralet.mark, "TERM": "xterm-256color"})
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    text, pressed = b"", False
    with suppress(OSError):  # EIO: the other end is closed
        while True:
            text += os.read(terminal, 10_000)
            if awaited in text and not pressed:
                os.write(terminal, key)
                pressed = True
    os.close(terminal)
    assert pressed, text[-3000:]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


LONG = {"kind": "ring_allreduce", "bytes": 40_000_000}


def test_a_watched_run_ends_with_its_results(paralet: Paralet) -> None:
    status, text = watched(paralet, spec(), b"of 3 runs", b"s")
    assert status == 0
    assert b"leaf1" in text
    after = text[text.rindex(b"\x1b[?1049l") :]  # the end of the alternate screen
    assert b"paralet-4" in after
    assert b"Report: " in after
    with (paralet.folder / "results" / "small" / "logs" / "journal.jsonl").open() as lines:
        journal = entries(lines)
    assert [type(entry) for entry in journal] == [Began, Finished] * 3


def test_ctrl_c_in_the_view_ends_the_run(paralet: Paralet) -> None:
    status, text = watched(paralet, spec(workload=LONG), b"4 devices", b"\x03")
    assert status == 130
    assert text.rstrip().endswith(b"paralet: interrupted")


def test_the_run_goes_on_without_its_view(paralet: Paralet) -> None:
    status, text = watched(paralet, spec(), b"of 3 runs", b"q")
    assert status == 0
    assert b"the run goes on, with its progress in " in text
    assert b"Report: " in text


def test_a_watched_run_that_fails_says_why(paralet: Paralet) -> None:
    status, text = watched(paralet, spec(**STUCK), b"of 3 runs", b"s")
    assert status == 1
    assert b"still waited for slice" in text[text.rindex(b"\x1b[?1049l") :]


def test_a_killed_run_leaves_nothing(paralet: Paralet) -> None:
    process = paralet.start(spec(workload={"kind": "ring_allreduce", "bytes": 40_000_000}))
    wait_for(process, "ecmp (m = 1)")
    process.kill()
    process.communicate(timeout=30)  # the pipes close when the last process that inherited them is gone


def test_ranks_that_train_compute_and_send_real_packets(paralet: Paralet) -> None:
    """Two models side by side; every gradient and activation is compared, and nobody is done before it has computed."""
    models = [
        {"model": "bloom", "tensor": 1, "pipeline": 2, "data": 2, "microbatches": 2, "compute_s": 0.6},
        {"model": "gpt3", "tensor": 1, "pipeline": 1, "data": 2, "zero": 3, "compute_s": 0.3},
    ]
    sizes = {"part_bytes": 65_536, "activation_bytes": 16_384}
    workload = {"kind": "training", "iterations": 2, "models": [{**model, **sizes} for model in models]}
    topology = {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 3, "host_rate": "20 Mbit/s"}}
    done = paralet.run(
        spec(topology=topology, workload=workload, placement={"rule": "packed"}, seeds=[1]),
        *("--policy", "paralet-4", "--json"),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    (policy,) = summary["policies"]
    assert policy["verified"]
    assert policy["completions_s"][0] > summary["ideal_s"] > 2 * 0.6


def test_captures_land_in_the_logs(paralet: Paralet) -> None:
    done = paralet.run(spec(pcap=["leaf1:3"]), "--policy", "ecmp")
    assert done.returncode == 0, done.stderr
    capture = paralet.folder / "results" / "small" / "logs" / "pcap" / "leaf1-3.pcap"
    assert capture.stat().st_size > 1000


def test_without_open_vswitch_it_is_refused(paralet: Paralet) -> None:
    """As on a machine that lacks the package: in a mount namespace of its own something else lies over the tools."""
    tools = [tool for name in ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl") if (tool := shutil.which(name))]
    hidden = " && ".join(f"mount --bind /dev/null {shlex.quote(tool)}" for tool in tools)
    paralet.argv = ("unshare", "--mount", "sh", "-c", f'{hidden} && exec "$@"', "sh", *PARALET)
    done = paralet.run(spec())
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("paralet: Open vSwitch: missing: ovsdb-server, ovs-vswitchd, ovs-vsctl; try: apt")
    assert done.stderr.count("\n") == 1
    assert not (paralet.folder / "results").exists()
