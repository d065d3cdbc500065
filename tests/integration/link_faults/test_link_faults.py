# SPDX-License-Identifier: Apache-2.0
"""Links that lose, damage and slow down packets: every fault is counted, and a run over them delivers every byte."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from emul import LinkFault, MininetFabric
from netmodel import PortRef, leaf_spine
from tests.integration.traffic import RawSender, address, receiver

ROOT = Path(__file__).parents[3]
RATE_BPS = 10_000_000
TOPOLOGY = leaf_spine(2, 1, 1, RATE_BPS)
UPLINK = PortRef("leaf1", 2)
ROUNDS, BURST = 40, 50
BTH = bytes.fromhex("0440ffff") + bytes(range(1, 17))


def arrivals(fabric: MininetFabric, rounds: int, payload: bytes) -> list[bytes]:
    """What h2 receives of bursts that h1 sends, no burst longer than the queues."""
    sender, sink = RawSender(fabric, "h1"), receiver(fabric, "h2", timeout_s=1.0)
    found = []
    for _ in range(rounds):
        for _ in range(BURST):
            sender.send(address(fabric, "h2"), 50_000, payload)
        time.sleep(8 * BURST * (len(payload) + 42) / RATE_BPS)
    try:
        while True:
            found.append(sink.recv(9000))
    except TimeoutError:
        pass
    sender.close()
    sink.close()
    return found


@pytest.mark.sandboxed
def test_every_lost_and_damaged_packet_is_counted(tmp_path: Path) -> None:
    with MininetFabric(TOPOLOGY, log_dir=tmp_path, faults={UPLINK: LinkFault(0.2, 0.3)}) as fabric:
        found = arrivals(fabric, ROUNDS, BTH)
        counts = fabric.fault_counts()[UPLINK]
        back = fabric.link_counters()[UPLINK]
    sent = ROUNDS * BURST
    assert counts.lost == sent - len(found)
    assert counts.corrupted == sum(one != BTH for one in found)
    assert {one for one in found if one != BTH} == {BTH[:2] + bytes(2) + BTH[4:]}  # the P_Key is 0
    assert counts.lost == pytest.approx(0.2 * sent, abs=6 * (0.2 * 0.8 * sent) ** 0.5)
    assert counts.corrupted == pytest.approx(0.3 * 0.8 * sent, abs=6 * (0.24 * 0.76 * sent) ** 0.5)
    assert back.tx_packets == len(found)  # a lost packet was not sent
    assert back.dropped == 0


@pytest.mark.sandboxed
def test_a_degraded_link_has_its_part_of_the_rate_until_it_is_restored(tmp_path: Path) -> None:
    with MininetFabric(TOPOLOGY, log_dir=tmp_path) as fabric:
        link = TOPOLOGY.link_at(UPLINK)
        sender, sink = RawSender(fabric, "h1"), receiver(fabric, "h2", timeout_s=30.0)

        def seconds() -> float:
            for _ in range(BURST):
                sender.send(address(fabric, "h2"), 50_000, bytes(4096))
            sink.recv(9000)
            begin = time.monotonic()
            for _ in range(BURST - 1):
                sink.recv(9000)
            return time.monotonic() - begin

        times = {}
        for part in (1.0, 0.2, 1.0):
            fabric.set_rate(link, part)
            times.setdefault(part, []).append(seconds())
        assert 3 < times[0.2][0] / max(times[1.0]) < 7
        assert fabric.link_counters()[UPLINK].dropped == 0
        with pytest.raises(ValueError, match="is no part"):
            fabric.set_rate(link, 0.0)


def test_a_run_over_faulty_links_delivers_every_byte(tmp_path: Path) -> None:
    spec = {
        "name": "faulty",
        "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "20 Mbit/s"}},
        "workload": {"kind": "ring_allreduce", "bytes": 800_000},
        "placement": {"rule": "cross_leaf"},
        "policies": [{"name": "ecmp", "policy": "ecmp", "m": 4}],
        "links": {"leaf1:3": {"loss": "5 %", "corruption": "2 %"}, "leaf1:4": {"loss": "5 %"}},
        "events": [{"at_s": 0.2, "degrade": "leaf2:3", "part": 0.5}],
    }
    path = tmp_path / "faulty.yaml"
    path.write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "testbed", "run", str(path), "--results", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (policy,) = json.loads(done.stdout)["policies"]
    assert policy["verified"]
    assert policy["retransmits"] > 0
    with (tmp_path / "out" / "faulty" / "links.csv").open(newline="") as file:
        faults = {row["port"]: (int(row["lost"]), int(row["corrupted"])) for row in csv.DictReader(file)}
    assert faults.pop("leaf1:3")[1] > 0
    assert faults.pop("leaf1:4")[0] > 0
    assert set(faults.values()) == {(0, 0)}
    (run,) = json.loads((tmp_path / "out" / "faulty" / "observations.json").read_text())["runs"]
    assert sum(run["discards"].values()) > 0  # damaged packets were refused
    assert [event["what"] for event in run["events"]] == ["degrade leaf2:3 to 0.5"]
