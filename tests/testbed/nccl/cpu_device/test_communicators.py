# SPDX-License-Identifier: Apache-2.0
"""Communicators of the real NCCL on the CPU device: in turn, side by side, split, finalized, aborted.

Collectives themselves are tested by `paralet nccl`. Here every rank is a process, and a host of its own.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import InputError
from testbed.nccl.cpu_device import native, wheels

SCRIPT = Path(__file__).with_name("communicators.py")
ROOT = Path(native.__file__).parents[3]
PLUGIN = ROOT / "nccl_net_plugin" / "lib" / "libnccl-net-paralet.so"
PROFILER = PLUGIN.with_name("libnccl-profiler-paralet.so")

WAIT_S = 240.0
MANY_S = 1500.0


def missing() -> str | None:
    """Why NCCL cannot run here; None where it can."""
    try:
        native.runtime()
    except InputError as error:
        return str(error)
    return None if wheels.installed() else "no wheel of NCCL is installed: run `make nccl`"


pytestmark = [pytest.mark.skipif(missing() is not None, reason=missing() or ""), pytest.mark.timeout(300)]

VERSIONS = tuple(wheels.installed())

BOTH_NETS = (*((version, "paralet") for version in VERSIONS), *((version, "Socket") for version in VERSIONS[:1]))
"""The plugin under every release, and NCCL's own sockets, which fail in another way, under the newest."""

REMOTE_ERROR = 6  # ncclRemoteError


def order(version: str) -> tuple[int, ...]:
    """A version's numbers."""
    return tuple(int(part) for part in version.split("."))


def run(
    scenario: str, ranks: int, version: str, net: str, folder: Path, timeout_s: float = WAIT_S, **variables: str
) -> list[dict[str, Any]]:
    """The answers of all ranks. `variables`: of NCCL and the plugin."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PARALET_"))}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_NET": net,
        "NCCL_NET_PLUGIN": str(PLUGIN) if net == "paralet" else "none",
    }
    library = str(wheels.installed()[version])
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), scenario, str(rank), str(ranks), library, str(folder)],
            env=environment | variables | {"NCCL_HOSTID": f"host-{rank}"},
            stdout=subprocess.PIPE,
            stderr=(folder / f"{rank}.stderr").open("w"),
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode == -signal.SIGKILL:
            outputs[rank] = "{}"  # it was to die
            continue
        assert process.returncode == 0, (folder / f"{rank}.stderr").read_text()[-2000:]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize(("version", "net"), BOTH_NETS)
def test_an_abort_ends_a_collective_that_others_never_join(tmp_path: Path, version: str, net: str) -> None:
    answers = run("abort", 2, version, net, tmp_path)
    assert [answer["pending"] for answer in answers] == [True, False]
    assert all(answer["right"] for answer in answers)


@pytest.mark.parametrize("net", ["paralet", "Socket"])
def test_a_send_is_longer_than_its_receive(tmp_path: Path, net: str) -> None:
    """As docs/plugin.md says. NCCL leaves it open: 2.27.7 delivers other bytes, over Socket too."""
    sender, receiver = run("longer_send", 2, VERSIONS[0], net, tmp_path)
    assert sender == {"pending": True, "error": 0, "right": True}
    assert receiver == {"pending": False, "error": 0, "right": True}


@pytest.mark.parametrize(("version", "net"), BOTH_NETS)
def test_a_dead_rank_is_noticed_and_the_others_go_on_without_it(tmp_path: Path, version: str, net: str) -> None:
    *survivors, dead = run("killed", 3, version, net, tmp_path)
    assert survivors == [{"error": REMOTE_ERROR, "right": True}] * 2
    assert dead == {}


@pytest.mark.parametrize("version", [each for each in VERSIONS if order(each) >= (2, 28, 0)])
def test_a_communicator_shrinks_with_a_collective_in_flight(tmp_path: Path, version: str) -> None:
    assert run("shrink", 3, version, "paralet", tmp_path) == [{"right": True}] * 3


@pytest.mark.parametrize("version", [each for each in VERSIONS if order(each) >= (2, 29, 0)])
def test_a_revoked_communicator_is_split(tmp_path: Path, version: str) -> None:
    assert run("revoke", 2, version, "paralet", tmp_path) == [{"right": True}] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_communicator_is_split_and_all_parts_work_at_once(tmp_path: Path, version: str) -> None:
    assert run("split", 4, version, "paralet", tmp_path) == [{"half": 2, "right": True}] * 4


@pytest.mark.parametrize("version", VERSIONS)
def test_communicators_are_busy_at_the_same_time(tmp_path: Path, version: str) -> None:
    assert run("streams", 2, version, "paralet", tmp_path) == [{"right": True}] * 2


@pytest.mark.parametrize("version", [each for each in VERSIONS if order(each) >= (2, 28, 0)])
def test_the_profiler_names_the_late_rank_and_the_slowest_lane(tmp_path: Path, version: str) -> None:
    answers = run("late", 3, version, "paralet", tmp_path, NCCL_PROFILER_PLUGIN=str(PROFILER))
    assert [answer["right"] for answer in answers] == [True] * 3
    late = answers[2]["late"]
    assert late["title"].startswith("AllReduce 1 of 0x")
    assert late["title"].endswith(" (3 ranks)")
    assert (late["running"], late["seen"]) == (True, 2)
    assert "rank 2, which has not begun it" in late["late"]
    for answer in answers:
        done = answer["done"]
        assert (done["running"], done["seen"], done["late"]) == (False, 3, "")
        # Two thirds of the data leave each rank twice (ring), or all of them at most twice (tree).
        assert 4 * 800_000 <= done["sent_bytes"] <= 6 * 800_000
        assert done["slowest"]["peer"] == "127.0.0.1"
        assert 0 < done["flowlet_mean_s"] <= done["slowest"]["duration_s"]
        assert answer["left"] == 0  # a process without communicators publishes nothing


@pytest.mark.parametrize("version", VERSIONS)
def test_finalized_communicators_are_followed_by_new_ones(tmp_path: Path, version: str) -> None:
    assert run("finalize", 2, version, "paralet", tmp_path) == [{"right": True}] * 2


def test_an_all_reduce_survives_paths_that_die(tmp_path: Path) -> None:
    """Every path dies after 1000 packets. Each rank sends 19,500, so that at least one of its 8 lanes must move."""
    answers = run(
        "dead_paths",
        2,
        VERSIONS[0],
        "paralet",
        tmp_path,
        PARALET_BACKEND="soft",
        PARALET_POLICY="adaptive",
        PARALET_MIN_TIMEOUT="20ms",
        PARALET_FAULTS="dead=1,dead_after=1000",
    )
    assert answers == [{"right": True}] * 2


@pytest.mark.timeout(MANY_S + 60)
def test_a_hundred_communicators_in_turn_leave_nothing_behind(tmp_path: Path) -> None:
    """NCCL reserves and clears 65 MiB of shared memory for each, so that this takes a minute or more."""
    for answer in run("many", 2, VERSIONS[0], "paralet", tmp_path, MANY_S):
        assert answer["right"]
        # The first ones fill caches and pools of threads.
        early, late = answer["usage"][9], answer["usage"][-1]
        assert late["threads"] <= early["threads"] + 2  # blocks that still wait for more work
        assert late["mappings"] <= early["mappings"] + 2 * 2  # their stacks
        assert late["files"] <= early["files"]
        # KiB; communicators that stayed would keep 4 MiB each. The allocator's arenas grow by some MiB in all.
        assert late["resident"] <= early["resident"] + 64 * 1024
