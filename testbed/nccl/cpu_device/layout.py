# SPDX-License-Identifier: Apache-2.0
"""The layout of the structs that NCCL's kernels read, from the debug information (DWARF) in the library itself.

NVIDIA's wheels keep `.symtab` and `.debug_info`, so the offset of a struct's member need not be known per release. The
device says which members it reads (`PARALET_LAYOUT` in testbed/native/cpu_device/layout.hpp); a library that lacks one
is refused with its name. Reading takes 1 to 3 seconds; the result is kept in the user's cache folder
(`$XDG_CACHE_HOME/paralet/nccl-layout`, by default under ~/.cache), by the library's build identifier.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from testbed.errors import InputError
from testbed.nccl.cpu_device.structs import Member, Structs

_CACHE_FORMAT = 1

_ELEMENTS, _BATCHES = 1, 2
_GENERATIONS = {_ELEMENTS: ("ncclWork", "elements"), _BATCHES: ("ncclDevWorkBatch", "batches")}
"""By number (paralet::cpu_device::Generation): a struct that only this generation has, and its group of fields."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A member that the device reads."""

    group: str
    """The libraries that must have it: all, those of a generation, or none (optional)."""
    name: str
    paths: tuple[str, ...]
    """Struct and members, such as ncclDevChannel.ring.prev; the first that exists counts."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The argument of `paralet_cpu_device_attach`."""

    generation: int
    values: tuple[int, ...]
    """First bit and width in bits of each wanted member; 0, 0 for an optional one that is absent."""


def parse_wanted(text: str) -> tuple[Wanted, ...]:
    """The fields of `paralet_cpu_device_layout_fields()`: a line "group name path|path" each."""
    rows = [line.split() for line in text.splitlines()]
    return tuple(Wanted(group, name, tuple(paths.split("|"))) for group, name, paths in rows)


def of_library(library: Path, wanted: Sequence[Wanted]) -> Layout:
    """The layout of a `libnccl.so.2`, from the cache or from its debug information.

    Raises InputError if the file is not an NCCL with debug information, or has a layout that the device does not know.
    """
    try:
        with library.open("rb") as file:
            elf = ELFFile(file)
            build = _build_id(elf)
            cached = _cached(build, wanted)
            if cached is not None:
                return cached
            structs = Structs.of(elf)
            found = resolve(structs, wanted, str(library))
    except OSError as error:
        raise InputError(f"{library} cannot be read: {error.strerror}") from error
    except ELFError as error:
        raise InputError(f"{library} is not a shared library: {error}") from error
    except LookupError as error:
        raise InputError(f"{library} cannot run on the CPU device: {error.args[0]}") from error
    _keep(build, wanted, found)
    return found


def resolve(structs: Mapping[str, Mapping[str, Member]], wanted: Sequence[Wanted], library: str) -> Layout:
    """Find every wanted member. `structs`: for each struct its members by path, "" for the struct itself.

    Raises InputError that names what the library lacks.
    """
    known = [(number, group) for number, (mark, group) in _GENERATIONS.items() if mark in structs]
    if not known:
        marks = " nor ".join(mark for mark, _ in _GENERATIONS.values())
        raise InputError(f"{library} has a layout that the CPU device does not know: it has neither {marks}")
    generation, group = known[0]
    values: list[int] = []
    for each in wanted:
        member = next((found for path in each.paths if (found := _find(structs, path)) is not None), None)
        if member is None and each.group in ("all", group):
            raise InputError(
                f"{library} has a layout that the CPU device does not know: it has no {' or '.join(each.paths)}"
            )
        belongs = member is not None and each.group in ("all", group, "optional")
        values += [member.first_bit, member.bits] if member is not None and belongs else [0, 0]
    return Layout(generation, tuple(values))


def _find(structs: Mapping[str, Mapping[str, Member]], path: str) -> Member | None:
    struct, _, members = path.partition(".")
    return structs.get(struct, {}).get(members)


def _build_id(elf: ELFFile) -> str | None:
    section = elf.get_section_by_name(".note.gnu.build-id")
    notes = list(section.iter_notes()) if isinstance(section, NoteSection) else []
    return next((str(note["n_desc"]) for note in notes if note["n_type"] == "NT_GNU_BUILD_ID"), None)


def _cache_file(build: str, wanted: Sequence[Wanted]) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    fields = hashlib.sha256(repr((_CACHE_FORMAT, tuple(wanted))).encode()).hexdigest()[:16]
    return Path(root) / "paralet" / "nccl-layout" / f"{build}-{fields}.json"


def _cached(build: str | None, wanted: Sequence[Wanted]) -> Layout | None:
    if build is None:
        return None
    try:
        data: dict[str, Any] = json.loads(_cache_file(build, wanted).read_text())
        found = Layout(int(data["generation"]), tuple(int(value) for value in data["values"]))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return None  # none yet, or a damaged one: read the library
    return found if len(found.values) == 2 * len(wanted) else None


def _keep(build: str | None, wanted: Sequence[Wanted], found: Layout) -> None:
    """Keep a layout. A cache that cannot be written costs time only."""
    if build is None:
        return
    try:
        file = _cache_file(build, wanted)
        file.parent.mkdir(parents=True, exist_ok=True)
        # Ranks of one host write at the same time.
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".new", delete=False) as new:
            json.dump({"generation": found.generation, "values": found.values}, new)
        Path(new.name).replace(file)
    except (OSError, RuntimeError):
        return
