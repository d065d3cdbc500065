# SPDX-License-Identifier: Apache-2.0
"""`paralet probe` on real routers of which two tiers choose by the same linear hash: polarised paths are named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from netmodel import LinuxCrcHash, clos
from netmodel.probing.inference import infer, polarised
from netmodel.probing.observations import ProbeFile
from netmodel.probing.paths import paths_of
from netmodel.probing.simulated import Fabric

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

ROOT = Path(__file__).parents[3]
TOPOLOGY = clos(2, 2, 2, 2, 1, 100_000_000)
HOSTS = {host.name: str(host.nics[0].address) for host in TOPOLOGY.hosts}
CLOSED_PORT = 33434
PORTS = range(50_000, 50_064)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoutedFabric]:
    log_dir = tmp_path_factory.mktemp("polarised")
    with RoutedFabric(TOPOLOGY, log_dir=log_dir, ecmp_hash=LinuxCrcHash()) as running:
        for switch in TOPOLOGY.switches:
            enter = ["nsenter", "--target", str(running._nodes.pid(switch.name)), "--net"]
            of_all = ["net.ipv4.icmp_msgs_per_sec=100000", "net.ipv4.icmp_msgs_burst=100000"]
            subprocess.run([*enter, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", *of_all], check=True)
        yield running


def expected(fabric: RoutedFabric) -> set[str]:
    """What the same probes of all hosts would tell, by the kernels' routes and their hash."""
    model = Fabric(TOPOLOGY, LinuxCrcHash(), routes=fabric.routes())
    seen = {
        source: [
            one
            for destination in HOSTS
            if destination != source
            for one in model.probes(source, destination, PORTS, range(1, 7), destination_port=CLOSED_PORT)
        ]
        for source in HOSTS
    }
    files = [ProbeFile(host, "2026-11-26T21:12:00Z", tuple(own)) for host, own in seen.items()]
    pairs = [pair for file in files for pair in paths_of(file.observations)]
    return {one.statement for one in polarised(infer(files, rate_bps=10**9), pairs)}


def test_two_tiers_with_one_linear_hash_are_named(fabric: RoutedFabric, tmp_path: Path) -> None:
    written, processes = [], []
    for host in HOSTS:
        others = [address for other, address in HOSTS.items() if other != host]
        file = tmp_path / f"{host}.json"
        argv = ["probe", *others, "--ports", f"{PORTS[0]}-{PORTS[-1]}", "--router-rate", "0", "--rate", "0"]
        argv += ["--destination-port", str(CLOSED_PORT), "--write", str(file), "--host-name", host, "--json"]
        argv = [sys.executable, "-m", "testbed", *argv]
        processes.append(fabric.popen(host, argv, stdout=subprocess.PIPE, cwd=ROOT))
        written += ["--from-hosts", str(file)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    far = [pair for answer in answers for pair in answer["pairs"] if len(pair["paths"][0]["hops"]) == 5]
    assert [len(pair["paths"]) for pair in far] == [2] * 8  # of four: each agg chooses as the leaf before it
    argv = [sys.executable, "-m", "testbed", "probe", *written, "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert set(json.loads(done.stdout)["polarised"]) == expected(fabric)


def test_an_offset_of_one_tier_heals_it() -> None:
    """In the model: the routers' program of an offset has a test of its own."""
    for offset, paths in ((0, 2), (8, 4)):
        model = Fabric(TOPOLOGY, LinuxCrcHash.of(TOPOLOGY, {"agg": offset}))
        (pair,) = paths_of(model.probes("h1", "h3", PORTS, range(1, 7)))
        assert len(pair.paths) == paths
