# SPDX-License-Identifier: Apache-2.0
"""An os-ken app of the user's as a process: how it is loaded, and what its mistakes look like."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netmodel import dump_topology, leaf_spine

pytest.importorskip("os_ken")

from os_ken.base.app_manager import OSKenApp
from os_ken.ofproto import ofproto_v1_3
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from sdn.openflow import own_app

START_TIMEOUT_S = 100

APP = """
import os
from os_ken.base.app_manager import OSKenApp
from netmodel import load_topology

class Mine(OSKenApp):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        print("I know of", len(load_topology(os.environ["PARALET_TOPOLOGY"]).switches), "switches")
"""


def started(tmp_path: Path, app: str | None, port: int) -> subprocess.Popen[str]:
    """The process of an app with this text, or of one that is missing."""
    file = tmp_path / "mine.py"
    if app is not None:
        file.write_text(app)
    topology = tmp_path / "topology.yaml"
    topology.write_text(dump_topology(leaf_spine(2, 2, 1, 1_000_000)))
    words = ["-m", "sdn.openflow.own_app", str(file), "--topology", str(topology), "--port", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *words], text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, **pipes)  # type: ignore[call-overload,no-any-return]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_what_an_app_prints_goes_to_the_log_and_events_to_standard_output(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, APP, port) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"event": "listening", "port": port}
        process.terminate()
        rest, log = process.communicate(timeout=START_TIMEOUT_S)
    assert (process.returncode, rest) == (0, "")
    assert "I know of 4 switches\n" in log


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        (None, "cannot be loaded: ModuleNotFoundError"),
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("class Mine: pass", "mine.py has no os-ken app, that is no class derived from os_ken.base.app_manager"),
    ],
)
def test_an_app_that_cannot_run_is_one_sentence_and_status_2(tmp_path: Path, app: str | None, sentence: str) -> None:
    process = started(tmp_path, app, free_port())
    events, log = process.communicate(timeout=START_TIMEOUT_S)
    assert (process.returncode, events) == (2, "")
    last = log.splitlines()[-1]
    assert last.startswith(f"sdn.openflow.own_app: {tmp_path}")
    assert sentence in last


class FakeDatapath(ProtocolDesc):  # type: ignore[misc] # os-ken is not typed
    """A switch that answers nothing by itself."""

    def __init__(self) -> None:
        super().__init__(ofproto_v1_3.OFP_VERSION)
        self.id: int | None = None
        self.barriers: list[int] = []
        self._messages = 0

    def set_xid(self, message: Any) -> None:
        self._messages += 1
        message.set_xid(self._messages)

    def send_msg(self, message: Any) -> None:
        if isinstance(message, self.ofproto_parser.OFPBarrierRequest):
            self.barriers.append(message.xid)


class Scene:
    """A watcher of two leaves and two spines beside an app that handles events at once."""

    def __init__(self) -> None:
        self.watched = OSKenApp()
        self.switches = {number: FakeDatapath() for number in range(1, 5)}
        self.watcher = own_app.Watcher(topology=leaf_spine(2, 2, 1, 1_000_000), watched=self.watched)

    def connect(self, number: int) -> None:
        """A switch connects, and tells its ports. os-ken sets the datapath's id when the watcher was told already."""
        self.switches[number] = datapath = FakeDatapath()
        self.watcher.on_features(SimpleNamespace(msg=SimpleNamespace(datapath=datapath, datapath_id=number)))
        datapath.id = number
        self.watcher.on_port_descriptions(SimpleNamespace(msg=SimpleNamespace(datapath=datapath, body=[])))

    def disconnect(self, number: int) -> None:
        self.watcher.on_disconnect(SimpleNamespace(datapath=self.switches[number]))

    def answer(self) -> None:
        """All switches answer all barriers."""
        for datapath in self.switches.values():
            while datapath.barriers:
                message = SimpleNamespace(datapath=datapath, xid=datapath.barriers.pop(0))
                self.watcher.on_barrier(SimpleNamespace(msg=message))

    def handle(self) -> None:
        """The user's app comes to the event of the watcher."""
        self.watcher.on_handled(own_app.EventHandled())


def events(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["event"] for line in capfd.readouterr().out.splitlines()]


def test_switches_are_ready_when_all_have_carried_out_what_the_app_sent(capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    for number in range(1, 5):
        scene.connect(number)
    scene.answer()
    scene.handle()
    assert events(capfd) == []
    scene.answer()
    assert events(capfd) == ["ready"]


@pytest.mark.parametrize("phase", range(3))
def test_switches_are_not_ready_while_one_is_missing(phase: int, capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    for number in range(1, 5):
        scene.connect(number)
    steps = [scene.answer, scene.handle, scene.answer]
    for step in steps[:phase]:
        step()
    scene.disconnect(3)
    for step in steps[phase:]:
        step()
    assert events(capfd) == []
    scene.connect(3)
    for step in steps:
        step()
    assert events(capfd) == ["ready"]
