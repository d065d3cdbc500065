# SPDX-License-Identifier: Apache-2.0
"""What `paralet pin --check` prints of an agent's report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from netmodel.probing.observations import Observation, ProbeFile, save
from paralet_pin import check
from testbed.cli import pin
from testbed.errors import InputError
from tests.testbed.live.pinned_flows import FLOW, OTHER, report

WAITING = check.Waiting(
    pid=7, what="socket 5", protocol="tcp", local="10.0.0.1", remote="10.0.0.2", remote_port=5, waited_s=1.26
)


def lines(said: check.Report, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[str]:
    monkeypatch.setattr(check, "ask", lambda agent: said)
    monkeypatch.setattr(check, "agent_of", lambda pid: pid)
    monkeypatch.setattr(check, "children_of", lambda pid: {pid})
    return CliRunner().invoke(pin.pin, ["--check", "7", *more]).output.splitlines()


def test_connections_that_wait_are_told_and_the_longest_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    said = msgspec.structs.replace(report(FLOW, others=(OTHER,)), waiting=[WAITING], longest_wait_s=1.84)
    first, *rest = lines(said, monkeypatch)
    assert first.endswith(", connections waited up to 1.8 s")
    assert rest[1] == "7 socket 5, tcp to 10.0.0.2:5: waits for its port, 1.3 s so far"


def test_the_path_of_a_connection_is_told_and_whether_the_plan_has_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on = msgspec.structs.replace(FLOW, path=["h1:1", "leaf1:3"])
    left = msgspec.structs.replace(on, planned_port=60000)
    probed = msgspec.structs.replace(on, probed_s=35.4)
    _, *said = lines(report(on, left, FLOW, probed), monkeypatch)
    begin = "7 socket 3, tcp to 10.0.0.2:5 from port 50001: planned"
    assert said == [
        f"{begin} by h1:1 leaf1:3, 1000 bytes",
        f"{begin}, began by h1:1 leaf1:3, 1000 bytes, the plan now has port 60000",
        f"{begin}, 1000 bytes",
        f"{begin} by h1:1 leaf1:3 (probed 35 s ago), 1000 bytes",
    ]


def test_paths_may_come_from_what_was_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "node1.json"
    seen = Observation(FLOW.local, FLOW.remote, "tcp", FLOW.port, FLOW.remote_port, 2, "hop", "172.16.0.1", 0.001, 1.0)
    save(file, ProbeFile("h1", "2026-11-28T00:00:00Z", (seen,)))
    _, line = lines(report(FLOW), monkeypatch, "--probed", str(file))
    assert line.endswith("planned by 172.16.0.1, 1000 bytes")


@pytest.mark.parametrize(
    "words",
    [
        ["--probed", "node1.json", "true"],
        ["--probed", "node1.json", "--variables", "7"],
    ],
)
def test_files_of_probes_are_for_check_alone(words: list[str]) -> None:
    done = CliRunner().invoke(pin.pin, words)
    assert done.exit_code == 2
    assert "--probed goes with --check" in done.output


def test_a_file_of_probes_that_began_at_no_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "node1.json"
    save(file, ProbeFile("h1", "\x1b[2J", ()))
    monkeypatch.setattr(check, "ask", lambda agent: report(FLOW))
    monkeypatch.setattr(check, "agent_of", lambda pid: pid)
    monkeypatch.setattr(check, "children_of", lambda pid: {pid})
    with pytest.raises(InputError, match=r"'\\x1b\[2J' is no time at which the probes of 'h1' began"):
        CliRunner().invoke(pin.pin, ["--check", "7", "--probed", str(file)], catch_exceptions=False)


def test_waits_of_milliseconds_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = lines(msgspec.structs.replace(report(FLOW), longest_wait_s=0.004), monkeypatch)
    assert "waited" not in first
