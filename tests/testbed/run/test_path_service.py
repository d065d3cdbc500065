# SPDX-License-Identifier: Apache-2.0
"""The path service of a run: it answers hosts, learns of dead links, and knows them again after a restart."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netmodel import Link, PortRef, Topology, dump_topology, equal_cost_paths, forwarding, leaf_spine
from testbed.errors import TestbedError
from testbed.run.path_service import PathServiceProcess, no_services
from testbed.spec import Policy

TOPOLOGY = leaf_spine(2, 2, 1, 10**7)
PROGRAM = (sys.executable, "-m", "testbed.run.path_service_program")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def made(folder: Path, topology: Topology = TOPOLOGY) -> PathServiceProcess:
    (folder / "topology.yaml").write_text(dump_topology(topology))
    argv = [*PROGRAM, "--topology", str(folder / "topology.yaml")]
    scratch = folder / ("long" * 30)  # longer than the path of a Unix socket may be
    return PathServiceProcess(argv, folder / "log", scratch, free_address())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PathServiceProcess]:
    with made(tmp_path) as running:
        yield running


def link(leaf: str, port: int) -> Link:
    return TOPOLOGY.link_at(PortRef(leaf, port))


def connect(service: PathServiceProcess) -> dict[str, Any]:
    """Say hello as a host does. Returns the answer."""
    host, _, port = service.address.rpartition(":")
    hello = {"type": "hello", "version": 1, "token": service.token_file.read_text().strip(), "device": "10.0.0.1"}
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(json.dumps({**hello, "instance": "0123456789abcdef", "lanes": 1}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(answers.readline())
        return answer


def test_hosts_get_ports_and_dead_links_are_reported_once(service: PathServiceProcess) -> None:
    assert connect(service)["type"] == "welcome"
    assert service.reported_s is None
    first, second = link("leaf1", 2), link("leaf2", 3)
    service.dead_links([first])
    reported_s = service.reported_s
    assert reported_s is not None
    assert service.status()["dead_links"] == ["leaf1:2 spine1:1"]
    service.dead_links([first])
    assert service.reported_s == reported_s  # nothing is new
    service.dead_links([second])
    assert service.status()["dead_links"] == ["leaf2:3 spine2:2"]


def test_a_restarted_path_service_knows_the_dead_links_and_the_paths_to_keep_to(service: PathServiceProcess) -> None:
    service.dead_links([link("leaf1", 2)])
    service.keep_to({("10.0.0.1", "10.0.1.1"): equal_cost_paths(TOPOLOGY, "h1", "h2")[1]})
    service.kill()
    service.kill()
    assert service.status() == {}
    service.dead_links([link("leaf1", 2), link("leaf1", 3)])
    service.start()
    service.start()
    assert service.status()["dead_links"] == ["leaf1:2 spine1:1", "leaf1:3 spine2:1"]
    (pin,) = service.status()["control"]["pins"]
    assert (pin["src"], pin["dst"], pin["via"]) == ("10.0.0.1", "10.0.1.1", ["leaf1:3", "spine2:2"])
    with pytest.raises(TestbedError, match="the path service cannot keep to a path from h1 to h9: "):
        service.keep_to({("h1", "h9"): equal_cost_paths(TOPOLOGY, "h1", "h2")[1]})
    assert connect(service)["type"] == "welcome"


def test_a_restarted_path_service_knows_the_routers_next_hops(service: PathServiceProcess) -> None:
    routes = forwarding(TOPOLOGY, frozenset({link("leaf1", 2)}))
    service.follow(routes.groups)
    for _ in ("at once", "after a restart"):
        status = service.status()
        assert status["counts"]["next hops read"] == 1
        assert status["dead_links"] == ["leaf1:2 spine1:1", "leaf2:2 spine1:2"]  # no route needs the second one either
        service.kill()
        service.start()


def test_a_path_service_that_does_not_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    service = PathServiceProcess(
        [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", tmp_path, free_address()
    )
    with pytest.raises(TestbedError, match=r"the path service ended with status 3; see .*log"):
        service.start()


def test_other_policies_start_no_path_service() -> None:
    with no_services(Policy(name="a", policy="ecmp"), "a-1") as service:
        assert service is None
