# SPDX-License-Identifier: Apache-2.0
"""The part of bpf(2) that a program at an interface needs: instructions, one map, loading, pinning.

Instructions are encoded as in the kernel's Documentation/bpf/standardization/instruction-set.rst. Numbers of commands,
program types and helpers are those of include/uapi/linux/bpf.h.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from emul.commands import FabricError

_SYS_BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280}  # the architectures' unistd.h
_MAP_CREATE, _MAP_LOOKUP_ELEM, _PROG_LOAD, _OBJ_PIN = 0, 1, 5, 6
_MAP_TYPE_ARRAY, _PROG_TYPE_SCHED_CLS = 2, 3
_PSEUDO_MAP_VALUE = 2
_LOG_BYTES = 1 << 16

Instruction = bytes


def instruction(opcode: int, destination: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> Instruction:
    """One instruction. offset: of a jump in instructions, of a load or store in bytes."""
    return struct.pack("<BBhi", opcode, destination | source << 4, offset, immediate)


def load_constant(destination: int, value: int, source: int = 0) -> Instruction:
    """A 64-bit constant into a register: two instructions. Jumps count both."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value))
    return instruction(0x18, destination, source, immediate=low) + instruction(0, immediate=high)


def load_map_value(destination: int, map_fd: int) -> Instruction:
    """The address of the only value of an array map into a register: two instructions. Jumps count both."""
    return load_constant(destination, map_fd, _PSEUDO_MAP_VALUE)


class Array:
    """A BPF array map with one value of `words` 64-bit words, which start as 0. Raises FabricError."""

    def __init__(self, words: int) -> None:
        self._format = struct.Struct(f"={words}Q")
        self.fd = _bpf(_MAP_CREATE, struct.pack("=4I", _MAP_TYPE_ARRAY, 4, self._format.size, 1))

    def read(self) -> tuple[int, ...]:
        """Read all words of the array. Raises FabricError."""
        key, value = ctypes.c_uint32(0), ctypes.create_string_buffer(self._format.size)
        _bpf(_MAP_LOOKUP_ELEM, struct.pack("=IxxxxQQQ", self.fd, ctypes.addressof(key), ctypes.addressof(value), 0))
        return self._format.unpack(value.raw)

    def close(self) -> None:
        """Close the map. It lives on in programs that use it."""
        os.close(self.fd)


def pin_classifier(program: Iterable[Instruction], path: Path) -> None:
    """Load a program for traffic control (tc-bpf(8)) and pin it at `path` of a bpffs.

    Raises FabricError, with the verifier's last line, when the kernel refuses the program.
    """
    code = b"".join(program)
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")

    def load(log: "ctypes.Array[ctypes.c_char] | None" = None) -> int:
        wanted = (0, 0, 0) if log is None else (1, len(log), ctypes.addressof(log))
        head = (_PROG_TYPE_SCHED_CLS, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence))
        return _bpf(_PROG_LOAD, struct.pack("=2IQQ2IQ", *head, *wanted))

    try:
        program_fd = load()  # a log has a line for each instruction, and one without room for all is an error
    except FabricError as error:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        with suppress(FabricError):
            os.close(load(log))
        verdict = log.value.decode(errors="replace").strip().splitlines()
        raise FabricError("; ".join([str(error), *verdict[-2:]])) from error
    try:
        name = ctypes.create_string_buffer(os.fsencode(path))
        _bpf(_OBJ_PIN, struct.pack("=QII", ctypes.addressof(name), program_fd, 0))
    finally:
        os.close(program_fd)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYS_BPF.get(platform.machine())
    if number is None:
        raise FabricError(f"BPF programs need bpf(2), whose number on {platform.machine()} is not known here")
    libc = ctypes.CDLL(None, use_errno=True)
    union = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = libc.syscall(number, command, union, len(attributes))
    if result < 0:
        raise FabricError(f"the kernel refuses a BPF program: {os.strerror(ctypes.get_errno())}")
    return result
