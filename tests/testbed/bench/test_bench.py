# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: reducing repetitions to rows, and parsing the program's output."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_net_plugin.programs import driver_program
from testbed.bench import plugin, scale, transport
from testbed.bench.frame import Measurement, result
from testbed.errors import TestbedError

LINE = '{"metric": "latency", "case": "8 B", "unit": "us", "ours": 20.0, "peer": 10.0, "peer_name": "TCP"}'


def program(folder: Path, text: str) -> Path:
    path = folder / "program"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_rows_are_medians_in_order_of_appearance() -> None:
    rounds = [
        Measurement("m", case, "u", ours, peer, "TCP")
        for case, ours, peer in [("b", 1, 4), ("a", 7, 2), ("b", 9, 5), ("a", 5, 1), ("b", 2, 6), ("a", 6, 3)]
    ]
    rows = result("x", rounds).rows
    assert [(row.case, row.ours, row.peer, row.ratio) for row in rows] == [("b", 2, 5, 0.4), ("a", 6, 2, 3)]


def test_every_printed_line_becomes_a_measurement(tmp_path: Path) -> None:
    (one, two) = transport.run(program(tmp_path, f"print({LINE!r}); print({LINE!r})"), "transport")
    assert one == two == Measurement("latency", "8 B", "us", 20.0, 10.0, "TCP")


def test_every_back_end_is_measured_by_size(tmp_path: Path) -> None:
    talker = program(tmp_path, f"import sys; print({LINE!r}.replace('8 B', ' '.join(sys.argv[1:])))")
    found = list(transport.by_size(talker, ["soft", "tcp"]))
    assert [measurement.metric for measurement in found] == ["latency, soft", "latency, tcp"]
    assert [measurement.case for measurement in found] == ["transport --back-end soft", "transport --back-end tcp"]


def test_the_program_gets_the_name_of_the_bench(tmp_path: Path) -> None:
    line = '{"metric": "m", "case": "CASE", "unit": "u", "ours": 1}'
    talker = program(tmp_path, f"import sys; print({line!r}.replace('CASE', ' '.join(sys.argv[1:])))")
    (measurement,) = transport.run(talker, "scale")
    assert (measurement.case, measurement.ours, measurement.peer_name) == ("scale", 1, "")
    assert math.isnan(measurement.peer)


@pytest.mark.parametrize("line", ["hello", '{"metric": "latency"}', "[1]", LINE.replace("case", "kase")])
def test_other_output_is_an_error_and_ends_the_program(tmp_path: Path, line: str) -> None:
    talker = program(tmp_path, f"import time; print({line!r}, flush=True); time.sleep(600)")
    with pytest.raises(TestbedError, match="which is not a measurement"):
        list(transport.run(talker, "transport"))


def test_a_program_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="ended with status 3"):
        list(transport.run(program(tmp_path, "raise SystemExit(3)"), "transport"))


# -- scale -----------------------------------------------------------------------------------------------------------


def test_cases_are_compared_with_the_best_case_and_memory_with_its_limit() -> None:
    def alone(metric: str, case: str, ours: float) -> Measurement:
        return Measurement(metric, case, "u", ours, math.nan, "")

    measured = [alone("throughput", case, ours) for case, ours in [("a", 8), ("b", 10), ("a", 6), ("b", 30), ("b", 10)]]
    measured += [alone("processor, hub", "a", 0.5), alone("processor, hub", "b", 1.0), alone("memory", "a", 1024)]
    rows = {(row.metric, row.case): row for row in result("scale", scale.compared(measured)).rows}
    assert (rows["throughput", "a"].ours, rows["throughput", "a"].peer, rows["throughput", "a"].ratio) == (7, 10, 0.7)
    assert {row.peer_name for row in rows.values()} == {"b", "a", "limit"}
    assert rows["throughput", "b"].ratio == 1
    assert rows["processor, hub", "b"].ratio == 2
    assert rows["memory", "a"].ratio == 1024 / scale.MEMORY_LIMIT_BYTES


# -- the NCCL net plugin ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", plugin.RANKS)
@pytest.mark.parametrize("kib", plugin.MESSAGE_KIB)
def test_all_messages_of_a_ring_have_the_size_of_its_case(ranks: int, kib: int) -> None:
    options = ["--ranks" if word == "--spawn" else str(word) for word in plugin.ring_options(ranks, kib << 10)]
    argv = [str(driver_program()), *options, "--plan"]
    messages = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    assert {json.loads(message)["count"] for message in messages} == {(kib << 10) // 4}


def driver(folder: Path, **report: object) -> Path:
    """A simulated driver that is twice as fast over TCP as over a plugin."""
    report = {"verified": True, "wrong_bytes": 0, **report}
    return program(
        folder,
        f"import json, sys\nfactor = 2 if sys.argv[-1] == 'tcp' else 1\n"
        f"print(json.dumps({{**{report!r}, 'bus_gbps': 10.0 * factor, 'seconds': 1e-5 / factor}}))",
    )


def test_every_case_of_the_plugin_is_measured_with_its_peer(tmp_path: Path) -> None:
    rows = result("plugin", plugin.run(driver(tmp_path), Path("plugin.so"), repetitions=2)).rows
    *rings, latency = rows
    sizes = ["128 KiB", "256 KiB", "512 KiB", "1 MiB", "2 MiB", "4 MiB"]
    assert [row.case for row in rings] == [f"{ranks} ranks, {size}" for ranks in (2, 4) for size in sizes]
    assert {(row.metric, row.ours, row.ratio) for row in rings} == {("bus bandwidth", 10.0, 0.5)}
    assert (latency.case, latency.unit, latency.ratio) == ("8 B", "us", 2.0)
    assert latency.ours == pytest.approx(10.0)


def test_wrong_bytes_fail_a_benchmark(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="7 bytes were wrong"):
        list(plugin.run(driver(tmp_path, verified=False, wrong_bytes=7), Path("plugin.so")))


def test_a_failing_driver_is_reported_with_its_last_message(tmp_path: Path) -> None:
    failing = program(tmp_path, "import sys; sys.exit('paralet-nccl-driver: rank 1 failed: no luck')")
    with pytest.raises(TestbedError, match="rank 1 failed: no luck"):
        list(plugin.run(failing, Path("plugin.so")))
