# SPDX-License-Identifier: Apache-2.0
"""`paralet nccl` from its command line to its results, with the real NCCL on the CPU device where it is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import InputError
from testbed.nccl import bundle, releases
from testbed.nccl.collectives import COLLECTIVES
from testbed.nccl.elements import REDUCTIONS, TYPES

ROOT = Path(__file__).parents[3]
MODULE = [sys.executable, "-m", "testbed.nccl"]


def environment(**variables: str) -> dict[str, str]:
    """The caller's environment without variables that would affect NCCL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PARALET_"))}
    return {**kept, **variables}


def run(
    argv: Iterable[str | Path], cwd: Path = ROOT, timeout_s: float = 110, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(argv), cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout_s
    )


def small(out: Path, *options: str | Path) -> list[str | Path]:
    return [*MODULE, "--device", "cpu", "--sizes", "8", "--repetitions", "1", "--out", out, *options]


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


def test_every_collective_is_verified_over_both_transports(nccl: str, tmp_path: Path) -> None:
    done = run(small(tmp_path, "--nccl", nccl, "--json", "--ranks", "3", "--sizes", "8,300K", "--in-place"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["complete"], found["nwrong"], found["found"]["nccl_version"]) == (True, 0, nccl)
    assert [(row["transport"], row["collective"], row["size"]) for row in found["results"]] == [
        (transport, name, size)
        for name in COLLECTIVES
        for size in (12, 307_200)  # multiples of 3 elements
        for transport in ("paralet", "Socket")
    ]
    assert all(row["in_place"] is not None for row in found["results"] if COLLECTIVES[row["collective"]].placement)
    # Sends and receives have connections of their own, with buffers that they share.
    assert {name: list(routes) for name, routes in found["routes"].items()} == {
        name: [f"NET/{name}/0", f"NET/{name}/0/Shared"] for name in ("paralet", "Socket")
    }
    assert found["interfaces"].keys() == {"paralet"}
    assert "lanes" in found["banners"]["paralet"]
    assert found["environment"]["Socket"]["NCCL_NET"] == "Socket"
    assert json.loads((tmp_path / "results.json").read_text()) == found
    assert "| all_to_all | paralet us |" in (tmp_path / "table.md").read_text()


@pytest.mark.timeout(300)
def test_every_type_and_reduction_is_verified_as_the_table_of_releases_says(nccl: str, tmp_path: Path) -> None:
    done = run([*MODULE, *releases.OPTIONS, "--nccl", nccl, "--out", tmp_path], timeout_s=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["nwrong"] == 0
    setups = {(algorithm, protocol) for algorithm in ("Ring", "Tree") for protocol in ("Simple", "LL")}
    assert {(row["algorithm"], row["protocol"]) for row in found["results"]} == setups
    all_reduces = [row for row in found["results"] if row["collective"] == "all_reduce"]
    assert len(all_reduces) == len(TYPES) * len(REDUCTIONS) * len(setups)
    assert (tmp_path / "logs" / "paralet-Tree-LL-rank1.nccl.log").exists()
    table = releases.written(releases.PAGE.read_text())
    if f"| {nccl} |" in table:  # otherwise `python -m testbed.nccl.releases` adds it
        assert releases.row_of(nccl, found) in table.splitlines()


def test_a_row_of_releases_counts_cases_or_names_what_went_wrong() -> None:
    found: dict[str, Any] = {"interfaces": {"paralet": "v12"}, "results": []}
    found["results"] = [{"collective": name, "out_of_place": {"nwrong": 0}} for name in COLLECTIVES for _ in range(3)]
    assert releases.row_of("2.32.3", found) == f"| 2.32.3 | v12 | {3 * len(COLLECTIVES)} |"
    found["results"].append({"collective": "reduce", "out_of_place": {"nwrong": 7}})
    assert releases.row_of("2.32.3", found) == "| 2.32.3 | v12 | reduce: 1 of 4 wrong |"


def test_fresh_rows_of_releases_replace_old_ones_and_others_stay() -> None:
    old = ["| 2.30.7 | v12 | 200 |", "| 2.9.1 | v8 | 100 |"]
    fresh = ["| 2.9.1 | v8 | 200 |", "| 2.25.1 | v9 | 200 |"]
    assert releases.updated(old, fresh) == [old[0], fresh[1], fresh[0]]


def test_the_table_of_releases_is_found_in_its_page() -> None:
    rows = ["| 2.32.3 | v12 | 200 |"]
    page = "text\n<!-- releases: begin -->\n" + releases.table(rows) + "<!-- releases: end -->\n"
    assert releases.written(page) == releases.table(rows)
    with pytest.raises(InputError, match="the page has no lines"):
        releases.written("text")


def test_a_bundle_needs_python_alone(tmp_path: Path) -> None:
    """Its program gets as far as NCCL, which a machine without a GPU does not have."""
    plugin, archive = tmp_path / "libnccl-net-paralet.so", tmp_path / "paralet-nccl.tar.gz"
    plugin.write_bytes(Path("/bin/true").read_bytes())
    packed = run([*MODULE, "--plugin", plugin, "--bundle", archive])
    assert packed.returncode == 0, packed.stderr
    subprocess.run(["tar", "xzf", archive], cwd=tmp_path, check=True)
    folder = tmp_path / bundle.NAME
    argv = [sys.executable, "-S", "-m", "testbed.nccl", "--device"]
    bare = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1", "LD_LIBRARY_PATH": ""}
    helped = run([*argv, "cpu", "--help"], cwd=folder, **bare)
    assert helped.returncode == 0, helped.stderr
    done = run([*argv, "cpu"], cwd=folder, **bare)
    assert (done.returncode, "NCCL is not installed" in done.stderr) == (2, True), done.stderr
    done = run([*argv, "gpu"], cwd=folder, **bare)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


# -- what must be noticed --------------------------------------------------------------------------------------------


def test_a_library_that_is_no_plugin_is_reported_in_the_words_of_nccl(nccl: str, tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    subprocess.run(["cc", "-shared", "-x", "c", "-o", other, "/dev/null"], check=True)
    done = run(small(tmp_path, "--nccl", nccl, "--plugin", other, "--transports", "paralet"))
    assert done.returncode == 1
    assert "ncclCommInitRank failed: invalid usage" in last_sentence(done)
    assert str(tmp_path / "logs") in last_sentence(done)
    assert "Traceback" not in done.stderr
    assert not ranks_of(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_is_reported_and_all_end(nccl: str, tmp_path: Path, number: int) -> None:
    options = ["--transports", "paralet", "--timeout-s", "3"]
    with in_operation(nccl, tmp_path, *options) as process:
        os.kill(rank_1(tmp_path), number)
        _, said = process.communicate()
        assert process.returncode == 1
        last = said.strip().splitlines()[-1]
        assert "rank " in last
        assert " over paralet " in last
        assert "Traceback" not in said
        wait_until_no_ranks(tmp_path)


def test_a_rank_that_stops_for_a_while_goes_on(nccl: str, tmp_path: Path) -> None:
    """Its peers retransmit until it is back; nothing is lost and no error is raised."""
    with in_operation(nccl, tmp_path, "--transports", "paralet", repetitions=3) as process:
        victim = rank_1(tmp_path)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(victim, signal.SIGCONT)
        _, said = process.communicate()
        assert process.returncode == 0, said
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["complete"], found["nwrong"]) == (True, 0)


def test_collectives_are_right_where_packets_are_lost(nccl: str, tmp_path: Path) -> None:
    options = ["--nccl", nccl, "--json", "--ranks", "3", "--sizes", "8,300K", "--transports", "soft"]
    done = run(small(tmp_path, *options), PARALET_FAULTS="drop=0.01,seed=3", PARALET_PATH_MTU="1024")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["complete"], found["nwrong"]) == (True, 0)
    assert found["environment"]["soft"]["PARALET_FAULTS"] == "drop=0.01,seed=3"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_ranks_end_when_their_parent_is_interrupted_or_killed(
    nccl: str, tmp_path: Path, number: int, status: int
) -> None:
    with in_operation(nccl, tmp_path) as process:
        process.send_signal(number)
        assert process.wait() == status
        wait_until_no_ranks(tmp_path)


@contextmanager
def in_operation(nccl: str, out: Path, *options: str, repetitions: int = 60) -> Iterator[subprocess.Popen[str]]:
    """The command, while its ranks run all-reduces of 16 MiB; by default for longer than any test."""
    endless = ["--collectives", "all_reduce", "--sizes", "8,16M", "--repetitions", str(repetitions)]
    process = subprocess.Popen(
        small(out, "--nccl", nccl, *endless, *options),
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        while "all_reduce 8 B" not in process.stderr.readline():
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def rank_1(out: Path) -> int:
    """The process of rank 1 over the plugin."""
    log = out / "logs" / "paralet-rank1.nccl.log"
    (rank,) = (pid for pid in ranks_of(out) if f"NCCL_DEBUG_FILE={log}".encode() in environ(pid))
    return rank


def environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nccl", "absent.so"], "--nccl: there is no file absent.so, and it is not a version such as 2.27.7"),
        (["--nccl", "1.2.3"], "--nccl: NCCL 1.2.3 is not installed"),
        (["--nccl", "pyproject.toml"], "pyproject.toml"),
        (["--nccl", "/bin/true"], "/bin/true"),
        (["--plugin", "absent.so"], "--plugin: there is no file absent.so"),
        (["--mps"], "--mps is for a GPU; this run is on the CPU device"),
        (["--cudart", "libcudart.so"], "--cudart is for a GPU"),
        (["--ranks", "1"], "argument --ranks: '1' is not a number from 2 to 1024"),
        (["--sizes", "8,8"], "argument --sizes: '8,8' names something twice"),
        (["--transports", "pigeon"], "--transports: 'pigeon' is none of paralet, Socket, IB, Socket:TxS, "),
        (["--transports", "pigeon:2"], "--transports: 'pigeon:2' is none of paralet, Socket, IB, "),
        (["--transports", "Socket:4"], "--transports: 'Socket:4' is none of paralet, Socket, IB, "),
        (["--cores-per-rank", "1000"], "--cores-per-rank 1000: 2 ranks need 2000 cores; "),
        (["--collectives", "gather"], "argument --collectives: 'gather' is none of all_reduce, "),
        (["--types", "float8"], "argument --types: 'float8' is none of float32, "),
        (["--ops", "prod"], "argument --ops: 'prod' is none of sum, max, min, avg"),
        (["--algorithms", "Tree", "--collectives", "reduce"], "NCCL's trees carry all_reduce only"),
        (["--ranks", "300", "--types", "bfloat16"], "sums of 300 ranks are not exact in bfloat16; use fewer ranks"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
    ],
)
def test_invalid_requests_are_one_line_errors(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = run(small(tmp_path, *options))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("python3 -m testbed.nccl: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_gpu_that_does_not_work_is_a_one_line_error(nccl: str, tmp_path: Path) -> None:
    """A driver that answers, and a GPU that does not, as where the fabric manager of an HGX machine is missing."""
    unused = "GetDeviceProperties SetDevice Malloc Free Memcpy MemsetAsync StreamCreate StreamQuery StreamDestroy "
    unused += "EventCreate EventRecord EventElapsedTime EventDestroy"
    source = "".join(f"int cuda{name}(void) {{ return 802; }}\n" for name in unused.split())
    source += """
    int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
    int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
    int cudaGetDeviceCount(int *count) { *count = 0; return 802; }
    const char *cudaGetErrorString(int error) { return "system not yet initialized"; }
    """
    cudart = tmp_path / "libcudart.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", cudart, "-"], input=source, text=True, check=True)
    done = run([*MODULE, "--device", "gpu", "--nccl", nccl, "--cudart", cudart, "--out", tmp_path / "out"])
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("python3 -m testbed.nccl: CUDA cannot use the GPU: ")
    assert "system not yet initialized" in done.stderr
    assert done.stderr.endswith("; --device cpu runs without a GPU\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_made_is_a_one_line_error(nccl: str, tmp_path: Path) -> None:
    done = run(small(tmp_path, "--nccl", nccl, "--out", "/dev/null/x"))
    assert done.returncode == 2, done.stderr
    assert done.stderr == "python3 -m testbed.nccl: cannot write results to /dev/null/x: Not a directory\n"
