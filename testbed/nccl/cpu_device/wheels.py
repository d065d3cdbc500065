# SPDX-License-Identifier: Apache-2.0
"""The releases of NCCL that `make nccl` has installed: NVIDIA's wheels, each in a folder of its own."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[3] / "build" / "nccl"
_LIBRARY = Path("nvidia", "nccl", "lib", "libnccl.so.2")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def installed(root: Path = _ROOT) -> dict[str, Path]:
    """By version, such as 2.32.3, the path of `libnccl.so.2`; the newest first. Empty where none is installed."""
    folders = root.iterdir() if root.is_dir() else ()
    found = {folder.name: folder / _LIBRARY for folder in folders if _VERSION.fullmatch(folder.name)}
    present = {version: library for version, library in found.items() if library.is_file()}
    return dict(sorted(present.items(), key=lambda item: _order(item[0]), reverse=True))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
