# SPDX-License-Identifier: Apache-2.0
"""Exchanges in NCCL's way: which run, in which order, and what they are compared with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import hostlib
from testbed.bench import flows, links
from testbed.bench.flows import Case
from testbed.errors import TestbedError
from tests.testbed.bench.test_bench import program

TALKER = """
import json, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
with open(__file__ + ".log", "a") as log:
    print(options["--transport"], file=log)
rate = {"soft": 30, "tcp": 40, "stream": 20}.get(options["--transport"], 10)
print(json.dumps({"gbps": rate, "near_ns_per_byte": 0.25, "far_ns_per_byte": 1 / rate}))
"""


def test_every_back_end_is_measured_beside_every_peer(tmp_path: Path) -> None:
    talker = program(tmp_path, TALKER)
    found = list(flows.measurements(talker, [Case("a"), Case("b", ("--pairs", "3"), 3)], ["soft", "tcp"], 0))
    assert len(found) == 2 * 2 * 2 * len(flows.PEERS)
    rates = {
        (measurement.metric, measurement.case, measurement.peer_name): (measurement.ours, measurement.peer)
        for measurement in found
    }
    assert rates["throughput, soft", "a", "TCP stream"] == (30, 20)
    assert rates["throughput, tcp", "b", "3 TCP streams"] == (40, 20)
    assert rates["processor, soft", "a", "NCCL Socket, 4 x 1"] == (0.25 + 1 / 30, 0.25 + 1 / 10)


def test_transports_take_turns_in_both_orders(tmp_path: Path) -> None:
    talker = program(tmp_path, TALKER)
    for repetition in range(2):
        list(flows.measurements(talker, [Case("a")], ["soft"], repetition))
    order = Path(f"{talker}.log").read_text().split()
    assert order == [
        "soft",
        *(peer.transport for peer in flows.PEERS),
        *(p.transport for p in flows.PEERS[::-1]),
        "soft",
    ]


def test_back_ends_are_those_that_run_everywhere() -> None:
    built = flows.built_back_ends()
    assert "soft" in built
    assert not {"verbs", "auto"} & set(built)


def test_pairs_use_all_cores_and_at_least_two_run_at_once() -> None:
    for cores, pairs in ((1, 2), (2, 2), (16, 8)):
        *_, case = flows.loopback_cases(cores)
        assert case.pairs == pairs
        assert ("more threads than cores" in case.name) == (cores < 4)


def test_a_failing_exchange_is_told(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"flow .*--transport soft failed: no luck"):
        list(flows.measurements(program(tmp_path, "raise SystemExit('no luck')"), [Case("a")], ["soft"], 0))
    with pytest.raises(TestbedError, match="which are not its figures"):
        flows.run(program(tmp_path, "print('{}')"), [])


def test_an_exchange_that_hangs_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "TIMEOUT_S", 0.2)
    with pytest.raises(TestbedError, match="did not end in"):
        flows.run(program(tmp_path, "import time; time.sleep(600)"), [])


@pytest.mark.parametrize(
    ("transport", "ways", "pairs"),
    [
        ("soft", "1", "1"),
        ("soft", "2", "1"),
        ("stream", "1", "2"),
        ("stream", "2", "1"),
        ("sockets:0x1", "1", "1"),
        ("sockets:2x8", "1", "1"),
        ("sockets:4x2", "2", "1"),
    ],
)
def test_the_native_program_carries_out_every_transport(transport: str, ways: str, pairs: str) -> None:
    """What is measured arrives: the program ends only when every byte has been received."""
    argv = [hostlib.bench_program(), "flow", "--transport", transport, "--ways", ways, "--pairs", pairs]
    argv += ["--bytes", "200000", "--total", "4000000", "--ahead", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    figures = json.loads(done.stdout)
    assert all(figures[name] > 0 for name in ("gbps", "near_ns_per_byte", "far_ns_per_byte"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--transport", "carrier-pigeon"], "the back end must be "),
        (["--transport", "sockets:4"], "sockets:TxS"),
        (["--transport", "sockets:0x2"], "sockets:TxS"),
        (["--pairs", "0"], "--pairs must be a number of at least 1, not 0"),
        (["--near", "here"], "--near must be an IP address, not here"),
        (["--colour", "1"], "no option --colour"),
    ],
)
def test_the_native_program_refuses_other_options(options: list[str], sentence: str) -> None:
    done = subprocess.run([hostlib.bench_program(), "flow", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_links_are_named_by_what_differs() -> None:
    assert len({link.name for link in links.LINKS}) == 5
    assert links.LINKS[2].name == "MTU 9000, TSO, no USO"
