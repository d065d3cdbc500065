# SPDX-License-Identifier: Apache-2.0
"""The parts of testbed.nccl that need neither libraries nor processes."""

from __future__ import annotations

import json
import tarfile
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.nccl import bundle, environment, libraries, netlog, results, sizes
from testbed.nccl.collectives import COLLECTIVES, ELEMENT_BYTES, first_difference, fit, sent
from testbed.nccl.machine import Machine
from testbed.nccl.probe import Found
from testbed.nccl.results import DRY_RUN, Case, Results

# -- collectives: the truth, made another way ------------------------------------------------------------------------


def floats(data: bytes) -> list[float]:
    return array("f", data).tolist()


def by_hand(name: str, rank: int, ranks: int, elements: int) -> list[float]:
    """The rank's expected data, computed element by element from the data of all ranks."""
    kind, share = COLLECTIVES[name], elements // ranks
    data = [floats(sent(peer, kind.send_elements(ranks, elements))) for peer in range(ranks)]
    match name:
        case "all_reduce":
            return [sum(column) for column in zip(*data, strict=True)]
        case "all_gather":
            return [value for peer in data for value in peer]
        case "reduce_scatter":
            return [sum(column) for column in zip(*data, strict=True)][rank * share : (rank + 1) * share]
        case "all_to_all":
            return [value for peer in data for value in peer[rank * share : (rank + 1) * share]]
        case _:
            return data[rank - 1]


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize(("ranks", "elements"), [(2, 2), (2, 140_000), (3, 3 * 1000), (4, 4 * 70_001)])
def test_expected_data_match_the_definition_of_the_collective(name: str, ranks: int, elements: int) -> None:
    kind = COLLECTIVES[name]
    for rank in range(ranks):
        expected = kind.expected(rank, ranks, elements)
        assert len(expected) == kind.recv_elements(ranks, elements) * ELEMENT_BYTES
        assert floats(expected) == by_hand(name, rank, ranks, elements)


def test_ranks_send_different_data_without_power_of_two_periods() -> None:
    assert len({sent(rank, 1000) for rank in range(64)}) == 64
    for rank in range(3):
        data = sent(rank, 200_000)
        for shift in (2**step for step in range(17)):
            assert data[shift * ELEMENT_BYTES :] != data[: -shift * ELEMENT_BYTES]


@pytest.mark.parametrize(
    ("name", "factor"),
    # nccl-tests, doc/PERFORMANCE.md, for 4 ranks
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("send_recv", 1.0)],
)
def test_bus_bandwidth_follows_the_definition_of_nccl_tests(name: str, factor: float) -> None:
    assert COLLECTIVES[name].bus_bytes_per_s(4, 1000, 0.5) == pytest.approx(2000 * factor)


@given(st.integers(1, 10**9), st.integers(2, 64))
def test_sizes_fit_all_ranks(size: int, ranks: int) -> None:
    fitted = fit(size, ranks)
    assert fitted % (ELEMENT_BYTES * ranks) == 0
    assert size <= fitted < size + ELEMENT_BYTES * ranks


@given(st.binary(min_size=1, max_size=300), st.data())
def test_the_first_difference_is_found(data: bytes, draw: st.DataObject) -> None:
    assert first_difference(bytearray(data), data) is None
    places = draw.draw(st.sets(st.integers(0, len(data) - 1), min_size=1))
    spoilt = bytearray(data)
    for place in places:
        spoilt[place] ^= 0x40
    assert first_difference(spoilt, data) == min(places)


# -- sizes -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, sizes.LARGEST))
def test_sizes_survive_a_round_trip_through_text(size: int) -> None:
    assert sizes.parse(sizes.text(size).replace(",", "")) == size


def test_sizes_are_parsed_with_units() -> None:
    assert [sizes.parse(text) for text in ("8", "64k", "512M", "1 GiB", "3KB")] == [8, 1 << 16, 1 << 29, 1 << 30, 3072]
    assert (sizes.text(8), sizes.text(1 << 29), sizes.text(1536)) == ("8 B", "512 MiB", "1,536 B")
    assert (sizes.DEFAULT[0], sizes.DEFAULT[-1]) == (8, 512 << 20)


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
BANNER = "host:1:2 [0] NCCL INFO NET/paralet: paralet 0.1.0, back end soft, m = 8 lanes\n"


def test_a_log_with_only_network_channels_is_accepted() -> None:
    log = BANNER + SENDS + RECEIVES + SENDS
    assert netlog.fault(log, "paralet") is None
    assert netlog.routes(log) == {"NET/paralet/0": 2, "NET/paralet/0/GDRDMA/Shared": 1}
    assert netlog.banner(log, "paralet") == "paralet 0.1.0, back end soft, m = 8 lanes"
    assert netlog.banner(SOCKET, "Socket") is None


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


def some_results(*, is_stub: bool, transports: tuple[str, ...] = ("paralet", "Socket")) -> Results:
    seconds = {"paralet": (1e-3, 3e-3, 2e-3), "Socket": (4e-3, 4e-3, 9e-3)}
    return Results(
        when="2026-11-20T12:00:00+00:00",
        machine=Machine("CPU", 16, "Linux 6", "580.1"),
        found=Found(("NVIDIA H200",), "2.28.9", "13.0", "13.0", is_stub),
        ranks=2,
        gpus=1,
        mps=False,
        repetitions=3,
        transports=transports,
        environment={name: {"NCCL_NET": name} for name in transports},
        routes={"paralet": {"NET/paralet/0": 4}},
        banners={"paralet": "paralet 0.1.0, m = 8 lanes"},
        cases=(Case("all_reduce", 1 << 20, 7, {name: seconds[name] for name in transports}),),
        complete=True,
    )


def test_figures_are_medians_with_their_ratio() -> None:
    found = results.as_json(some_results(is_stub=False))
    assert found["dry_run"] is None
    (row,) = found["rows"]
    assert (row["collective"], row["bytes"], row["iterations"]) == ("all_reduce", 1 << 20, 7)
    assert row["transports"]["paralet"]["median_s"] == 2e-3
    assert row["transports"]["paralet"]["bus_gb_per_s"] == pytest.approx((1 << 20) / 2e-3 / 1e9)
    assert row["ratio"] == pytest.approx(2.0)
    assert json.loads(json.dumps(found))["rows"] == found["rows"]


def test_the_table_shows_machine_and_time() -> None:
    text = results.as_markdown(some_results(is_stub=False))
    assert text.startswith("### 2026-11-20, NVIDIA H200\n")
    assert "| 1 MiB | 2,000.0 | 4,000.0 | 0.5243 | 0.2621 | 2.00 |" in text
    assert "paralet is paralet 0.1.0, m = 8 lanes." in text
    assert DRY_RUN not in text
    assert "did not finish" not in text


def test_a_stubs_figures_are_marked_in_every_output() -> None:
    made_up = some_results(is_stub=True)
    assert DRY_RUN in results.as_json(made_up)["dry_run"]
    text = results.as_markdown(made_up)
    heading, *_ = text.splitlines()
    assert DRY_RUN in heading
    heads = [line for line in text.splitlines() if line.startswith("| all_reduce")]
    assert len(heads) == 1
    assert DRY_RUN in heads[0]  # also a table that is copied alone


def test_one_transport_alone_has_no_ratio() -> None:
    alone = some_results(is_stub=False, transports=("paralet",))
    assert results.as_json(alone)["rows"][0]["ratio"] is None
    assert "| all_reduce | paralet us | paralet GB/s |" in results.as_markdown(alone)


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
    assert {"README.txt", "lib/libnccl-net-paralet.so", "testbed/nccl/__main__.py", "testbed/errors.py"} <= set(names)
