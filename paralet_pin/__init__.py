# SPDX-License-Identifier: Apache-2.0
"""Planned source ports for programs that know nothing of it (docs/pin.md).

`library` is loaded into them and catches their calls; `agent` is a process beside them, which asks the path service and
watches their connections. Both are built from ``native/``.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["agent", "library"]

_HERE = Path(__file__).resolve().parent


def library() -> Path:
    """Path of ``libparalet-pin.so``, for LD_PRELOAD. Raises FileNotFoundError when it has not been built."""
    return _built(_HERE / "lib" / "libparalet-pin.so")


def agent() -> Path:
    """Path of the program ``paralet-pin-agent``. Raises FileNotFoundError when it has not been built."""
    return _built(_HERE / "bin" / "paralet-pin-agent")


def _built(file: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: build it with `make setup`, or install paralet with pip")
    return file
