# SPDX-License-Identifier: Apache-2.0
"""`paralet stat` beside a running job: it shows devices inside a sandbox, but not those of other users."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hostlib.published import Limits

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0
MESSAGES = 20
JOB = (sys.executable, str(ROOT / "tests" / "hostlib" / "stats_process.py"), str(MESSAGES))
SANDBOXED_JOB = (sys.executable, "-m", "emul.sandbox", "sh", "-c", 'ip link set lo up && exec "$@" < "$0"')
STAT = (sys.executable, "-c", "from testbed.cli import main; main()", "stat")


@contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """A job that has moved its messages and goes on; killed in the end."""
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def stat(*options: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*prefix, *STAT, *options], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)


def shown(*options: str) -> list[dict[str, Any]]:
    """The processes that are shown, once their last messages are."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        done = stat("--json", *options)
        found = json.loads(done.stdout)["processes"] if done.returncode == 0 else []
        if any(device["messages"]["sends"] == MESSAGES for process in found for device in process["devices"]):
            return list(found)
        assert time.monotonic() < deadline, done
        time.sleep(0.1)


def test_devices_in_a_sandbox_are_seen_from_outside(tmp_path: Path) -> None:
    # The sandbox takes no standard input of ours: the job waits on a pipe that nobody writes to.
    waiting = tmp_path / "waiting"
    os.mkfifo(waiting)
    with waiting.open("r+b", buffering=0), running(*SANDBOXED_JOB, str(waiting), *JOB):
        (process,) = [process for process in shown() if "stats_process.py" in process["command"]]
        one, two = process["devices"]
        assert (one["address"], two["address"]) == ("127.0.0.1", "127.0.0.2")
        assert one["owner_pid"] == two["owner_pid"] != process["pid"]  # inside it has another number
        assert [lane["lane"] for lane in one["lanes"]] == list(range(4))
        table = stat(str(process["pid"]), "--interval", "0.1")
        assert table.returncode == 0
        assert "2 devices, 8 lanes" in table.stdout


def test_another_user_is_not_shown_a_job(tmp_path: Path) -> None:
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
    if subprocess.run([*nobody, "test", "-r", str(ROOT / "pyproject.toml")]).returncode:
        pytest.skip(f"the user nobody cannot read {ROOT}, so it cannot run paralet there")
    with running(*JOB) as job:
        assert [process["pid"] for process in shown(str(job.pid))] == [job.pid]
        refused = stat(str(job.pid), prefix=nobody)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"try sudo paralet stat {job.pid}" in refused.stderr
        unseen = stat("--json", prefix=nobody)
        assert str(job.pid) not in unseen.stdout


CLAIM = """
import os, struct, sys
from tests.hostlib.test_stats import snapshot, with_checksum
address, port = map(int, sys.argv[1:])
false = bytearray(snapshot(lanes=1, pid=os.getpid())[16:])
struct.pack_into("=II", false, 96, address, port)  # after the texts of the device's record
for content in (with_checksum(bytes(false)), with_checksum(bytes(false)), snapshot(lanes=20_000, pid=os.getpid())):
    os.write(os.memfd_create("paralet-stats"), content)
print("ready", flush=True)
sys.stdin.read()
"""
"""Publishes two snapshots with this address and port, and one with 20,000 lanes."""


def test_what_another_user_makes_up_costs_little_and_names_its_user() -> None:
    """A user publishes the address and port of root's device twice, and 20,000 lanes."""
    network = f"127.{1 + os.getpid() // 256 % 250}.{os.getpid() % 256}"  # other tests beside this one have devices too
    with running(*JOB, network) as started:
        (job,) = shown(str(started.pid))
        assert job["uid"] == 0
        taken = job["devices"][0]
        address = int.from_bytes(socket.inet_aton(taken["address"]), "big")
        claim = [sys.executable, "-c", CLAIM, str(address), str(taken["udp_port"])]
        with subprocess.Popen(
            claim, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, user=65534, group=65534, extra_groups=[],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as liar:  # fmt: skip
            try:
                assert liar.stdout is not None
                assert liar.stdout.readline() == "ready\n"
                done = stat("--prometheus", "--by", "lane")
            finally:
                liar.kill()
    assert done.returncode == 0, done.stderr
    series = [line.rpartition(" ")[0] for line in done.stdout.splitlines() if not line.startswith("#")]
    assert max(Counter(series).values()) == 1
    mine = [line for line in series if f'device="{taken["address"]}"' in line]
    assert mine
    assert all('uid="0"' in line for line in mine)
    lanes = [line for line in series if line.startswith("paralet_lane_moves_total") and 'uid="65534"' in line]
    assert 0 < len(lanes) <= Limits().process.lanes
    assert f"process {liar.pid} of user 65534: it has more lanes" in done.stderr or "lanes are left out" in done.stderr
    assert f"process {liar.pid} of user 65534 claims {taken['address']}:{taken['udp_port']}" in done.stderr
    (left_out,) = re.findall(r"^paralet_stat_left_out (\S+)$", done.stdout, re.MULTILINE)
    assert float(left_out) >= 2
