# SPDX-License-Identifier: Apache-2.0
"""Everything that a machine without a registry needs, in one archive: unpack it there, and run it there.

    tar xzf paralet-nccl.tar.gz && cd paralet-nccl && python3 -m testbed.nccl

It holds the plugin, the libraries that it needs and that not every Linux has, and this folder's Python. NCCL and CUDA
are the machine's own: they are what the plugin is tried with.
"""

import inspect
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import testbed
from netmodel.printable import printable
from testbed.errors import InputError
from testbed.nccl import back_ends

NAME = "paralet-nccl"
LIBRARIES = "lib"
"""The folder of the archive, beside `testbed`, that holds the plugin."""

TRAINING = "experiments/torch/nccl_ddp.py"
"""The program that `testbed.nccl.ddp` runs, in a checkout and in the archive."""

_ON_EVERY_LINUX = (
    "ld-linux",
    "libc.",
    "libdl.",
    "libgcc_s.",
    "libm.",
    "libpthread.",
    "librt.",
    "libstdc++.",
    "linux-vdso",
)
_NEEDED = re.compile(rb"\x00((?:GLIBC|GLIBCXX|CXXABI)_[0-9.]+)(?=\x00)")
_RESOLVED = re.compile(r"^\s*(?P<name>\S+)(?: => (?P<path>\S+))?(?: \(0x[0-9a-f]+\)| => not found)?$")


def write(archive: Path, plugin: Path) -> list[str]:
    """Write the archive. Returns the names of the files in it. Raises InputError."""
    files = {f"{LIBRARIES}/{plugin.name}": plugin.read_bytes()}
    for name, path in needed_libraries(plugin).items():
        files[f"{LIBRARIES}/{name}"] = path.read_bytes()
    needs = needed_versions(files.values())
    if (table := plugin.with_name(back_ends.TABLE)).is_file():
        files[f"{LIBRARIES}/{table.name}"] = table.read_bytes()
    package = Path(testbed.__file__).parent
    names = ("__init__.py", "errors.py", "machine.py", "process_group.py", "result_folder.py")
    alone = [package / name for name in names]
    for source in (*alone, *sorted((package / "nccl").glob("*.py"))):
        files[f"testbed/{source.relative_to(package)}"] = source.read_bytes()
    if (program := package.parent / TRAINING).is_file():
        files[TRAINING] = program.read_bytes()
    files["netmodel/__init__.py"] = b""  # of netmodel, the archive has this one module
    files["netmodel/printable.py"] = Path(inspect.getfile(printable)).read_bytes()
    files["README.txt"] = _readme(needs).encode()
    try:
        with tarfile.open(archive, "w:gz") as tar:
            for name, data in sorted(files.items()):
                entry = tarfile.TarInfo(f"{NAME}/{name}")
                entry.size = len(data)
                entry.mode = 0o644
                tar.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise InputError(f"cannot write {archive}: {error.strerror}") from error
    return sorted(files)


def find_plugin(given: Path | None) -> Path:
    """The plugin to use: the one named, the one that came with this folder, the one that the checkout has built.

    Raises InputError.
    """
    if given is not None:
        if not given.is_file():
            raise InputError(f"--plugin: there is no file {given}")
        return given.resolve()
    carried = carried_plugin()
    if carried is not None:
        return carried
    try:
        import nccl_net_plugin

        return nccl_net_plugin.path()
    except (ImportError, FileNotFoundError) as error:
        raise InputError(f"{error}; or name the plugin with --plugin") from error


def carried_plugin() -> Path | None:
    """The plugin beside this Python, where this was unpacked from a bundle."""
    folder = Path(testbed.__file__).parents[1] / LIBRARIES
    return next(iter(sorted(folder.glob("libnccl-net-*.so"))), None)


def needed_libraries(library: Path) -> dict[str, Path]:
    """By name, the libraries that `library` needs and some Linux lacks. Raises InputError when one is missing."""
    try:
        listing = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(f"ldd cannot tell what {library} needs: {error}") from error
    found = {}
    for line in listing.splitlines():
        match = _RESOLVED.match(line)
        if match is None or Path(match["name"]).name.startswith(_ON_EVERY_LINUX):
            continue
        if not match["path"]:
            raise InputError(f"{library} needs {match['name']}, which is not on this machine")
        found[match["name"]] = Path(match["path"])
    return found


def needed_versions(libraries: Iterable[bytes]) -> list[str]:
    """The newest symbol versions of the C and C++ libraries that these files name: ["GLIBC_2.36", "GLIBCXX_3.4.30"]."""
    newest: dict[str, tuple[int, ...]] = {}
    for data in libraries:
        for found in _NEEDED.findall(data):
            family, _, version = found.decode().partition("_")
            newest[family] = max(newest.get(family, ()), tuple(int(part) for part in version.split(".") if part))
    return [f"{family}_{'.'.join(map(str, version))}" for family, version in sorted(newest.items())]


def _readme(needs: list[str]) -> str:
    return (
        "The real NCCL over the paralet plugin, beside NCCL's own Socket transport.\n\n"
        "    python3 -m testbed.nccl\n\n"
        "in this folder runs it; `python3 -m testbed.nccl --help` says what else it can do. With torch,\n\n"
        "    python3 -m testbed.nccl.ddp\n\n"
        "trains with DDP over both.\n"
        "Needs: an NVIDIA GPU and its driver; Python 3.11 or later; libnccl.so.2 (2.21 or later) and libcudart, from\n"
        "wheels of NVIDIA, from torch, or from the system.\n"
        f"The plugin was built against, and needs: {', '.join(needs) or 'nothing in particular'}\n"
        "(`strings libc.so.6 | grep GLIBC_` lists what a machine has).\n"
    )
