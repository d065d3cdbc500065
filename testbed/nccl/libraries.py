# SPDX-License-Identifier: Apache-2.0
"""Finds `libnccl` and `libcudart`: in wheels of NVIDIA, inside torch, on the loader's paths, in /usr."""

import ctypes.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.errors import InputError

NCCL = ("libnccl.so.2",)
CUDART = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")

_IN_SITE_PACKAGES = (
    "nvidia/nccl/lib",  # wheels nvidia-nccl-cu12 and nvidia-nccl-cu13
    "nvidia/cu13/lib",  # wheel nvidia-cuda-runtime
    "nvidia/cuda_runtime/lib",  # wheel nvidia-cuda-runtime-cu12
    "torch/lib",
)

_IN_SYSTEM = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
)


def find(names: Sequence[str], option: str, given: Path | None = None) -> Path:
    """The library `given`, or else the first of `names` that is anywhere; newer names first.

    Raises InputError, which names the option that mends it.
    """
    if given is not None:
        if not given.is_file():
            raise InputError(f"{option}: there is no file {given}")
        return given.resolve()
    for folder in folders():
        for name in names:
            for path in (folder / name, *sorted(folder.glob(_bundled(name)))):
                if path.is_file():
                    return path.resolve()
    for name in names:
        if ctypes.util.find_library(name.removeprefix("lib").partition(".so")[0]):
            return Path(name)  # the loader finds it by its name
    raise InputError(
        f"{names[0]} is nowhere on this machine: not in the wheels that {sys.executable} sees (NVIDIA's, torch), not "
        f"on LD_LIBRARY_PATH, not in /usr; install it, run the Python that has torch, or name the file with {option}"
    )


def folders() -> Iterator[Path]:
    """Folders to search, most specific first."""
    wheels = [Path(entry) for entry in sys.path if entry]
    yield from (Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry)
    yield from (root / inside for root in wheels for inside in _IN_SITE_PACKAGES)
    yield Path(sys.prefix) / "lib"  # conda
    yield from map(Path, _IN_SYSTEM)


def _bundled(name: str) -> str:
    """File name of a copy inside a wheel, such as libcudart-1b2c3d4e.so.12."""
    stem, _, version = name.partition(".so.")
    return f"{stem}-*.so.{version}"
