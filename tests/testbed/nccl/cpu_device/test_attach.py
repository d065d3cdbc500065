# SPDX-License-Identifier: Apache-2.0
"""Attaching to a library: its CUDA runtime is replaced in memory, the file is not, and what does not fit is refused.

The library here is a small one with the symbols that the device looks for. A process attaches once, so every case is a
process of its own.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.nccl.cpu_device import layout, native

SOURCE = """
#include <cstddef>
// What a static CUDA runtime would do, where nothing replaced it: 77.
extern "C" {
__attribute__((noinline, used)) static int cudaMalloc(void **address, size_t bytes) {
  volatile size_t sum = bytes;
  for (size_t i = 0; i < bytes; ++i) sum = sum + i;
  return address == nullptr ? static_cast<int>(sum) : 77;
}
__attribute__((noinline, used)) static int cudaGetDeviceCount_ptsz(int *count) {
  volatile int sum = 0;
  for (int i = 0; i < 9; ++i) sum = sum + i;
  return count == nullptr ? sum : 77;
}
__attribute__((noinline, used)) static int cudaTeleport(int where) {
  volatile int sum = where;
  for (int i = 0; i < where; ++i) sum = sum + i;
  return sum == 0 ? 1 : 77;
}
__attribute__((noinline, used)) static int cudaTiny() { return 77; }
int callMalloc(void **address) { return cudaMalloc(address, 8); }
int callCount(int *count) { return cudaGetDeviceCount_ptsz(count); }
int callTeleport() { return cudaTeleport(5); }
int callTiny() { return cudaTiny(); }
int ncclGetVersion(int *version) { *version = 23203; return 0; }
}
__attribute__((noinline, used)) static void ncclDevFunc_SendRecv() { asm volatile("nop"); }
extern "C" void *const TABLE[2] = {reinterpret_cast<void *>(&ncclDevFunc_SendRecv), nullptr};
"""

ATTACH = """
import ctypes, sys
from pathlib import Path
from testbed.errors import InputError
from testbed.nccl.cpu_device import layout, native
native.layout.of_library = lambda path, wanted: layout.Layout(2, (0, 8) * len(wanted))
library = Path(sys.argv[1])
try:
    native.attach(library)
except InputError as error:
    print("refused:", error)
    sys.exit(2)
nccl = ctypes.CDLL(str(library))
address, count = ctypes.c_void_p(), ctypes.c_int()
print("malloc", nccl.callMalloc(ctypes.byref(address)), address.value is not None)
print("count", nccl.callCount(ctypes.byref(count)), count.value)
print("teleport", nccl.callTeleport())
print("tiny", nccl.callTiny())
native.attach(library)
print("again")
pages = [line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(library))]
print("writable and executable:", [page for page in pages if "w" in page and "x" in page])
print("executable:", any(page.startswith("r-x") for page in pages))
try:
    native.attach(Path(sys.argv[2]))
except InputError as error:
    print("other:", error)
"""


@pytest.fixture(autouse=True)
def _built() -> None:
    try:
        native.runtime()
    except InputError as error:
        pytest.skip(str(error))


def compiled(folder: Path, source: str = SOURCE, *options: str, table: str = "ncclDevFuncTable") -> Path:
    """A shared library of `source`."""
    folder.mkdir(exist_ok=True)
    library = folder / "libnccl.so.2"
    (folder / "nccl.cpp").write_text(source.replace("TABLE", table))
    command = ["c++", "-shared", "-fPIC", "-O1", "-fcf-protection=none", *options, "nccl.cpp", "-o", library.name]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no C++ compiler (c++) to build a library with")
    return library


def attach(library: Path, other: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Attach in a process, call the library, and say what happened, line by line."""
    root = Path(native.__file__).parents[3]
    command = [sys.executable, "-c", ATTACH, str(library), str(other or library)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)


def test_the_runtime_is_replaced_in_memory_and_the_file_stays(tmp_path: Path) -> None:
    library = compiled(tmp_path / "one")
    other = compiled(tmp_path / "two", SOURCE + "// another\n")
    before = hashlib.sha256(library.read_bytes()).hexdigest()
    result = attach(library, other)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines == [
        "malloc 0 True",
        "count 0 1",
        "teleport 801",
        "tiny 77",  # too short for a jump; NCCL's placeholders are so short, and return an error
        "again",
        "writable and executable: []",
        "executable: True",
        f"other: NCCL cannot run on the CPU device: this process already drives {library}, so it cannot drive {other}",
    ]
    assert hashlib.sha256(library.read_bytes()).hexdigest() == before


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (("TABLE[2]", "OTHER[2]"), (), "has no table of device functions (ncclDevFuncTable)"),
        (("ncclGetVersion", "otherGetVersion"), (), "the library has no ncclGetVersion"),
        (("", ""), ("-s",), "has no symbol table (.symtab): it has been stripped"),
        (("cuda", "gpu"), (), "carries no CUDA runtime that could be replaced"),
    ],
)
def test_a_library_that_does_not_fit_is_refused(
    tmp_path: Path, change: tuple[str, str], options: tuple[str, ...], sentence: str
) -> None:
    source = SOURCE.replace(*change) if change[0] else SOURCE
    result = attach(compiled(tmp_path / "one", source, *options))
    assert result.returncode == 2, result.stderr
    assert sentence in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "libnccl.so.2"
    text.write_text("not a library, but long enough to hold the header of an ELF file, which has 64 bytes")
    result = attach(text)
    assert result.returncode == 2, result.stderr
    assert "is not a 64-bit ELF file" in result.stdout


def test_every_field_that_the_device_reads_has_a_group_and_a_path() -> None:
    fields = native.fields()
    assert len({each.name for each in fields}) == len(fields) > 50
    assert {each.group for each in fields} <= {"all", "elements", "batches", "optional"}
    assert all(path.startswith("nccl") for each in fields for path in each.paths)
    assert all(isinstance(each, layout.Wanted) for each in fields)
