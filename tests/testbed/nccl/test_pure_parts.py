# SPDX-License-Identifier: Apache-2.0
"""The parts of testbed.nccl that need neither libraries nor processes."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.machine import Machine
from testbed.nccl import (
    back_ends,
    bundle,
    cores,
    devices,
    environment,
    libraries,
    mps,
    netlog,
    results,
    runner,
    sizes,
)
from testbed.nccl.collectives import COLLECTIVES, Operation
from testbed.nccl.elements import TYPES
from testbed.nccl.probe import Found
from testbed.nccl.results import Case, Results, Setup, Timing
from testbed.nccl.runner import Plan

# -- sizes -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, sizes.LARGEST))
def test_sizes_survive_a_round_trip_through_text(size: int) -> None:
    assert sizes.parse(sizes.text(size).replace(",", "")) == size


def test_sizes_are_parsed_with_units() -> None:
    assert [sizes.parse(text) for text in ("8", "64k", "512M", "1 GiB", "3KB")] == [8, 1 << 16, 1 << 29, 1 << 30, 3072]
    assert (sizes.text(8), sizes.text(1 << 29), sizes.text(1536)) == ("8 B", "512 MiB", "1,536 B")


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5M", "8X", "65G", "9" * 30])
def test_malformed_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size from 1 to 64G"):
        sizes.parse(text)


# -- NCCL's log: lines as NCCL 2.19 to 2.32 write them (src/transport/net.cc, shm.cc, p2p.cc) ------------------------

SENDS = "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/paralet/0\n"
RECEIVES = "host:1:2 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/paralet/0/GDRDMA/Shared\n"
SOCKET = "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
SHM = "host:1:2 [0] NCCL INFO Channel 00 : 1[0] -> 0[0] via SHM/direct/direct\n"
P2P = "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n"
WARNS = "\n[2026-11-20 21:50:12] host:1:2 [0] init.cc:1 NCCL WARN Failed to initialize any NET plugin\n"
BANNER = (
    "host:1:2 [0] NCCL INFO NET/paralet: lo is used with ::1\n"
    "host:1:2 [0] NCCL INFO NET/paralet: paralet 0.1.0, back end soft, m = 8 lanes\n"
)


def test_a_log_with_only_network_channels_is_accepted() -> None:
    log = BANNER + SENDS + RECEIVES + SENDS
    assert netlog.fault(log, "paralet") is None
    assert netlog.routes(log) == {"NET/paralet/0": 2, "NET/paralet/0/GDRDMA/Shared": 1}
    assert netlog.banner(log, "paralet") == "paralet 0.1.0, back end soft, m = 8 lanes"
    assert netlog.banner(SOCKET, "Socket") is None


def test_the_log_says_which_interface_nccl_uses() -> None:
    log = "host:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin paralet (v12)\n"
    assert netlog.interface(log, "paralet") == "v12"
    assert netlog.interface(BANNER + "host:1:2 [0] NCCL INFO Using network paralet\n", "paralet") == "v8"
    assert netlog.interface(log, "Socket") is None


@pytest.mark.parametrize(
    ("log", "transport", "sentence"),
    [
        ("", "paralet", "NCCL's log has no line 'via NET/paralet'"),
        (BANNER + WARNS, "paralet", "its last warning is: Failed to initialize any NET plugin"),
        (SOCKET, "paralet", "from rank 0 to rank 1 via NET/Socket/0, not via NET/paralet"),
        (SENDS, "Socket", "via NET/paralet/0, not via NET/Socket"),
        (SENDS + SHM, "paralet", "from rank 1 to rank 0 via SHM/direct/direct, not via NET/paralet"),
        (SENDS + P2P, "paralet", "via P2P/CUMEM, not via NET/paralet"),
        (SENDS.replace("paralet", "paralet2"), "paralet", "via NET/paralet2/0, not via NET/paralet"),
    ],
)
def test_a_log_without_proof_of_the_transport_is_a_fault(log: str, transport: str, sentence: str) -> None:
    assert sentence in (netlog.fault(log, transport) or "no fault")


# -- environment -----------------------------------------------------------------------------------------------------


def test_ranks_have_separate_host_ids_and_keep_the_callers_settings(tmp_path: Path) -> None:
    inherited = {"NCCL_NET": "IB", "NCCL_ALGO": "Ring", "PARALET_LANES": "4", "LD_LIBRARY_PATH": "/opt"}
    plugin, log = tmp_path / "libnccl-net-paralet.so", tmp_path / "100%.log"
    ours, socket = (
        environment.of_rank(inherited, transport, rank, plugin, "lo", log)
        for rank, transport in enumerate(["paralet", "Socket"])
    )
    assert (ours["NCCL_NET"], ours["NCCL_NET_PLUGIN"]) == ("paralet", str(plugin))
    assert (socket["NCCL_NET"], socket["NCCL_NET_PLUGIN"]) == ("Socket", "none")
    assert ours["NCCL_HOSTID"] != socket["NCCL_HOSTID"]
    assert ours["LD_LIBRARY_PATH"] == f"{tmp_path}:/opt"
    assert ours["NCCL_DEBUG_FILE"].endswith("100%%.log")  # NCCL replaces %h and %p
    for each in (ours, socket):
        assert (each["NCCL_ALGO"], each["PARALET_LANES"]) == ("Ring", "4")
        assert (each["NCCL_SOCKET_IFNAME"], each["NCCL_MNNVL_ENABLE"], each["NCCL_DEBUG"]) == ("lo", "0", "INFO")
    assert environment.chosen(ours) == {
        "NCCL_ALGO": "Ring",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NET": "paralet",
        "NCCL_NET_PLUGIN": "libnccl-net-paralet.so",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
        "PARALET_LANES": "4",
    }


def test_a_transport_may_be_a_back_end_with_shards(tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-net-paralet.so"
    sharded = environment.of_rank({"PARALET_SHARDS": "1"}, "tcp:4", 0, plugin, "lo", Path("log"))
    assert (sharded["NCCL_NET"], sharded["PARALET_BACKEND"], sharded["PARALET_SHARDS"]) == ("paralet", "tcp", "4")


def test_a_transport_may_be_a_back_end_or_a_setting_of_sockets(tmp_path: Path) -> None:
    inherited = {"PARALET_BACKEND": "verbs", "NCCL_SOCKET_NTHREADS": "1"}
    plugin = tmp_path / "libnccl-net-paralet.so"

    def variables(transport: str) -> dict[str, str]:
        return environment.of_rank(inherited, transport, 0, plugin, "lo", Path("log"))

    soft, sockets, plain = variables("soft"), variables("Socket:4x2"), variables("paralet")
    assert (soft["NCCL_NET"], soft["PARALET_BACKEND"], soft["NCCL_NET_PLUGIN"]) == ("paralet", "soft", str(plugin))
    assert (sockets["NCCL_NET"], sockets["NCCL_NET_PLUGIN"]) == ("Socket", "none")
    assert (sockets["NCCL_SOCKET_NTHREADS"], sockets["NCCL_NSOCKS_PERTHREAD"]) == ("4", "2")
    assert (plain["PARALET_BACKEND"], plain["NCCL_SOCKET_NTHREADS"]) == ("verbs", "1")  # the caller's
    assert len({each["NCCL_HOSTID"] for each in (soft, sockets, plain)}) == 3


@pytest.mark.parametrize(
    "transport", ["tcp:0", "tcp:02", "tcp:17", "tcp:99", "verbs:2", "auto:2", "paralet:2", "tcp:", ""]
)
def test_a_number_of_shards_that_no_device_can_have_is_no_transport(transport: str, tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-net-paralet.so"
    row = {"name": "PARALET_BACKEND", "values": "auto, soft, tcp or verbs"}
    (tmp_path / back_ends.TABLE).write_text(json.dumps([row]))
    back_ends.check(["Socket:4x1", "soft", "soft:1", "tcp:16"], plugin)
    with pytest.raises(InputError, match=rf"--transports: '{transport}' is none of .*, soft:K, tcp:K \(K: 1 to 16\)"):
        back_ends.check([transport], plugin)


def test_the_back_ends_of_a_plugin_are_those_of_its_table(tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-net-paralet.so"
    assert back_ends.beside(plugin) == []
    row = {"name": "PARALET_BACKEND", "values": "auto, soft, tcp or verbs"}
    (tmp_path / back_ends.TABLE).write_text(json.dumps([{"name": "PARALET_LANES", "values": "1 to 1024"}, row]))
    assert back_ends.beside(plugin) == ["auto", "soft", "tcp", "verbs"]
    plugin.write_bytes(Path("/bin/true").read_bytes())
    assert f"lib/{back_ends.TABLE}" in bundle.write(tmp_path / "x.tar.gz", plugin)


def test_ranks_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3, 5, 7, 9})
    assert cores.cores_of(2, 2) == [{1, 3}, {5, 7}]
    with pytest.raises(InputError, match=r"--cores-per-rank 3: 2 ranks need 6 cores; 5 are usable"):
        cores.cores_of(2, 3)


class Recorder:
    """Ranks that answer at once; they note whose turn it is."""

    def __init__(self, name: str, turns: list[tuple[str, int]]) -> None:
        self._name = name
        self._turns = turns

    def ask_all(self, command: dict[str, Any], timeout_s: float) -> dict[int, dict[str, Any]]:
        self._turns.append((self._name, command["iterations"]))
        seconds = [0.01 * len(self._turns)] * command["iterations"]
        return {rank: {"seconds": seconds, "wrong": 0, "sentence": ""} for rank in range(2)}


def test_every_repetition_goes_through_the_transports_and_back(tmp_path: Path) -> None:
    names = ("soft", "tcp", "Socket")
    operation = Operation(COLLECTIVES["all_reduce"], TYPES["float32"], "sum", 2, 2)
    plan = Plan(
        libraries=devices.Libraries("cpu", Path("libnccl.so.2"), None),
        transports=names,
        ranks=2,
        gpus=0,
        setups=(Setup(),),
        collectives=("all_reduce",),
        sizes=(8,),
        types=("float32",),
        redops=("sum",),
        in_place=False,
        repetitions=2,
        plugin=None,
        interface="lo",
        log_dir=tmp_path,
        timeout_s=1,
        mps=False,
    )
    turns: list[tuple[str, int]] = []
    groups: Any = {name: Recorder(name, turns) for name in names}
    case = runner._measure(plan, Setup(), groups, operation, in_place=False, say=lambda _: None)
    measured = turns[2 * len(names) :]  # after the first operations
    assert [name for name, _ in measured] == [*names, *names[::-1]] * 2
    assert len({iterations for _, iterations in measured}) == 1
    # Times grow with every turn, so only the same mean place gives every transport the same time.
    assert len({round(timing.repetitions_s[0], 9) for timing in case.timings.values()}) == 1
    assert all(len(timing.repetitions_s) == 2 for timing in case.timings.values())


def test_a_setup_replaces_the_callers_algorithm_and_protocol() -> None:
    inherited = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}

    def algorithm_and_protocol(setup: Setup) -> tuple[str, str]:
        found = environment.of_rank(inherited, "Socket", 0, None, "lo", Path("log"), setup)
        return found["NCCL_ALGO"], found["NCCL_PROTO"]

    assert algorithm_and_protocol(Setup()) == ("Tree", "LL")
    assert algorithm_and_protocol(Setup("Ring", "Simple")) == ("Ring", "Simple")


def test_the_callers_interface_is_used() -> None:
    inherited = {"NCCL_SOCKET_IFNAME": "eth0"}
    assert environment.of_rank(inherited, "Socket", 0, None, "lo", Path("log"))["NCCL_SOCKET_IFNAME"] == "eth0"


# -- libraries: as wheels and torch lay them out ---------------------------------------------------------------------


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Creates a file in a folder that is the only one on sys.path, and returns its path."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(libraries, "_IN_SYSTEM", ())
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)

    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    return make


@pytest.mark.parametrize(
    ("names", "file"),
    [
        (libraries.NCCL, "nvidia/nccl/lib/libnccl.so.2"),
        (libraries.CUDART, "nvidia/cu13/lib/libcudart.so.13"),
        (libraries.CUDART, "nvidia/cuda_runtime/lib/libcudart.so.12"),
        (libraries.CUDART, "torch/lib/libcudart-9335f6a2.so.12"),
        (libraries.CUDART, "prefix/lib/libcudart.so.12"),
    ],
)
def test_libraries_are_found_in_installed_wheels(
    site_packages: Callable[[str], Path], names: tuple[str, ...], file: str
) -> None:
    path = site_packages(file)
    assert libraries.find(names, "--it") == path


def test_the_option_precedes_the_loader_path_and_wheels(
    site_packages: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    site_packages("nvidia/nccl/lib/libnccl.so.2")
    loaders = site_packages("mine/libnccl.so.2")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{loaders.parent}")
    assert libraries.find(libraries.NCCL, "--nccl") == loaders
    named = site_packages("other/libnccl.so.2")
    assert libraries.find(libraries.NCCL, "--nccl", named) == named


def test_the_error_for_a_missing_library_names_its_option(site_packages: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"libnccl.so.2 is nowhere on this machine.*--nccl"):
        libraries.find(libraries.NCCL, "--nccl")
    with pytest.raises(InputError, match=r"--nccl: there is no file .*absent"):
        libraries.find(libraries.NCCL, "--nccl", tmp_path / "absent")


# -- results ---------------------------------------------------------------------------------------------------------


def some_results(transports: tuple[str, ...] = ("paralet", "Socket"), wrong: int = 0, device: str = "cpu") -> Results:
    timings = {
        "paralet": Timing((1e-3, 3e-3, 2e-3), tuple(each * 1e-3 for each in range(1, 101)), wrong),
        "Socket": Timing((4e-3, 4e-3, 9e-3), (4e-3, 4e-3, 9e-3), 0),
        "Socket:4x1": Timing((8e-3, 8e-3, 8e-3), (8e-3,), 0),
    }
    chosen = {name: timings[name] for name in transports}
    operation = Operation(COLLECTIVES["all_gather"], TYPES["float16"], "none", 4, 1 << 19)
    return Results(
        when="2026-11-20T12:00:00+00:00",
        machine=Machine("CPU", 16, "Linux 6", "580.1", "cubic"),
        found=Found(device, ("NVIDIA H200",) if device == "gpu" else (), "2.32.3", "13.0", "13.0"),
        ranks=4,
        gpus=1,
        mps=False,
        repetitions=3,
        transports=transports,
        cores_per_rank=None,
        environment={name: {"NCCL_NET": name} for name in transports},
        routes={"paralet": {"NET/paralet/0": 4}},
        interfaces={"paralet": "v12"},
        banners={"paralet": "paralet 0.1.0, m = 8 lanes"},
        cases=(Case(Setup(), operation, False, chosen), Case(Setup(), operation, True, chosen)),
        complete=True,
    )


def test_rows_have_the_keys_and_units_of_nccl_tests() -> None:
    found = json.loads(json.dumps(results.as_json(some_results())))
    ours, socket = found["results"]
    assert (ours["transport"], socket["transport"]) == ("paralet", "Socket")
    assert {key: ours[key] for key in ("size", "count", "type", "redop", "root")} == {
        "size": 1 << 20,
        "count": (1 << 19) // 4,
        "type": "float16",
        "redop": "none",
        "root": -1,
    }
    figures = ours["out_of_place"]
    assert figures["time"] == pytest.approx(2000)  # us
    assert figures["alg_bw"] == pytest.approx((1 << 20) / 2e-3 / 1e9)  # GB/s
    assert figures["bus_bw"] == pytest.approx(figures["alg_bw"] * 3 / 4)
    assert (figures["p50_us"], figures["p99_us"]) == (pytest.approx(50_000), pytest.approx(99_000))
    assert ours["in_place"] == figures
    assert [(row["transport"], row["peer"], row["bus_bw"]) for row in found["ratios"]] == [
        ("paralet", "Socket", pytest.approx(2.0))
    ] * 2


def test_wrong_elements_are_in_every_output() -> None:
    found = some_results(wrong=7)
    assert results.as_json(found)["nwrong"] == 14  # out of place and in place
    assert results.as_json(found)["results"][0]["out_of_place"]["nwrong"] == 7
    assert "14 elements are wrong" in results.as_markdown(found)


def test_the_table_shows_machine_and_time() -> None:
    text = results.as_markdown(some_results())
    assert text.startswith("### 2026-11-20, NCCL 2.32.3 on the CPU device\n")
    assert "| 1 MiB | float16 none | out | 2,000.0 | 99,000.0 | 0.3932 | 0 | 4,000.0 | 9,000.0 |" in text
    assert "NCCL uses paralet by interface v12. paralet is paralet 0.1.0, m = 8 lanes." in text
    assert "did not finish" not in text


def test_the_table_of_a_gpu_names_it() -> None:
    text = results.as_markdown(some_results(device="gpu"))
    assert text.startswith("### 2026-11-20, NCCL 2.32.3 on 1 GPU (NVIDIA H200)\n")
    assert "time-sliced kernels (no MPS)" in text


def test_each_transport_is_compared_with_the_last() -> None:
    found = some_results(transports=("Socket:4x1", "paralet", "Socket"))
    assert found.cases[0].ratios == {"Socket:4x1": pytest.approx(0.5), "paralet": pytest.approx(2.0)}
    assert len(results.as_json(found)["ratios"]) == 2 * len(found.cases)
    text = results.as_markdown(found)
    assert "| Socket:4x1 / Socket | paralet / Socket |" in text
    assert "| 0.50 | 2.00 |" in text


def test_one_transport_alone_has_no_ratio() -> None:
    alone = some_results(transports=("paralet",))
    assert results.as_json(alone)["ratios"] == []
    assert "| all_gather | of | place | paralet us | p99 us | GB/s | wrong |\n" in results.as_markdown(alone)


# -- MPS -------------------------------------------------------------------------------------------------------------


def test_mps_is_started_for_the_ranks_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control, record = tmp_path / "bin" / "nvidia-cuda-mps-control", tmp_path / "record"
    control.parent.mkdir()
    control.write_text(f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY $*" "$(cat)" >>"{record}"\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{control.parent}:{os.environ['PATH']}")
    with mps.service(dict(os.environ)) as client:
        pipes = client["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(pipes).exists()
    start, end = (line.split(maxsplit=1) for line in record.read_text().splitlines())
    assert (start[0], start[1].split(), end[0], end[1].split()) == (pipes, ["-d"], pipes, ["quit", "-t", "5"])
    assert not Path(pipes).exists()


# -- bundle ----------------------------------------------------------------------------------------------------------


def test_needed_symbol_versions_are_read_from_a_library() -> None:
    data = b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_PRIVATE\0x\0GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0MYGLIBC_9.9\0"
    assert bundle.needed_versions([data, b"\0GLIBC_2.14\0"]) == ["GLIBC_2.34", "GLIBCXX_3.4.30"]


def test_an_archive_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-net-paralet.so"
    plugin.write_bytes(Path("/bin/true").read_bytes())
    with pytest.raises(InputError, match=r"cannot write .*absent/x.tar.gz: No such file"):
        bundle.write(tmp_path / "absent" / "x.tar.gz", plugin)
    names = bundle.write(tmp_path / "x.tar.gz", plugin)
    with tarfile.open(tmp_path / "x.tar.gz") as tar:
        assert sorted(tar.getnames()) == [f"{bundle.NAME}/{name}" for name in names]
    assert {
        "README.txt",
        "lib/libnccl-net-paralet.so",
        "testbed/nccl/__main__.py",
        "testbed/errors.py",
        "netmodel/printable.py",
    } <= set(names)
