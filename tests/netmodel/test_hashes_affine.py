# SPDX-License-Identifier: Apache-2.0
import binascii
import functools
import operator
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import AffineHash, CrcHash, FlowFields, LinuxL4Hash, OvsHash, XorHash
from netmodel.hashes import linux_l4, ovs
from tests.netmodel.reference_hashes import crc16
from tests.netmodel.sample import random_fields, rows

AFFINE: list[AffineHash] = [CrcHash("crc16"), CrcHash("crc32"), XorHash()]
U64 = st.integers(0, 2**64 - 1)
VERSION = st.sampled_from([4, 6])
CHANCE = st.integers(0, 10**6)


def xor(a: FlowFields, b: FlowFields) -> FlowFields:
    return FlowFields(a.src ^ b.src, a.dst ^ b.dst, a.sport ^ b.sport, a.dport ^ b.dport, a.proto ^ b.proto)


def keys(flows: FlowFields) -> list[bytes]:
    return [src + dst + struct.pack(">BHH", proto, sport, dport) for src, dst, proto, sport, dport in rows(flows)]


@pytest.mark.parametrize("hash_", AFFINE, ids=str)
@given(chance=CHANCE, seed=U64, bits=st.integers(0, 6))
def test_a_header_change_determines_the_change_of_the_hash_value(
    hash_: AffineHash, chance: int, seed: int, bits: int
) -> None:
    x, d = (random_fields(30, chance + i, protocols=tuple(range(256))) for i in (0, 1))
    changed = hash_.value(x, seed) ^ hash_.linear(d)
    assert (hash_.value(xor(x, d), seed) == changed).all()
    # Relative path control: with 2**bits members the same holds for the member at any switch.
    members = 2**bits
    assert (hash_.select(xor(x, d), seed, members) == changed % members).all()


@pytest.mark.parametrize("hash_", AFFINE, ids=str)
@given(chance=CHANCE)
def test_the_linear_part_is_linear(hash_: AffineHash, chance: int) -> None:
    a, b = random_fields(30, chance), random_fields(30, chance + 1)
    assert (hash_.linear(xor(a, b)) == hash_.linear(a) ^ hash_.linear(b)).all()
    assert not hash_.linear(xor(a, a)).any()


def test_murmur_and_siphash_are_not_affine() -> None:
    x, y, d = (random_fields(100, i) for i in range(3))
    for value in (lambda f: ovs.basis(f, 1), lambda f: linux_l4.flow_hash(f, 1)):
        assert ((value(xor(x, d)) ^ value(x)) != (value(xor(y, d)) ^ value(y))).mean() > 0.99


@given(VERSION, CHANCE, U64)
def test_crc32_is_that_of_zlib(version: int, chance: int, seed: int) -> None:
    flows = random_fields(20, chance, version=version)
    folded = (seed >> 32) ^ (seed & 0xFFFFFFFF)
    assert CrcHash("crc32").value(flows, seed).tolist() == [zlib.crc32(key, folded) for key in keys(flows)]


@given(VERSION, CHANCE, U64)
def test_crc16_is_that_of_binascii_and_of_long_division(version: int, chance: int, seed: int) -> None:
    flows = random_fields(20, chance, version=version)
    folded = (seed >> 48) ^ (seed >> 32 & 0xFFFF) ^ (seed >> 16 & 0xFFFF) ^ (seed & 0xFFFF)
    values = CrcHash("crc16").value(flows, seed).tolist()
    assert values == [binascii.crc_hqx(key, folded) for key in keys(flows)]
    assert values == [crc16(key, folded) for key in keys(flows)]


@pytest.mark.parametrize("version", [4, 6])
def test_xor_folds_the_key_to_sixteen_bits(version: int) -> None:
    flows = random_fields(50, 8, version=version)
    for (src, dst, proto, sport, dport), value in zip(rows(flows), XorHash().value(flows, 0x1_0002), strict=True):
        addresses = struct.unpack(f">{len(src)}H", src + dst)
        assert value == functools.reduce(operator.xor, (*addresses, proto, sport, dport, 3))


@pytest.mark.parametrize("hash_", [OvsHash(), LinuxL4Hash(), *AFFINE], ids=str)
@pytest.mark.parametrize("members", [1, 3, 16])
def test_fields_shared_by_all_flows_hash_as_if_repeated(hash_: AffineHash, members: int) -> None:
    ports = np.arange(0xC000, 0xC100, dtype=np.uint16)
    fields = random_fields(1, 6)
    shared = FlowFields(fields.src, fields.dst, ports, fields.dport, fields.proto)
    spelt = FlowFields(
        *(np.repeat(f, 256) for f in (fields.src, fields.dst)), ports, *map(repeat, (fields.dport, fields.proto))
    )
    choice = hash_.select(shared, 11, members)
    assert choice.shape == (256,)
    assert (choice == hash_.select(spelt, 11, members)).all()
    assert hash_.select(fields, 11, members).shape == (1,)
    assert 0 <= choice.min() <= choice.max() < members


def repeat(field: np.ndarray) -> np.ndarray:
    return np.repeat(field, 256)


def test_an_unknown_crc_is_refused() -> None:
    with pytest.raises(ValueError, match="'crc8' is none of crc16, crc32"):
        CrcHash("crc8")  # type: ignore[arg-type]
