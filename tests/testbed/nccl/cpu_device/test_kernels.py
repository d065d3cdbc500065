# SPDX-License-Identifier: Apache-2.0
"""The kernels of the CPU device under the real NCCL: every collective, type and operation, against its definition.

Needs NVIDIA's wheels (`make nccl`, and `make nccl ARGS=all` for the older releases).
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import nccl_net_plugin
from testbed.errors import InputError
from testbed.nccl.cpu_device import native, wheels

REPOSITORY = Path(__file__).parents[4]
PROGRAM = Path(__file__).with_name("kernel_rank.py")
NEWEST = "2.32.3"
RELEASES = (NEWEST, "2.28.9", "2.27.7", "2.25.1", "2.21.5")
TIMEOUT_S = 240

ALL = ["all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "pipeline"]
GROUPED = [f"group_{name}" for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")]


class Run(NamedTuple):
    """Ranks that each are a host of their own to NCCL, and what NCCL is told to use."""

    release: str
    ranks: int
    algorithm: str
    protocol: str
    transport: str
    suite: str

    @property
    def name(self) -> str:
        return "-".join(str(part) for part in self)


def library(release: str) -> Path:
    """The release's libnccl.so.2. Skips the test where it or the device is missing."""
    try:
        native.runtime()
    except InputError as error:
        pytest.skip(str(error))
    found = wheels.installed().get(release)
    if found is None:
        pytest.skip(f"NCCL {release} is not installed: run `make nccl ARGS={release}`")
    return found


def environment(run: Run, rank: int, cache: Path) -> dict[str, str]:
    plugin = str(nccl_net_plugin.path()) if run.transport == "paralet" else "none"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PARALET_"))}
    return kept | {
        "NCCL_ALGO": run.algorithm,
        "NCCL_PROTO": run.protocol,
        "NCCL_NET": run.transport,
        "NCCL_NET_PLUGIN": plugin,
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_LOCAL_REGISTER": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "PARALET_IFNAME": "lo",
        "PYTHONPATH": str(REPOSITORY),
        "XDG_CACHE_HOME": str(cache),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the layouts of libraries are kept from one run to the next."""
    return tmp_path_factory.mktemp("cache")


def logs_of(run: Run, folder: Path, cache: Path) -> list[str]:
    """What the ranks printed. Fails where a rank fails or does not use the transport."""
    nccl = library(run.release)
    logs = [folder / f"rank{rank}.log" for rank in range(run.ranks)]
    processes = []
    for rank, log in enumerate(logs):
        arguments = (str(nccl), str(rank), str(run.ranks), str(folder / "id"), run.suite, "17")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(run, rank, cache),
            )
        processes.append(process)
    try:
        for process in processes:
            process.wait(timeout=TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    texts = [log.read_text(errors="replace") for log in logs]
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    assert not failed, "\n".join(texts[rank][-2000:] for rank in failed)
    assert all(f"via NET/{run.transport}" in text for text in texts)
    return texts


def results(run: Run, folder: Path, cache: Path) -> list[str]:
    """What was verified: kinds of operations, in order."""
    kinds = [re.findall(r"^RESULT (\w+)=\d+$", text, re.MULTILINE) for text in logs_of(run, folder, cache)]
    assert all(each == kinds[0] for each in kinds)
    assert kinds[0][-1] == "destroyed"
    return kinds[0][:-1]


@pytest.mark.parametrize(
    "run",
    [
        *(Run(release, 2, "Ring", "Simple", "Socket", "all") for release in RELEASES),
        Run(NEWEST, 2, "Ring", "LL", "Socket", "all"),
        Run(NEWEST, 2, "Ring", "LL,Simple", "paralet", "all"),
    ],
    ids=lambda run: run.name,
)
def test_all_operations_give_what_they_are_defined_as(run: Run, tmp_path: Path, cache: Path) -> None:
    assert results(run, tmp_path, cache) == [*ALL, *GROUPED, "many"]


@pytest.mark.parametrize(
    "run",
    [
        *(Run(NEWEST, 3, "Tree", protocol, "paralet", "tree") for protocol in ("Simple", "LL")),
        *(Run(release, 3, "Tree", "LL,Simple", "Socket", "tree") for release in RELEASES[1:]),
    ],
    ids=lambda run: run.name,
)
def test_an_all_reduce_over_a_tree(run: Run, tmp_path: Path, cache: Path) -> None:
    assert results(run, tmp_path, cache) == ["all_reduce"]


def test_communicators_that_are_split(tmp_path: Path, cache: Path) -> None:
    run = Run(NEWEST, 4, "Ring", "LL,Simple", "paralet", "split")
    assert results(run, tmp_path, cache) == ["all_reduce", "all_gather"]


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_an_abort_ends_a_kernel_that_waits(protocol: str, tmp_path: Path, cache: Path) -> None:
    run = Run(NEWEST, 2, "Ring", protocol, "Socket", "abandon")
    assert all("RESULT aborted=1" in text for text in logs_of(run, tmp_path, cache))


def test_ranks_get_an_error_when_one_dies_and_can_abort(tmp_path: Path, cache: Path) -> None:
    run = Run(NEWEST, 3, "Ring", "Simple", "paralet", "death")
    *others, last = logs_of(run, tmp_path, cache)
    assert all("RESULT aborted=1" in text for text in others)
    assert "RESULT" not in last
