# SPDX-License-Identifier: Apache-2.0
"""Reads Protocol Buffers without a schema: fields by number, with their place in the file.

The format is in "Encoding" (protobuf.dev/programming-guides/encoding). A message is a sequence of fields; a field is a
tag, which has its number and wire type, and a value. Fields that a reader does not know are skipped by their length.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum


class Wire(IntEnum):
    """How a value is encoded."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. All methods raise ValueError, with the place in bytes, for a value of another wire type."""

    number: int
    wire: Wire
    buffer: bytes
    start: int
    """Where the value starts; for BYTES, what the length is followed by."""
    stop: int
    bits: int = 0
    """The value of a VARINT."""

    def unsigned(self) -> int:
        """An unsigned number, or 0 or 1 for a boolean."""
        self._expect(Wire.VARINT)
        return self.bits

    def signed(self) -> int:
        """A number in two's complement of 64 bits (int32, int64)."""
        value = self.unsigned()
        return value - (1 << 64) if value >> 63 else value

    def zigzag(self) -> int:
        """A number whose sign is its lowest bit (sint32, sint64)."""
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def fixed(self, code: str) -> float:
        """A number of fixed size, with its `struct` code, such as "<d"."""
        self._expect(Wire.FIXED64 if struct.calcsize(code) == 8 else Wire.FIXED32)
        value: float = struct.unpack_from(code, self.buffer, self.start)[0]
        return value

    def text(self) -> str:
        """A string."""
        self._expect(Wire.BYTES)
        try:
            return self.buffer[self.start : self.stop].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {self.start + error.start}: field {self.number} is not UTF-8 text") from None

    def message(self) -> "Message":
        """A message within this one."""
        self._expect(Wire.BYTES)
        return Message(self.buffer, self.start, self.stop)

    def many_unsigned(self) -> list[int]:
        """The numbers of one occurrence of a repeated field, packed or not."""
        if self.wire == Wire.VARINT:
            return [self.bits]
        self._expect(Wire.BYTES)
        found, place = [], self.start
        while place < self.stop:
            value, place = varint(self.buffer, place, self.stop)
            found.append(value)
        return found

    def _expect(self, wire: Wire) -> None:
        if self.wire != wire:
            raise ValueError(f"byte {self.start}: field {self.number} is a {self.wire.name}, and must be a {wire.name}")


@dataclass(frozen=True, slots=True)
class Message:
    """A message within a buffer."""

    buffer: bytes
    start: int
    stop: int

    def fields(self) -> Iterator[Field]:
        """The fields in the order of the file. Raises ValueError where the message ends too early."""
        place = self.start
        while place < self.stop:
            tag, value = varint(self.buffer, place, self.stop)
            number, kind = tag >> 3, tag & 7
            if not number or kind not in Wire.__members__.values():
                raise ValueError(f"byte {place}: {tag} is not a tag of a field")
            wire, bits = Wire(kind), 0
            if wire == Wire.VARINT:
                bits, stop = varint(self.buffer, value, self.stop)
            elif wire == Wire.BYTES:
                size, value = varint(self.buffer, value, self.stop)
                stop = value + size
            else:
                stop = value + (8 if wire == Wire.FIXED64 else 4)
            if stop > self.stop:
                raise ValueError(f"byte {value}: field {number} ends beyond its message, whose end is byte {self.stop}")
            yield Field(number, wire, self.buffer, value, stop, bits)
            place = stop


def varint(buffer: bytes, place: int, stop: int) -> tuple[int, int]:
    """A number of variable length, and where it ends. Raises ValueError if it does not end before `stop`."""
    value, shift, start = 0, 0, place
    while place < stop:
        byte = buffer[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, place
        shift += 7
        if shift > 63:
            break
    raise ValueError(f"byte {start}: a number of variable length does not end, or has more than 64 bits")


def delimited(buffer: bytes) -> Iterator[Message]:
    """The messages of a file in which each comes after its length. Raises ValueError if the last one is cut off."""
    place = 0
    while place < len(buffer):
        size, start = varint(buffer, place, len(buffer))
        if start + size > len(buffer):
            raise ValueError(f"byte {place}: a message of {size} bytes goes beyond the end, byte {len(buffer)}")
        yield Message(buffer, start, start + size)
        place = start + size
