# SPDX-License-Identifier: Apache-2.0
"""`paralet-nccl-driver`: its schedules, small collectives on loopback, and its error messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nccl_net_plugin
from hostlib import local_interfaces
from nccl_net_plugin.programs import driver_program
from testbed.workloads.nccl import STEPS, NcclRingAllreduce, NcclTreeAllreduce


def driver(*options: object, **popen: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [driver_program(), *map(str, options)], capture_output=True, text=True, timeout=100, check=False, **popen
    )


def summary(*options: object, **popen: Any) -> dict[str, Any]:
    done = driver(*options, "--timeout-s", 30, **popen)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def plan(*options: object) -> list[dict[str, Any]]:
    done = driver(*options, "--plan")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- schedules: equal to the testbed's, which tests/testbed/workloads/test_schedules.py checks -------------------------


@pytest.mark.parametrize("workload", [NcclRingAllreduce, NcclTreeAllreduce])
@settings(max_examples=30)
@given(ranks=st.integers(2, 17), extra=st.integers(0, 2000), slices=st.integers(1, 20))
def test_the_driver_and_the_testbed_have_the_same_schedule(
    workload: type[NcclRingAllreduce | NcclTreeAllreduce], ranks: int, extra: int, slices: int
) -> None:
    made = workload(bytes=4 * (ranks + extra), slices=slices)
    options = ["--collective", made.collective, "--ranks", ranks, "--bytes", made.bytes, "--steps", STEPS]
    messages = plan(*options, "--slice-bytes", 4 * made.slice_elements(ranks))
    assert sorted((m["step"], m["src"], m["dst"], m["first"], m["count"], m["combine"]) for m in messages) == sorted(
        (t.step, t.src, t.dst, t.source, t.count, t.combine) for t in made.schedule(ranks, seed=0)
    )


def test_each_tree_has_a_channel_and_half_of_the_data() -> None:
    messages = plan("--collective", "tree", "--ranks", 8, "--bytes", 800, "--slice-bytes", 100)
    halves = [{m["first"] for m in messages if m["channel"] == channel} for channel in (0, 1)]
    assert max(halves[0]) < 100 == min(halves[1])


# -- collectives -------------------------------------------------------------------------------------------------------

TRANSPORTS = [("tcp", 0), ("plugin", 8), ("plugin", 12)]


def transport_options(transport: str, abi: int) -> list[object]:
    return ["--transport", nccl_net_plugin.path() if transport == "plugin" else transport, "--abi", abi]


@pytest.mark.parametrize(("transport", "abi"), TRANSPORTS)
@pytest.mark.parametrize("collective", ["ring", "tree"])
@pytest.mark.parametrize(
    ("ranks", "size", "slice_size"),
    [(2, 1_000_004, 65_536), (3, 300_004, 4_100), (4, 524_288, 131_072), (5, 16, 4), (5, 99_996, 1_000)],
)
def test_all_reduce_is_correct(
    transport: str, abi: int, collective: str, ranks: int, size: int, slice_size: int
) -> None:
    options = transport_options(transport, abi)
    options += ["--spawn", ranks, "--collective", collective, "--bytes", size, "--slice-bytes", slice_size]
    report = summary(*options, "--iterations", 3)
    assert report["verified"]
    assert report["wrong_bytes"] == 0
    assert (report["ranks"], report["bytes"], report["iterations"]) == (ranks, size, 3)
    assert report["bus_gbps"] == pytest.approx(2 * (ranks - 1) / ranks * size * 8 / report["seconds"] / 1e9)


@pytest.mark.parametrize(("transport", "abi"), TRANSPORTS)
@pytest.mark.parametrize("size", [1, 8, 5_000])
def test_ping_pong_is_correct(transport: str, abi: int, size: int) -> None:
    options = ["--spawn", 2, "--collective", "pingpong", "--bytes", size, "--iterations", 50]
    report = summary(*transport_options(transport, abi), *options)
    assert report["verified"]
    assert report["seconds"] > 0


@pytest.mark.skipif(
    all(address != "::1" for _, address, _ in local_interfaces()), reason="the loopback interface has no address ::1"
)
@pytest.mark.parametrize("abi", [8, 12])
def test_all_reduce_over_ipv6_is_correct(abi: int) -> None:
    options = ["--address", "::1", "--spawn", 3, "--bytes", 300_004, "--slice-bytes", 65_536]
    report = summary(*transport_options("plugin", abi), *options)
    assert report["verified"]
    assert report["wrong_bytes"] == 0


def test_all_reduce_works_with_one_message_in_flight() -> None:
    report = summary(
        *transport_options("plugin", 0), "--spawn", 3, "--bytes", 40_000, "--slice-bytes", 1_000, "--steps", 1
    )
    assert report["verified"]


def test_the_environment_reaches_the_plugin() -> None:
    done = driver(
        *transport_options("plugin", 0),
        *("--spawn", 2, "--bytes", 4_000),
        env={**os.environ, "NCCL_DEBUG": "INFO", "PARALET_LANES": "3"},
    )
    assert done.returncode == 0
    assert "m = 3 lanes" in done.stderr


# -- a single rank -----------------------------------------------------------------------------------------------------


def start_rank(*options: object) -> subprocess.Popen[str]:
    argv = [str(driver_program()), *map(str, options)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_rank_reports_an_unexpected_command() -> None:
    with start_rank("--ranks", 2) as rank:
        out, errors = rank.communicate('{"op": "start"}\n', timeout=60)
    prepared, failed = map(json.loads, out.splitlines())
    assert (prepared["event"], list(prepared["handles"])) == ("prepared", ["1"])
    assert failed["event"] == "failed"
    assert "expected the command 'connect', got" in failed["error"]
    assert failed["error"] in errors
    assert rank.returncode == 1


def test_a_rank_without_peers_times_out() -> None:
    with start_rank("--ranks", 2) as rank, start_rank("--ranks", 2, "--rank", 1) as silent:
        assert silent.stdout is not None
        handle = json.loads(silent.stdout.readline())["handles"]["0"]
        command = {"op": "connect", "handles": {"1": handle}, "timeout_s": 0.2}
        out, _ = rank.communicate(json.dumps(command) + "\n", timeout=60)
        silent.kill()
    sentence = "timed out after 0.2 s waiting for the connection from rank 1"
    assert json.loads(out.splitlines()[-1]) == {"event": "failed", "error": sentence, "peer_lost": False}


def test_a_killed_rank_ends_the_whole_run(tmp_path: Path) -> None:
    options = [
        "--spawn",
        3,
        "--bytes",
        "1MiB",
        "--slice-bytes",
        4096,
        "--iterations",
        1_000_000,
        "--address",
        "127.0.0.1",
    ]
    with start_rank(*options) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        deadline = time.monotonic() + 60
        while len(pids := [int(pid) for pid in children.read_text().split()]) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(pids[1], signal.SIGKILL)
        _, errors = parent.communicate(timeout=60)
    assert parent.returncode == 1
    # The parent sees the signal or fails to write to the rank; that other ranks lost this one is not the cause.
    assert any(what in errors for what in ("rank 1 exited early, by signal 9", "write to a rank"))
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--bytes", 3], "a multiple of 4"),
        (["--ranks", 1], "--ranks must be a whole number from 2 to 16384, not 1"),
        (["--ranks", 1 << 32], "--ranks must be a whole number from 2 to 16384, not 4294967296"),
        (["--spawn", 1], "--spawn must be 0, or at least 2"),
        (["--rank", 2], "--rank must be below --ranks, 2"),
        (["--spawn", 3, "--collective", "pingpong"], "--collective pingpong takes exactly two ranks"),
        (["--collective", "star"], "--collective must be ring, tree or pingpong, not star"),
        (["--slice-bytes", "1 furlong"], "--slice-bytes must be a size such as 64MiB, from 4 to"),
        (["--slice-bytes", "3"], "not 3"),
        (["--slice-bytes", "2GiB"], "not 2GiB"),
        (["--bytes", "99999999999TiB"], "--bytes must be"),
        (["--steps", "1.5"], "--steps must be a whole number from 1 to 32, not 1.5"),
        (["--seed", 1 << 64], f"--seed must be a whole number from 0 to {(1 << 64) - 1}, not {1 << 64}"),
        (["--seed", "1x"], "not 1x"),
        (["--address", "leaf1"], "--address must be an IP address such as 10.0.0.1 or fd00::1, not leaf1"),
        (["--timeout-s", "nan"], "--timeout-s must be a number from 0.001 to 86400, not nan"),
        (["--abi", "7"], "--abi must be"),
        (["--plan=1"], "--plan takes no value"),
        (["--ranks"], "--ranks takes a whole number"),
        (["--transport", "--rank", 1], "--transport takes a path or tcp"),
        (["--transport="], "--transport must be a path or tcp"),
        (["--speed", 3], "there is no option --speed"),
    ],
)
def test_wrong_options_are_refused_with_one_sentence(options: list[object], sentence: str) -> None:
    done = driver(*options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.startswith("paralet-nccl-driver: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("transport", "sentence"),
    [
        ("/nowhere.so", "the plugin cannot be loaded"),
        ("libm.so.6", "libm.so.6 exports no vtable ncclNetPlugin_v8 to _v12"),
    ],
)
def test_a_file_that_is_not_a_plugin_is_refused(transport: str, sentence: str) -> None:
    with start_rank("--transport", transport) as rank:
        _, errors = rank.communicate(timeout=60)
    assert rank.returncode == 1
    assert sentence in errors


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("4KiB", 4096), ("4kB", 4000), ("4 k", 4000), ("4ki", 4096), ("400 b", 400)]
)
def test_a_size_has_any_usual_unit(text: str, size: int) -> None:
    assert sum(m["count"] for m in plan(f"--slice-bytes={text}", "--bytes", size, "--ranks", 2)) == size / 4 * 2
    assert plan("--slice-bytes", text, "--bytes", text) == plan("--slice-bytes", size, "--bytes", size)


def test_the_last_of_an_option_counts() -> None:
    assert plan("--ranks", 3, "--ranks=2", "--bytes", 16) == plan("--bytes", 16)


def test_help_has_examples() -> None:
    done = driver("--help")
    assert done.returncode == 0
    assert "--spawn 4 --collective ring" in done.stdout
