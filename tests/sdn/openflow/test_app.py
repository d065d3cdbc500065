# SPDX-License-Identifier: Apache-2.0
"""The OpenFlow app as a process: arguments, signals, events; and its handlers' guard."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netmodel import dump_topology, leaf_spine

pytest.importorskip("os_ken")

from os_ken.ofproto import ofproto_v1_5
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from sdn.openflow import runtime
from sdn.openflow.app import FabricApp

START_TIMEOUT_S = 100


@pytest.fixture
def topology_file(tmp_path: Path) -> Path:
    file = tmp_path / "topology.yaml"
    file.write_text(dump_topology(leaf_spine(2, 2, 1, 1_000_000)))
    return file


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def openflow_app(topology: Path | str, port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sdn.openflow.app", "--topology", str(topology), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_app_announces_that_it_listens_and_stops_on_a_signal(number: int, topology_file: Path) -> None:
    port = free_port()
    with openflow_app(topology_file, port) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"event": "listening", "port": port}
        with socket.create_connection(("127.0.0.1", port), timeout=START_TIMEOUT_S) as switch:
            assert switch.recv(1) == b"\x06"  # OpenFlow 1.5 hello
            process.send_signal(number)
            assert process.wait(START_TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("topology", "port", "sentence"),
    [("missing.yaml", 6653, "missing.yaml"), (None, 0, "port 0 is not in 1..65535")],
)
def test_wrong_arguments_give_one_sentence_and_status_2(
    topology: str | None, port: int, sentence: str, topology_file: Path
) -> None:
    process = openflow_app(topology or topology_file, port)
    _, errors = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode == 2
    assert errors.startswith("sdn.openflow.app: ")
    assert sentence in errors
    assert errors.count("\n") == 1


def test_a_port_in_use_is_reported_at_once(topology_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = openflow_app(topology_file, taken.getsockname()[1])
        _, errors = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode == 2
    assert "Address already in use" in errors


def test_a_failing_handler_is_announced_and_does_not_raise(capfd: pytest.CaptureFixture[str]) -> None:
    @runtime.guarded
    def on_trouble(_app: Any, _event: Any) -> None:
        raise RuntimeError("boom")

    on_trouble(None, None)  # type: ignore[arg-type]
    event = json.loads(capfd.readouterr().out)
    assert event["event"] == "error"
    assert "on_trouble" in event["detail"]
    assert "boom" in event["detail"]


class NewDatapath(ProtocolDesc):  # type: ignore[misc] # os-ken is not typed
    """A switch whose features have been announced before os-ken has set its id, as happens on a busy machine."""

    def __init__(self) -> None:
        super().__init__(ofproto_v1_5.OFP_VERSION)
        self.id: int | None = None
        self.sent: list[str] = []

    def set_xid(self, message: Any) -> None:
        message.set_xid(len(self.sent) + 1)

    def send_msg(self, message: Any) -> None:
        self.sent.append(type(message).__name__)


@pytest.mark.parametrize("dpid", [1, 4])
def test_a_switch_is_programmed_before_os_ken_has_set_the_id_of_its_datapath(
    dpid: int, capfd: pytest.CaptureFixture[str]
) -> None:
    datapath = NewDatapath()
    app = FabricApp(topology=leaf_spine(2, 2, 1, 1_000_000), pinning="hash")
    app.on_features(SimpleNamespace(msg=SimpleNamespace(datapath=datapath, datapath_id=dpid)))
    assert capfd.readouterr().out == ""
    assert {"OFPFlowMod", "OFPGroupMod", "OFPBarrierRequest", "OFPPortDescStatsRequest"} <= set(datapath.sent)


def test_a_switch_that_the_topology_lacks_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    datapath = NewDatapath()
    app = FabricApp(topology=leaf_spine(2, 2, 1, 1_000_000), pinning="hash")
    app.on_features(SimpleNamespace(msg=SimpleNamespace(datapath=datapath, datapath_id=5)))
    assert json.loads(capfd.readouterr().out)["detail"] == (
        "a switch with dpid 0x5, which is not in the topology, connected"
    )
    assert datapath.sent == []
