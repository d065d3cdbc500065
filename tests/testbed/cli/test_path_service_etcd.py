# SPDX-License-Identifier: Apache-2.0
"""`paralet path-service run --etcd` as processes: one is stopped and goes on, and one is killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sdn.path_service.consensus.etcd_process import etcd, needs_etcd
from tests.testbed.cli.test_path_service import TIMEOUT_S, paralet
from tests.testbed.cli.test_path_service_control import TOPOLOGY, started

TOKEN = "a-token-of-the-two"


@needs_etcd
def test_the_other_one_leads_while_one_is_stopped_or_dead(tmp_path: Path) -> None:
    topology = tmp_path / "fabric.yaml"
    topology.write_text(TOPOLOGY)
    one, other = folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)

    def status(folder: Path) -> dict[str, Any]:
        said = paralet("status", "--token-file", folder / "token", "--json")
        assert said.exit_code == 0, said.stderr
        return dict(json.loads(said.stdout)["availability"])

    with etcd(tmp_path) as (member,):
        option = ("--etcd", member.url, "--lease", "3")
        with started(one, topology, *option) as (first, *_):
            until(lambda: status(one)["role"] == "leading")
            with started(other, topology, *option) as (second, *_):
                until(lambda: status(one)["followed"] and status(other)["role"] == "following")
                assert paralet("drain", "spine2", "--token-file", one / "token").exit_code == 0
                told = paralet("status", "--token-file", one / "token").stdout
                assert "; another one waits" in told
                first.send_signal(signal.SIGSTOP)
                until(lambda: status(other)["role"] == "leading")
                assert "drained: spine2, empty" in paralet("status", "--token-file", other / "token").stdout
                first.send_signal(signal.SIGCONT)
                until(lambda: status(one)["role"] == "following")
                generation = status(other)["generation"]
                assert status(one)["generation"] == generation > 1
                second.kill()
                until(lambda: status(one)["role"] == "leading")
                assert status(one)["generation"] > generation
                assert not list(one.glob("*.state")), "the state is in etcd"
                first.send_signal(signal.SIGTERM)
                assert first.wait(TIMEOUT_S) == 0
                assert member.ask("/v3/lease/leases", {}).get("leases", []) == []


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--etcd", "10.0.0.7:2379"], "write http://HOST:PORT or https://HOST:PORT"),
        (["--etcd", "http://127.0.0.1:1", "--peer", "127.0.0.1:2"], "services need no --peer"),
        (["--etcd", "http://127.0.0.1:1", "--state", "x"], "their state is in etcd"),
        (["--etcd", "http://127.0.0.1:1", "--etcd-ca", "FILE"], "--etcd-ca is for etcd at https://"),
        (["--etcd", "https://127.0.0.1:1", "--etcd-key", "FILE"], "--etcd-key needs --etcd-cert"),
        (["--etcd", "https://127.0.0.1:1", "--etcd-ca", "FILE"], "cannot be read"),
        (["--etcd-cert", "FILE"], "--etcd-cert needs --etcd"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: list[str], said: str) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(TOPOLOGY)
    given = [str(file) if option == "FILE" else option for option in options]
    refused = paralet("run", "--topology", file, "--token-file", tmp_path / "token", *given)
    assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
