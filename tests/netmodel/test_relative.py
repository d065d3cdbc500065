# SPDX-License-Identifier: Apache-2.0
"""Relative paths at switches with an affine hash, without knowledge of their seeds."""

from __future__ import annotations

import collections
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import ENTROPY_PORTS, AffineHash, CrcHash, FlowFields, XorHash, leaf_spine, path_of
from netmodel import Flow as UdpFlow
from netmodel.relative import parted_ports, port_offsets

HASHES = [CrcHash("crc16"), CrcHash("crc32"), XorHash()]
ADDRESSES = st.integers(0, 2**32 - 1).map(IPv4Address)
PORTS = st.sampled_from(ENTROPY_PORTS)
MEMBERS = st.sampled_from([1, 2, 4, 8, 16, 32])


@settings(derandomize=True, max_examples=60)
@given(st.sampled_from(HASHES), MEMBERS, ADDRESSES, ADDRESSES, PORTS, st.integers(0, 2**64 - 1))
def test_an_offset_changes_the_member_as_computed_for_any_seed(
    ecmp_hash: AffineHash, members: int, src: IPv4Address, dst: IPv4Address, port: int, seed: int
) -> None:
    (before,) = ecmp_hash.select(FlowFields.over_ports(src, dst, np.array([port], dtype=np.uint16)), seed, members)
    table = port_offsets(ecmp_hash, members)
    assert sum(offsets.size for offsets in table) == len(ENTROPY_PORTS)
    for change, offsets in enumerate(table):
        moved = offsets ^ np.uint16(port)
        assert all(int(end) in ENTROPY_PORTS for end in (moved.min(initial=port), moved.max(initial=port)))
        chosen = ecmp_hash.select(FlowFields.over_ports(src, dst, moved), seed, members)
        assert (chosen == before ^ change).all()


@settings(derandomize=True, max_examples=60)
@given(st.sampled_from(HASHES), MEMBERS, ADDRESSES, ADDRESSES, PORTS, st.integers(0, 2**64 - 1), st.integers(0, 64))
def test_parted_ports_are_spread_evenly_over_members(
    ecmp_hash: AffineHash, members: int, src: IPv4Address, dst: IPv4Address, base: int, seed: int, count: int
) -> None:
    ports = parted_ports(base, ecmp_hash, members, count)
    assert len(set(ports.tolist())) == count
    if not count:
        return
    assert ports[0] == base
    chosen = collections.Counter(ecmp_hash.select(FlowFields.over_ports(src, dst, ports), seed, members).tolist())
    assert max(chosen.values()) == -(-count // members)


def test_lanes_take_different_spines_without_knowledge_of_seeds() -> None:
    topology = leaf_spine(2, 8, 1, 1_000_000)
    src, dst = topology.hosts[0].nics[0].address, topology.hosts[1].nics[0].address
    ports = parted_ports(50_000, CrcHash("crc32"), 8, 8)
    taken = {path_of(topology, UdpFlow(src, dst, int(port)), CrcHash("crc32"))[1] for port in ports}
    assert len(taken) == 8


@pytest.mark.parametrize("members", [0, 3, 12, 2**15])
def test_member_counts_that_are_not_powers_of_two_are_refused(members: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        port_offsets(XorHash(), members)


@pytest.mark.parametrize(("base", "count"), [(0xBFFF, 1), (0xC000, 2**14 + 1), (0xC000, -1)])
def test_ports_outside_the_range_are_refused(base: int, count: int) -> None:
    with pytest.raises(ValueError, match="not in"):
        parted_ports(base, XorHash(), 4, count)


def test_a_hash_that_ignores_ports_reaches_one_member_only() -> None:
    class Deaf(XorHash):
        def linear(self, delta: FlowFields) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
            return np.zeros(len(delta), dtype=np.uint32)

    assert [offsets.size for offsets in port_offsets(Deaf(), 2)] == [2**14, 0]
    assert parted_ports(0xC000, Deaf(), 2, 3).tolist() == [0xC000, 0xC001, 0xC002]
