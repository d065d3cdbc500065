# SPDX-License-Identifier: Apache-2.0
"""Which programs a preloaded library reaches. Reads files, and starts nothing."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

_MOST_INTERPRETERS = 4  # of scripts of scripts, as in the kernel
_LINE_BYTES = 256


def find(name: str, path: str | None) -> Path | None:
    """The file that running `name` with this PATH starts; None where there is none."""
    found = shutil.which(name, path=path)
    return None if found is None else Path(found)


def unreachable(program: Path) -> str | None:
    """Why a library of LD_PRELOAD is not loaded into a program, as a clause; None where it is.

    A program that cannot be read counts as reachable. What a program starts is not looked at.
    """
    for _ in range(_MOST_INTERPRETERS):
        try:
            with program.open("rb") as file:
                begin = file.read(_LINE_BYTES)
                mode = os.fstat(file.fileno()).st_mode
        except OSError:
            return None
        if not begin.startswith(b"#!"):
            break
        words = begin[2:].split(b"\n")[0].split()
        if not words:
            return None
        program = Path(os.fsdecode(words[0]))
    else:
        return None
    if mode & (stat.S_ISUID | stat.S_ISGID):
        return "runs with its owner's rights (setuid or setgid), and the loader then loads nothing from outside"
    if not begin.startswith(b"\x7fELF"):
        return None
    return None if _is_dynamic(program) else "is linked statically, so no library can be loaded into it"


def _is_dynamic(program: Path) -> bool:
    from elftools.common.exceptions import ELFError  # imported here, for `paralet --help` needs neither
    from elftools.elf.elffile import ELFFile

    try:
        with program.open("rb") as file:
            return any(segment["p_type"] == "PT_INTERP" for segment in ELFFile(file).iter_segments())
    except (ELFError, OSError, ValueError, KeyError):
        return True
