# SPDX-License-Identifier: Apache-2.0
"""Lanes whose packets pass given routers (segment routing over IPv6): every flow takes its path, whatever the hash."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from netmodel import Flow, PortRef, equal_cost_paths, leaf_spine
from netmodel.paths import Path as Way
from netmodel.segments import segments_of
from tests.integration.routed import segment_sender
from tests.integration.traffic import address
from tests.integration.transport import sink

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

# Packets with 4,096 bytes of payload would fit, if they had no routing header.
MTU = 4096 + 40 + 8 + 12 + 16 + 4 + 4
TOPOLOGY = leaf_spine(2, 2, 1, 100_000_000, parallel_links=2, ipv6=True, mtu_bytes=MTU)
BYTES = 2_048_000
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
WAYS = equal_cost_paths(TOPOLOGY, "h1", "h2")


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoutedFabric]:
    with RoutedFabric(TOPOLOGY, log_dir=tmp_path_factory.mktemp("segments"), segments=True) as running:
        yield running


def sent(fabric: RoutedFabric, by_port: dict[int, Way]) -> dict[str, Any]:
    """What an unprivileged sender on h1 reports that has sent BYTES to h2, from each port along its path."""
    near, far = str(address(fabric, "h1")), str(address(fabric, "h2"))
    argv = [sys.executable, sink.__file__, far, str(len(by_port)), "1", str(BYTES)]
    receiving = fabric.popen("h2", argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    receiving.stdin.write("\n")
    receiving.stdin.flush()
    handle = receiving.stdout.readline().strip()
    segments = [[str(one) for one in segments_of(TOPOLOGY, way)] for way in by_port.values()]
    argv = [
        sys.executable,
        segment_sender.__file__,
        near,
        far,
        handle,
        str(BYTES),
        *map(json.dumps, (list(by_port), segments)),
    ]
    sending = fabric.popen(
        "h1",
        [*UNPRIVILEGED, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    out, errors = sending.communicate(timeout=120)
    receiving.communicate(timeout=30)
    assert sending.returncode == 0, errors
    report: dict[str, Any] = json.loads(out)
    report["said"] = errors
    return report


def taken(fabric: RoutedFabric, port: int) -> set[PortRef]:
    """The router ports between routers by which packets from a source port of h1 left."""
    flow = Flow(address(fabric, "h1"), address(fabric, "h2"), port)
    return {
        PortRef(switch.name, out)
        for switch in TOPOLOGY.switches
        for seen, out in fabric.observed_ports(switch.name).items()
        if seen == flow
    }


@pytest.mark.parametrize("first_port", [50_000, 60_000])
def test_every_lane_takes_its_path_whatever_the_routers_hash(fabric: RoutedFabric, first_port: int) -> None:
    by_port = {first_port + lane: way for lane, way in enumerate(WAYS)}
    assert len(by_port) == 8
    report = sent(fabric, by_port)
    assert report["user"] == 65534
    assert set(report["packets"]) == set(map(str, by_port))
    assert min(report["packets"].values()) > 0
    assert {port: taken(fabric, port) for port in by_port} == {port: set(way[1:-1]) for port, way in by_port.items()}


def test_the_routing_header_counts_in_the_path_mtu(fabric: RoutedFabric) -> None:
    """With it, packets have 2,048 bytes of payload. Routers would have dropped longer ones."""
    report = sent(fabric, {52_000: WAYS[0]})
    assert BYTES / 2048 <= report["packets"]["52000"] < BYTES / 2048 + 200
    assert "refused" not in report["said"]
