# SPDX-License-Identifier: Apache-2.0
"""Locates the NCCL net plugin, and lists its exports and parameters. Needs neither NCCL nor a GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NAME", "Parameter", "environment", "exports", "parameters", "path", "profiler_path"]

NAME = "paralet"
"""The plugin's name: the value of ``NCCL_NET``, logged by NCCL as ``NET/paralet``."""

_LIB = Path(__file__).resolve().parent / "lib"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One ``PARALET_*`` variable of the plugin: its name, allowed values, default and meaning, all as text."""

    name: str
    values: str
    default: str
    meaning: str


def path() -> Path:
    """Path of ``libnccl-net-paralet.so``. Raises FileNotFoundError when it has not been built."""
    return _built("libnccl-net-paralet.so")


def environment() -> dict[str, str]:
    """Variables that make NCCL 2.21 or later load the plugin, and fail if it cannot. Raises FileNotFoundError."""
    return {"NCCL_NET_PLUGIN": str(path()), "NCCL_NET": NAME}


def profiler_path() -> Path:
    """Path of ``libnccl-profiler-paralet.so``, which tells what NCCL's operations wait for. NCCL 2.28 or later loads it
    when ``NCCL_PROFILER_PLUGIN`` names it. Raises FileNotFoundError when it has not been built."""
    return _built("libnccl-profiler-paralet.so")


def exports() -> list[str]:
    """Names of the exported symbols, one per version of NCCL's interface. Raises FileNotFoundError."""
    from elftools.elf.elffile import ELFFile  # imported here because only this function needs it
    from elftools.elf.sections import SymbolTableSection

    with path().open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        if not isinstance(symbols, SymbolTableSection):
            raise ValueError(f"{path()} has no table of dynamic symbols")
        names = [s.name for s in symbols.iter_symbols() if s.name and s["st_shndx"] != "SHN_UNDEF"]
    return sorted(names, key=lambda name: (len(name), name))


def parameters() -> list[Parameter]:
    """All parameters of the library, grouped by purpose. Raises FileNotFoundError."""
    rows = json.loads(_built("parameters.json").read_text())
    return [Parameter(**row) for row in rows]


def _built(name: str) -> Path:
    file = _LIB / name
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: build it with `make setup`, or install paralet with pip")
    return file
