# SPDX-License-Identifier: Apache-2.0
"""The program of traffic control by which a router chooses by a CRC of the header, as switch ASICs do. Pure.

It computes `netmodel.LinuxCrcHash` of every packet that comes in, and gives it to the packet (bpf_set_hash). The
kernel's ECMP takes a packet's hash of layer 4 before its own (net/ipv4/route.c, fib_multipath_hash). Packets that are
neither UDP nor TCP, fragments, and those with IP options lose the hash that they bring, and the kernel computes one.
"""

from collections.abc import Iterator

from emul.bpf import Instruction, instruction
from emul.routed.header_hash import FORGET
from netmodel import IPPROTO_TCP, IPPROTO_UDP
from netmodel.hashes.base import fold_seed

_SKB_SET_HASH = 48  # bpf_set_hash in include/uapi/linux/bpf.h
_CONTEXT, _CRC, _SCRATCH = 6, 7, 8  # registers that loads and calls keep
_POLYNOMIAL = -0x12477CE0  # IEEE 802.3's 0xEDB88320 as a signed number
_ONES = -1
_BYTE, _HALF, _WORD = 0x30, 0x28, 0x20  # opcodes: load from the frame into register 0, in host order

# Bytes from the start of a frame.
_ETHERTYPE, _IP = 12, 14
_KEY = {4: ((12, 16), 9, 20), 6: (tuple(range(8, 40, 4)), 6, 40)}
"""By IP version: where in the packet the words of both addresses, the protocol and the ports are."""


def crc_program(seed: int, offset: int, version: int) -> list[Instruction]:
    """The program of a switch with that `hash_seed` and hash offset, for an IP version."""
    words, protocol, ports = _KEY[version]
    start = fold_seed(seed, 32) ^ 0xFFFFFFFF  # CRC-32 inverts its register before and after
    body = [instruction(0xB4, _CRC, immediate=start - (1 << 32) if start >> 31 else start)]
    for word in words:
        body += [_load(_WORD, _IP + word), *_shifted_in(32)]
    body += [_load(_BYTE, _IP + protocol), *_shifted_in(8), _load(_WORD, _IP + ports), *_shifted_in(32)]
    body += [instruction(0xA4, _CRC, immediate=_ONES), *_rotated(offset)]
    body += [instruction(0xBF, 1, _CONTEXT), instruction(0xBC, 2, _CRC), instruction(0x85, immediate=_SKB_SET_HASH)]
    body += [instruction(0xB7), instruction(0x95)]
    begin = [instruction(0xBF, _CONTEXT, 1)]
    tests = list(_tests(version))
    length = sum(map(len, tests)) + len(body)  # to `FORGET`, from the start of the tests
    for test in tests:
        length -= len(test)
        begin += test[:-1]
        opcode, immediate = test[-1][0], int.from_bytes(test[-1][4:], "little")
        begin.append(instruction(opcode, offset=length, immediate=immediate))
    return [*begin, *body, instruction(0xBF, 1, _CONTEXT), *FORGET]


def _tests(version: int) -> Iterator[list[Instruction]]:
    """Instructions that each end in a jump, still without its way, which is taken by packets without such a key."""
    unequal, any_bit = 0x55, 0x45
    yield [_load(_HALF, _ETHERTYPE), instruction(unequal, immediate=0x800 if version == 4 else 0x86DD)]
    if version == 4:
        yield [_load(_BYTE, _IP), instruction(unequal, immediate=0x45)]
        yield [_load(_HALF, _IP + 6), instruction(any_bit, immediate=0x3FFF)]  # more fragments, or not the first
    yield [
        _load(_BYTE, _IP + _KEY[version][1]),
        instruction(0x15, offset=1, immediate=IPPROTO_UDP),
        instruction(unequal, immediate=IPPROTO_TCP),
    ]


def _load(opcode: int, offset: int) -> Instruction:
    return instruction(opcode, immediate=offset)


def _shifted_in(bits: int) -> list[Instruction]:
    """The value of register 0, whose first byte on the wire comes first, into the register of the CRC, bit by bit."""
    swap = [instruction(0xDC, immediate=32)] if bits == 32 else []  # to network order, so that the first byte is lowest
    step = [
        instruction(0xBC, _SCRATCH, _CRC),
        instruction(0x54, _SCRATCH, immediate=1),
        instruction(
            0x24, _SCRATCH, immediate=_POLYNOMIAL
        ),  # times: the kernel's verifier would follow a mask both ways
        instruction(0x74, _CRC, immediate=1),
        instruction(0xAC, _CRC, _SCRATCH),
    ]
    return [*swap, instruction(0xAC, _CRC, 0), *step * bits]


def _rotated(bits: int) -> list[Instruction]:
    """The CRC rotated left."""
    if bits == 0:
        return []
    return [
        instruction(0xBC, _SCRATCH, _CRC),
        instruction(0x64, _CRC, immediate=bits),
        instruction(0x74, _SCRATCH, immediate=32 - bits),
        instruction(0x4C, _CRC, _SCRATCH),
    ]
