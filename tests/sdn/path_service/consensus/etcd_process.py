# SPDX-License-Identifier: Apache-2.0
"""Debian's etcd as processes, one for each member, on loopback addresses of this process alone."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FETCHED = Path(__file__).parents[4] / "build" / "etcd-server"
ETCD = shutil.which("etcd", path=f"{FETCHED}:{os.environ['PATH']}")
DEADLINE_S = 100.0
CLIENTS, PEERS = 2379, 2380
needs_etcd = pytest.mark.skipif(ETCD is None, reason="etcd is missing: make etcd")


def address(number: int) -> str:
    """The loopback address of a member: two processes that test at the same time have different ones."""
    pid = os.getpid() % (1 << 20)
    return f"127.{16 + 16 * number + (pid >> 16)}.{pid >> 8 & 0xFF}.{pid & 0xFF}"


class Member:
    """One member of an etcd."""

    def __init__(self, folder: Path, number: int, count: int, more: Sequence[str] = (), scheme: str = "http") -> None:
        self.at = address(number), CLIENTS
        self.url = f"{scheme}://{self.at[0]}:{CLIENTS}"
        peer = f"http://{self.at[0]}:{PEERS}"
        members = ",".join(f"m{i}=http://{address(i)}:{PEERS}" for i in range(count))
        assert ETCD is not None
        self._argv = [
            ETCD, "--name", f"m{number}", "--data-dir", str(folder / f"m{number}"), "--log-level", "error",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", members, *more,
        ]  # fmt: skip
        self._log = folder / f"m{number}.log"
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(self._argv, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ask(self, path: str, body: Any) -> Any:
        """The answer of this member, by plain HTTP. Raises OSError."""
        connection = http.client.HTTPConnection(*self.at, timeout=5)
        try:
            connection.request("POST", path, json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def leads(self) -> bool:
        """Whether this member leads the others."""
        try:
            said = self.ask("/v3/maintenance/status", {})
        except OSError:
            return False
        return said.get("leader", "0") == said["header"]["member_id"]

    def log(self) -> str:
        return self._log.read_text()[-2000:]


@contextmanager
def etcd(folder: Path, count: int = 1) -> Iterator[list[Member]]:
    """Members of one etcd, which have a leader."""
    members = [Member(folder, number, count) for number in range(count)]
    try:
        end_s = time.monotonic() + DEADLINE_S
        while not any(member.leads() for member in members):
            assert time.monotonic() < end_s, [member.log() for member in members]
            time.sleep(0.05)
        yield members
    finally:
        for member in members:
            member.kill()
