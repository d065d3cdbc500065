# SPDX-License-Identifier: Apache-2.0
"""Reads FlatBuffers without a schema: tables, vectors and numbers by field number.

The format is in "FlatBuffers internals" (flatbuffers.dev). A table starts with the signed distance back to its vtable,
which has the offset of every field, 0 where a field is left out.
"""

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a buffer. All methods raise ValueError where the buffer ends too early."""

    buffer: bytes
    place: int

    @classmethod
    def root(cls, buffer: bytes) -> "Table":
        """The root table."""
        return cls(buffer, int(_number(buffer, 0, "<I")))

    def number(self, field: int, code: str, default: float = 0) -> float:
        """A number, with its `struct` code, such as "<Q"."""
        place = self._field(field)
        return _number(self.buffer, place, code) if place else default

    def numbers(self, field: int, code: str) -> tuple[int, ...]:
        """A vector of numbers, with the `struct` code of one, such as "Q"."""
        count, place = self._vector(field, struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{count}{code}", self.buffer, place)

    def length(self, field: int) -> int:
        """The number of elements of a vector, whose tables or numbers others may have in common."""
        return self._vector(field, 1)[0]

    def tables(self, field: int) -> list["Table"]:
        """A vector of tables."""
        count, place = self._vector(field, 4)
        places = range(place, place + 4 * count, 4)
        return [Table(self.buffer, each + int(_number(self.buffer, each, "<I"))) for each in places]

    def _vector(self, field: int, width: int) -> tuple[int, int]:
        """The length of a vector, and where its first element is."""
        place = self._field(field)
        if not place:
            return 0, 0
        place += int(_number(self.buffer, place, "<I"))
        count = int(_number(self.buffer, place, "<I"))
        if place + 4 + count * width > len(self.buffer):
            raise ValueError(f"byte {place}: a vector of {count} elements goes beyond the end, byte {len(self.buffer)}")
        return count, place + 4

    def _field(self, field: int) -> int:
        """Where a field is; 0 if it is left out."""
        vtable = self.place - int(_number(self.buffer, self.place, "<i"))
        if vtable < 0:
            raise ValueError(f"byte {self.place}: a table has its fields' places {-vtable} bytes before the buffer")
        entry = 4 + 2 * field
        if entry >= _number(self.buffer, vtable, "<H"):
            return 0
        offset = int(_number(self.buffer, vtable + entry, "<H"))
        return self.place + offset if offset else 0


def _number(buffer: bytes, place: int, code: str) -> float:
    if place < 0 or place + struct.calcsize(code) > len(buffer):
        raise ValueError(f"byte {place}: the buffer has {len(buffer)} bytes and no number there")
    found: float = struct.unpack_from(code, buffer, place)[0]
    return found
