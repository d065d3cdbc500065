# SPDX-License-Identifier: Apache-2.0
"""The structs of a library, from its debug information (DWARF 4 and 5, section 5.7 of the standard)."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_LAUNCH = "ncclLaunchKernel"
"""A function whose translation unit uses all structs that kernels read, except those of the next one."""
_BROADCASTS = "ncclScheduleBcastTasksToPlan"
"""A function whose translation unit uses ncclDevWorkBcast (NCCL 2.29 and later)."""

_STRUCTS = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
_TRANSPARENT = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
_SCOPES = ("DW_TAG_compile_unit", "DW_TAG_namespace")


class Member(NamedTuple):
    """A member's place, from the start of the outermost struct."""

    first_bit: int
    bits: int
    """Width; of an array, of one element."""


class Structs(dict[str, Mapping[str, Member]]):
    """For each of NCCL's structs its members by their path, such as "ring.prev"; "" is the struct itself."""

    @classmethod
    def of(cls, elf: ELFFile) -> "Structs":
        """Read the unit that launches kernels, and the one that plans broadcasts of a group where there is one.

        Raises LookupError with a sentence where there is no launching unit.
        """
        if not elf.has_dwarf_info(strict=True):
            raise LookupError("it has no debug information (.debug_info), from which the layout is read")
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        launching = _unit_offset(elf, dwarf, _LAUNCH)
        if launching is None:
            raise LookupError(
                f"it has no function {_LAUNCH}, so it is not an NCCL or one that launches kernels in another way"
            )
        structs = cls()
        structs._read(dwarf, launching)
        broadcasts = _unit_offset(elf, dwarf, _BROADCASTS)
        if broadcasts not in (None, launching):
            structs._read(dwarf, broadcasts)
        return structs

    def _read(self, dwarf: Any, unit_offset: int | None) -> None:
        die: Any
        for die in dwarf.get_CU_at(unit_offset).iter_DIEs():
            name = _name(die)
            named = die.tag in _STRUCTS and name.startswith("nccl") and "DW_AT_byte_size" in die.attributes
            if named and die.get_parent().tag in _SCOPES:
                self.setdefault(name, {"": Member(0, _bytes(die) * 8), **dict(_members(die))})


def _unit_offset(elf: ELFFile, dwarf: Any, function: str) -> int | None:
    """The offset in .debug_info of a function's translation unit; None if the function does not exist."""
    symbols = elf.get_section_by_name(".symtab")
    ranges = dwarf.get_aranges()
    if not isinstance(symbols, SymbolTableSection) or ranges is None:
        raise LookupError("it has been stripped of its symbols (.symtab) or of .debug_aranges")
    mangled = f"_Z{len(function)}{function}"
    for symbol in symbols.iter_symbols():
        if symbol.name.startswith(mangled) and symbol["st_info"]["type"] == "STT_FUNC":
            offset: int | None = ranges.cu_offset_at_addr(symbol["st_value"])
            if offset is not None:
                return offset
    return None


def _members(die: Any, before: str = "", start_bit: int = 0) -> Iterator[tuple[str, Member]]:
    """Paths and places of all members; those of an anonymous struct or union belong to the struct around it."""
    for child in die.iter_children():
        if child.tag != "DW_TAG_member" or "DW_AT_type" not in child.attributes:
            continue
        kind = _resolved(child.get_DIE_from_attribute("DW_AT_type"))
        first_bit, bits = _place(child, kind)
        first_bit += start_bit
        name = _name(child)
        path = f"{before}{name}"
        if name:
            yield path, Member(first_bit, bits)
        if kind.tag in _STRUCTS:
            yield from _members(kind, f"{path}." if name else before, first_bit)


def _place(member: Any, kind: Any) -> tuple[int, int]:
    """First bit and width of a member in its struct."""
    attributes = member.attributes
    location = attributes["DW_AT_data_member_location"].value if "DW_AT_data_member_location" in attributes else 0
    if "DW_AT_bit_size" not in attributes:
        return location * 8, _bits_of(kind)
    bits = attributes["DW_AT_bit_size"].value
    if "DW_AT_data_bit_offset" in attributes:
        return attributes["DW_AT_data_bit_offset"].value, bits
    # DWARF 3 counts from the most significant bit of the storage unit; x86-64 is little-endian.
    storage = attributes["DW_AT_byte_size"].value if "DW_AT_byte_size" in attributes else _bits_of(kind) // 8
    return location * 8 + storage * 8 - attributes["DW_AT_bit_offset"].value - bits, bits


def _resolved(kind: Any) -> Any:
    """The type behind names and qualifiers; of an array, that of its elements."""
    while "DW_AT_type" in kind.attributes and kind.tag in (*_TRANSPARENT, "DW_TAG_array_type"):
        kind = kind.get_DIE_from_attribute("DW_AT_type")
    return kind


def _bits_of(kind: Any) -> int:
    return 64 if kind.tag == "DW_TAG_pointer_type" else _bytes(kind) * 8


def _bytes(die: Any) -> int:
    size = die.attributes.get("DW_AT_byte_size")
    return int(size.value) if size is not None else 0


def _name(die: Any) -> str:
    name = die.attributes.get("DW_AT_name")
    return name.value.decode() if name is not None else ""
