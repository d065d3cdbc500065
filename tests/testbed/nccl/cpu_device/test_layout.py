# SPDX-License-Identifier: Apache-2.0
"""The layout of NCCL's structs: what is read from a library's debug information, what is refused, what is kept."""

import subprocess
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.nccl.cpu_device.layout import Layout, Wanted, of_library, parse_wanted, resolve
from testbed.nccl.cpu_device.structs import Member

SOURCE = """
#include <cstdint>
struct ncclRing { int prev; int *ranks; };
struct ncclDevChannel {
  void **peers;
  ncclRing ring;
  union { struct { uint64_t low : 21, high : 43; }; uint64_t both; };
  char tail[3];
};
struct ncclDevWorkBatch { uint32_t jump : 14; uint32_t extends : 1; uint32_t type : 2; uint64_t bits; };
struct ncclComm { ncclDevChannel channel; ncclDevWorkBatch batch; };
int ncclLaunchKernel(ncclComm *comm) { return comm->channel.ring.prev + comm->batch.jump; }
"""

WANTED = (
    Wanted("all", "channel", ("ncclDevChannel",)),
    Wanted("all", "ring_ranks", ("ncclDevChannel.ring.ranks",)),
    Wanted("all", "high", ("ncclDevChannel.high",)),
    Wanted("all", "tail", ("ncclOldChannel.tail", "ncclDevChannel.tail")),
    Wanted("batches", "type", ("ncclDevWorkBatch.type",)),
    Wanted("elements", "elements", ("ncclWork.elems",)),
    Wanted("optional", "counter", ("ncclDevChannel.counter",)),
)


def compiled(folder: Path, *options: str, source: str = SOURCE) -> Path:
    """A shared library of `source`, with debug information."""
    library = folder / "libnccl.so.2"
    (folder / "nccl.cpp").write_text(source)
    command = ["c++", "-shared", "-fPIC", "-g", "-Wl,--build-id", *options, "nccl.cpp", "-o", library.name]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no C++ compiler (c++) to build a library with")
    return library


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "paralet" / "nccl-layout"


@pytest.mark.parametrize("version", ["-gdwarf-4", "-gdwarf-5"])
def test_members_are_where_the_compiler_puts_them(tmp_path: Path, version: str) -> None:
    layout = of_library(compiled(tmp_path, version), WANTED)
    assert layout.generation == 2
    pairs = zip(layout.values[::2], layout.values[1::2], strict=True)
    places = {each.name: place for each, place in zip(WANTED, pairs, strict=True)}
    assert places == {
        "channel": (0, 40 * 8),
        "ring_ranks": (16 * 8, 64),
        "high": (24 * 8 + 21, 43),
        "tail": (32 * 8, 8),
        "type": (15, 2),
        "elements": (0, 0),
        "counter": (0, 0),
    }


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    wanted = (*WANTED, Wanted("batches", "gone", ("ncclDevWorkBatch.func", "ncclDevWorkBatch.funcId")))
    with pytest.raises(InputError, match=r"it has no ncclDevWorkBatch\.func or ncclDevWorkBatch\.funcId$"):
        of_library(compiled(tmp_path), wanted)


def test_a_library_of_neither_generation_is_refused(tmp_path: Path) -> None:
    library = compiled(tmp_path, source=SOURCE.replace("ncclDevWorkBatch", "ncclDevWorkParcel"))
    with pytest.raises(InputError, match="it has neither ncclWork nor ncclDevWorkBatch"):
        of_library(library, WANTED)


def test_a_library_without_debug_information_is_refused(tmp_path: Path) -> None:
    library = compiled(tmp_path, "-g0")
    with pytest.raises(InputError, match="no debug information"):
        of_library(library, WANTED)


def test_a_library_that_launches_no_kernels_is_refused(tmp_path: Path) -> None:
    library = compiled(tmp_path, source=SOURCE.replace("ncclLaunchKernel", "launch"))
    with pytest.raises(InputError, match="no function ncclLaunchKernel"):
        of_library(library, WANTED)


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_text("not a library")
    with pytest.raises(InputError, match="is not a shared library"):
        of_library(file, WANTED)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        of_library(tmp_path / "absent.so", WANTED)


def test_a_layout_is_kept_by_build_and_by_what_is_wanted(tmp_path: Path, cache: Path) -> None:
    library = compiled(tmp_path)
    first = of_library(library, WANTED)
    (kept,) = cache.iterdir()
    kept.write_text(kept.read_text().replace('"generation": 2', '"generation": 1'))
    assert of_library(library, WANTED) == Layout(1, first.values)  # it came from the cache
    of_library(library, WANTED[:2])
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_cache_is_replaced(tmp_path: Path, cache: Path) -> None:
    library = compiled(tmp_path)
    first = of_library(library, WANTED)
    (kept,) = cache.iterdir()
    for damage in ("", "{}", '{"generation": 2, "values": [1]}', '{"generation": "x", "values": []}'):
        kept.write_text(damage)
        assert of_library(library, WANTED) == first
        assert kept.read_text() != damage


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert of_library(compiled(tmp_path), WANTED).generation == 2


def test_members_of_another_generation_are_left_out() -> None:
    structs = {
        "ncclWork": {"": Member(0, 4096), "elems": Member(64, 448)},
        "ncclDevChannel": {"": Member(0, 8), "ring.ranks": Member(0, 8), "high": Member(0, 8), "tail": Member(0, 8)},
    }
    layout = resolve(structs, WANTED, "libnccl.so.2")
    assert layout.generation == 1
    assert layout.values[-4:-2] == (64, 448)  # elements
    assert layout.values[-6:-4] == (0, 0)  # type, a member of batches


def test_the_list_of_fields_is_read_line_by_line() -> None:
    text = "all rank ncclKernelComm.rank|ncclDevComm.rank\noptional bcast ncclDevWorkBcast\n"
    assert parse_wanted(text) == (
        Wanted("all", "rank", ("ncclKernelComm.rank", "ncclDevComm.rank")),
        Wanted("optional", "bcast", ("ncclDevWorkBcast",)),
    )
