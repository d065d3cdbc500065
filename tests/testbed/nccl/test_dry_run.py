# SPDX-License-Identifier: Apache-2.0
"""testbed.nccl from its command line to its results, against a stub of NCCL and CUDA (tests/testbed/nccl/stub).

The stub loads plugins by NCCL's rules and moves the data of every collective through them. Its figures mean nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

import nccl_net_plugin
from testbed.nccl import bundle
from testbed.nccl.collectives import COLLECTIVES
from testbed.nccl.results import DRY_RUN
from tests.testbed.nccl.stub import build
from tests.testbed.nccl.stub.build import Stub

ROOT = Path(__file__).parents[3]

INTERFACE_OF_NCCL = {22100: 8, 22400: 9, 22600: 10, 22800: 11, 23000: 12}
"""The newest version of the plugin interface that each release of NCCL supports."""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    return build.build(tmp_path_factory.mktemp("gpu-stub"))


def command(stub: Stub, out: Path, *options: str | Path, plugin: Path | None = None) -> list[str | Path]:
    libraries = ["--nccl", stub.nccl, "--cudart", stub.cudart, "--plugin", plugin or stub.plugin]
    small = ["--sizes", "8,1K", "--repetitions", "1", "--out", out]
    return [sys.executable, "-m", "testbed.nccl", *libraries, *small, *options]


def environment(**variables: str) -> dict[str, str]:
    """The caller's environment without variables that would affect NCCL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PARALET_"))}
    return {**kept, **variables}


def run(
    argv: Iterable[str | Path], cwd: Path = ROOT, timeout_s: float = 100, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(argv), cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout_s
    )


def ranks_of(out: Path) -> list[int]:
    """The processes that log into `out`, if any."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"NCCL_DEBUG_FILE={out}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # ended, or another user's
    return found


def wait_until_no_ranks(out: Path) -> None:
    while ranks_of(out):  # the test's time limit ends it
        time.sleep(0.05)


def last_sentence(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


# -- what works ------------------------------------------------------------------------------------------------------


def test_everything_is_verified_and_marked_as_a_dry_run(stub: Stub, tmp_path: Path) -> None:
    done = run(command(stub, tmp_path, "--json", "--ranks", "3", "--sizes", "8,64K,3M"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert DRY_RUN in found["dry_run"]
    assert (found["complete"], found["results_verified"]) == (True, True)
    assert [(row["collective"], row["bytes"]) for row in found["rows"]] == [
        (name, size)
        for name in COLLECTIVES
        for size in (12, 65544, 3 << 20)  # multiples of 3 elements
    ]
    # Each of three ranks talks to two others, both ways.
    assert found["routes"] == {"paralet": {"NET/paralet/0": 12}, "Socket": {"NET/Socket/0": 12}}
    assert found["environment"]["Socket"]["NCCL_NET"] == "Socket"
    assert json.loads((tmp_path / "results.json").read_text()) == found
    table = (tmp_path / "table.md").read_text()
    assert table.count(DRY_RUN) == 1 + len(COLLECTIVES)
    assert all(line.startswith(DRY_RUN) for line in done.stderr.splitlines())


@pytest.mark.parametrize(("release", "interface"), INTERFACE_OF_NCCL.items())
def test_the_plugin_carries_every_collective_for_every_nccl(
    stub: Stub, tmp_path: Path, release: int, interface: int
) -> None:
    try:
        plugin = nccl_net_plugin.path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    argv = command(stub, tmp_path, "--json", "--sizes", "8,2M", plugin=plugin)
    done = run(argv, PARALET_STUB_NCCL_VERSION=str(release))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {row["collective"] for row in found["rows"]} == set(COLLECTIVES)
    assert list(found["routes"]["paralet"]) == ["NET/paralet/0"]
    assert "lanes" in found["banners"]["paralet"]
    log = (tmp_path / "logs" / "paralet-rank0.nccl.log").read_text()
    assert f"Loaded net plugin paralet (v{interface})" in log


def test_a_bundle_runs_with_python_alone(stub: Stub, tmp_path: Path) -> None:
    archive = tmp_path / "paralet-nccl.tar.gz"
    packed = run([sys.executable, "-m", "testbed.nccl", "--plugin", stub.plugin, "--bundle", archive])
    assert packed.returncode == 0, packed.stderr
    subprocess.run(["tar", "xzf", archive], cwd=tmp_path, check=True)
    folder = tmp_path / bundle.NAME
    argv = [sys.executable, "-S", "-m", "testbed.nccl", "--nccl", stub.nccl, "--cudart", stub.cudart, "--json"]
    done = run([*argv, "--sizes", "8", "--repetitions", "1"], cwd=folder, PYTHONPATH="", PYTHONNOUSERSITE="1")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["routes"]["paralet"]) == ["NET/paralet/0"]
    assert (folder / "results" / "nccl" / "results.json").exists()


def test_mps_is_started_for_the_ranks_and_ended(stub: Stub, tmp_path: Path) -> None:
    control, record = tmp_path / "bin" / "nvidia-cuda-mps-control", tmp_path / "record"
    control.parent.mkdir()
    control.write_text(f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY $*" "$(cat)" >>"{record}"\n')
    control.chmod(0o755)
    path = f"{control.parent}:{os.environ['PATH']}"
    done = run(command(stub, tmp_path / "out", "--mps", "--collectives", "all_reduce"), PATH=path)
    assert done.returncode == 0, done.stderr
    start, end = (line.split(maxsplit=1) for line in record.read_text().splitlines())
    assert (start[0], start[1].split(), end[1].split()) == (end[0], ["-d"], ["quit", "-t", "5"])
    assert not Path(start[0]).exists()
    assert "at the same time (MPS)" in done.stdout


# -- what must be noticed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("wrong-result", "rank 1 over paralet failed: all_reduce of 8 bytes gave a wrong result: element 1 of 2 is"),
        ("past-end", "rank 1 over paralet failed: all_reduce of 8 bytes wrote past the end of its result, 0 bytes"),
        ("no-line", "rank 0 over paralet: NCCL's log has no line 'via NET/paralet'"),
        ("via-shm", "NCCL moves data from rank 1 to rank 0 via SHM/direct/direct, not via NET/paralet"),
        ("async-error", "rank 1 over paralet failed: an operation failed: remote process exited"),
    ],
)
def test_failures_are_one_line_errors(stub: Stub, tmp_path: Path, fault: str, sentence: str) -> None:
    done = run(command(stub, tmp_path), PARALET_STUB_FAULT=fault)
    assert done.returncode == 1
    assert last_sentence(done).startswith("python3 -m testbed.nccl: ")
    assert sentence in last_sentence(done)
    assert str(tmp_path / "logs") in last_sentence(done)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results.json").exists()
    assert not ranks_of(tmp_path)


def test_a_crashed_rank_is_reported(stub: Stub, tmp_path: Path) -> None:
    done = run(command(stub, tmp_path), PARALET_STUB_FAULT="crash")
    assert done.returncode == 1
    # Either the rank that crashed is seen first, or the one that misses it.
    assert any(
        text in last_sentence(done) for text in ("rank 1 over paralet ended by signal SIGABRT", "remote process")
    )


def test_a_hanging_rank_is_reported_and_ended(stub: Stub, tmp_path: Path) -> None:
    done = run(command(stub, tmp_path, "--timeout-s", "1"), PARALET_STUB_FAULT="hang")
    assert done.returncode == 1
    assert "over paralet did not finish 'measure' within 1 s" in last_sentence(done)
    assert not ranks_of(tmp_path)


@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_ranks_end_when_their_parent_is_interrupted_or_killed(
    stub: Stub, tmp_path: Path, signal_number: int, status: int
) -> None:
    process = subprocess.Popen(
        command(stub, tmp_path), cwd=ROOT, env=environment(PARALET_STUB_FAULT="hang"), stderr=subprocess.DEVNULL
    )
    try:
        while not list((tmp_path / "logs").glob("Socket-rank1.nccl.log")):  # all have begun to join
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal_number)
        assert process.wait() == status
        wait_until_no_ranks(tmp_path)
    finally:
        process.kill()


def test_a_plugin_with_another_name_is_refused(stub: Stub, tmp_path: Path) -> None:
    other = build.plugin(tmp_path / "libnccl-net-other.so", "other")
    done = run(command(stub, tmp_path, plugin=other))
    assert done.returncode == 1
    assert "ncclCommInitRank failed: invalid usage" in last_sentence(done)
    assert "Failed to initialize any NET plugin" in last_sentence(done)


@pytest.mark.parametrize(
    ("variables", "options", "sentence"),
    [
        ({}, ["--nccl", "absent.so"], "--nccl: there is no file absent.so"),
        ({}, ["--plugin", "absent.so"], "--plugin: there is no file absent.so"),
        ({}, ["--plugin", "pyproject.toml"], "the plugin cannot be loaded on this machine"),
        ({}, ["--nccl", "pyproject.toml"], "pyproject.toml cannot be used"),
        ({"PARALET_STUB_CUDA_DRIVER": "0"}, [], "this machine has no NVIDIA driver"),
        ({"PARALET_STUB_CUDA_DRIVER": "12040"}, [], "is CUDA 13.0, the driver can do 12.4; name an older libcudart"),
        ({"PARALET_STUB_GPUS": "0"}, [], "cudaGetDeviceCount failed: no CUDA-capable device is detected"),
        ({}, ["--gpus", "2"], "--gpus 2: this machine has 1"),
        ({"PARALET_STUB_NCCL_VERSION": "22005"}, [], "is NCCL 2.20.5; the plugin needs 2.21.0 or later"),
        ({"PATH": "/nowhere"}, ["--mps"], "--mps: nvidia-cuda-mps-control is not on this machine"),
        ({}, ["--out", "/dev/null/x"], "--out: cannot write to /dev/null/x: Not a directory"),
        ({}, ["--ranks", "1"], "argument --ranks: '1' is no number from 2 to 1024"),
        ({}, ["--sizes", "8,8"], "argument --sizes: '8,8' names something twice"),
        ({}, ["--transports", "tcp"], "argument --transports: 'tcp' is none of paralet, Socket, IB"),
        ({}, ["--collectives", "reduce"], "argument --collectives: 'reduce' is none of all_reduce, "),
    ],
)
def test_invalid_requests_are_one_line_errors(
    stub: Stub, tmp_path: Path, variables: dict[str, str], options: list[str], sentence: str
) -> None:
    done = run(command(stub, tmp_path, *options), **variables)
    assert done.returncode == 2
    assert done.stderr.startswith("python3 -m testbed.nccl: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_the_error_without_nccl_says_how_to_install_it(stub: Stub, tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-m", "testbed.nccl", "--plugin", stub.plugin, "--out", tmp_path, "--sizes", "8"]
    done = run(argv, PYTHONPATH=str(ROOT), LD_LIBRARY_PATH="")
    if "--nccl" not in done.stderr:
        pytest.skip("this machine has a libnccl.so.2 of its own")
    assert done.returncode == 2
    assert "libnccl.so.2 is nowhere on this machine" in done.stderr
