# SPDX-License-Identifier: Apache-2.0
"""Today's path service answers what hosts of earlier versions say, in words that these know.

There is no earlier release to run yet. The lines are those that a device of 0.1.0 sent to a socket, with the addresses
of this topology. Lines may be added here, and never changed.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60
TOPOLOGY = "leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}\n"

SAID_2 = (
    '{"device":"10.0.0.1","instance":"4327b9488b9d0801","lanes":4,"token":"TOKEN","type":"hello","version":2}',
    '{"rate":100.0,"type":"probe"}',
    '{"bytes":67108864,"id":17,"job":"bert","peer":"10.0.1.1","type":"announce"}',
    '{"flows":[{"bytes":220200960,"id":17,"retransmits":16,"rtt_s":0.0018904960000000002,"seconds":1.008301356}],'
    '"type":"measured"}',
    '{"id":17,"type":"release"}',
    '{"nonce":1,"type":"ping"}',
)
SAID_1 = (SAID_2[0].replace('"version":2', '"version":1'), *SAID_2[2:])
KEYS = {
    "welcome": {"type", "version", "session", "probe", "router_rate"},
    "assign": {"type", "peer", "ports", "generation", "rate_bps", "id", "peer_port", "cut"},
    "pong": {"type", "nonce"},
}
"""Keys of answers that hosts of 0.1.0 know; they ignore others. None of them may get another meaning."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("service")
    (folder / "fabric.yaml").write_text(TOPOLOGY)
    argv = [sys.executable, "-m", "testbed", "path-service", "run", "--topology", str(folder / "fabric.yaml"), "--json"]
    argv += ["--token-file", str(folder / "token"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address, _, port = json.loads(process.stdout.readline())["listen"].partition(":")
            yield (address, int(port)), (folder / "token").read_text().strip()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("lines", [SAID_1, SAID_2], ids=["version 1", "version 2"])
def test_a_host_of_an_earlier_version_is_served(lines: tuple[str, ...], service: Any) -> None:
    at, token = service
    with socket.create_connection(at, timeout=TIMEOUT_S) as host, host.makefile("rb") as said:
        host.sendall("".join(f"{line}\n" for line in lines).replace("TOKEN", token).encode())
        answers = []
        while not answers or answers[-1]["type"] != "pong":
            answers.append(json.loads(said.readline()))
    assert [answer["type"] for answer in answers] == ["welcome", "assign", "pong"]
    welcome, assign, pong = answers
    assert welcome["version"] == json.loads(lines[0])["version"]
    assert len(welcome["session"]) == 16
    assert (assign["id"], assign["peer"], len(assign["ports"]), assign["rate_bps"]) == (17, "10.0.1.1", 4, None)
    assert pong["nonce"] == 1
    for answer in answers:
        assert answer.keys() <= KEYS[answer["type"]], "a new key: see that hosts of 0.1.0 may ignore it"
