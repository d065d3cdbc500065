# SPDX-License-Identifier: Apache-2.0
"""The last release's host library with today's, with today's path service, and the other way round (docs/upgrading.md).

`make test-upgrade` builds the last release and runs this.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAST = Path(os.environ.get("PARALET_LAST_RELEASE", ""))
"""A checkout of the last release, with its engine built in place."""
TIMEOUT_S = 120
BOTH = {"last": LAST, "this": ROOT}
FABRIC = """
from netmodel import dump_topology, leaf_spine
print(dump_topology(leaf_spine(2, 2, 2, 10**10)).replace("10.0.", "127.0."))
"""
SERVICE = {"last": "PARALET_CONTROLLER", "this": "PARALET_PATH_SERVICE"}
"""The variable with the path service's address."""
HERE, THERE = "127.0.0.1", "127.0.1.1"
"""Hosts of different leaves."""

pytestmark = pytest.mark.skipif(not LAST.name, reason="PARALET_LAST_RELEASE is not set: `make test-upgrade`")


def environment(release: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
    return {**kept, "PYTHONPATH": str(BOTH[release]), "PARALET_BACKEND": "soft", **more}


@contextmanager
def killed_late(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Kills these processes after a time, so that nothing waits for ever for what they say."""

    def kill() -> None:
        for process in processes:
            process.kill()

    timer = threading.Timer(TIMEOUT_S, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def host(
    release: str, address: str, role: str, listens: str, token: Path | None, errors: IO[str]
) -> subprocess.Popen[str]:
    """A host of this release, which runs talk.py."""
    more = {}
    if listens:
        name = SERVICE[release]
        more = {"PARALET_POLICY": "controller", name: listens, f"{name}_TOKEN_FILE": str(token)}
        more |= {"PARALET_ELEPHANT_BYTES": "1MiB", "PARALET_ASSIGN_WAIT": "30s"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "deploy" / "talk.py"), address, role],
        cwd=BOTH[release],
        env=environment(release, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def talk(releases: tuple[str, str], listens: str = "", token: Path | None = None) -> list[dict[str, Any]]:
    """What a host of each of these releases says after they have sent each other messages.

    Both are hosts of the path service that listens there, if one does.
    """
    with tempfile.TemporaryFile("w+") as errors:
        listening = host(releases[0], HERE, "listen", listens, token, errors)
        connecting = host(releases[1], THERE, "connect", listens, token, errors)
        processes = [listening, connecting]
        try:
            with killed_late(*processes):
                assert listening.stdout is not None
                assert connecting.stdin is not None
                with suppress(BrokenPipeError):  # it has ended, which its return code says
                    connecting.stdin.write(listening.stdout.readline())
                    connecting.stdin.flush()
                said = [process.stdout.readline() for process in processes if process.stdout is not None]
                for process in processes:
                    process.communicate()
            errors.seek(0)
            assert [process.returncode for process in processes] == [0, 0], errors.read()
            return [json.loads(line) for line in said]
        finally:
            for process in processes:
                process.kill()
                process.wait()


@contextmanager
def path_service(release: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Where a path service of this release listens, and its token file."""
    fabric, token = folder / "fabric.yaml", folder / "token"
    run: dict[str, Any] = {"cwd": BOTH[release], "env": environment(release), "text": True, "stdout": subprocess.PIPE}
    fabric.write_text(subprocess.run([sys.executable, "-c", FABRIC], check=True, **run).stdout)
    argv = [sys.executable, "-m", "testbed", "path-service", "run", "--topology", str(fabric), "--json"]
    argv += ["--token-file", str(token), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, **run) as process:
        try:
            assert process.stdout is not None
            with killed_late(process):
                said = process.stdout.readline()
            yield json.loads(said)["listen"], token
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("releases", [("last", "this"), ("this", "last")], ids=["to this", "to the last"])
def test_hosts_of_both_releases_send_to_each_other(releases: tuple[str, str]) -> None:
    first, second = talk(releases)
    same, other = talk(("this", "this"))
    assert (first["sha256"], second["sha256"]) == (same["sha256"], other["sha256"])


@pytest.mark.parametrize("release", ["last", "this"])
@pytest.mark.parametrize("hosts", [("last", "last"), ("this", "this"), ("last", "this")], ids=" and ".join)
def test_the_path_service_of_either_release_serves_hosts_of_both(
    release: str, hosts: tuple[str, str], tmp_path: Path
) -> None:
    with path_service(release, tmp_path) as at:
        said = talk(hosts, *at)
    assert all(each["assigned"] for each in said), f"no elephant got ports: {said}"
