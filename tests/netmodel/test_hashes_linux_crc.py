# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import LinuxCrcHash, Role, Topology, clos, fat_tree, leaf_spine, paths_of_ports
from tests.netmodel.sample import random_fields, rows, wired

TREE = fat_tree(4, 10**9)
WIDE = clos(2, 4, 4, 4, 1, 10**9)


@given(
    st.sampled_from([4, 6]), st.integers(0, 10**6), st.integers(0, 2**64 - 1), st.integers(0, 31), st.integers(1, 20)
)
def test_the_nexthop_is_that_of_the_upper_bits_of_the_rotated_crc(
    version: int, chance: int, seed: int, offset: int, members: int
) -> None:
    fields = random_fields(20, chance, protocols=(6, 17), version=version)
    found = LinuxCrcHash({seed: offset}).select(fields, seed, members).tolist()
    for (src, dst, protocol, sport, dport), nexthop in zip(rows(fields), found, strict=True):
        crc = zlib.crc32(src + dst + struct.pack(">BHH", protocol, sport, dport), (seed >> 32) ^ (seed & 0xFFFFFFFF))
        rotated = (crc << offset | crc >> (32 - offset)) & 0xFFFFFFFF
        bounds = [round(2**31 * (member + 1) / members) - 1 for member in range(members)]
        assert nexthop == next(member for member, bound in enumerate(bounds) if rotated >> 1 <= bound)


@pytest.mark.parametrize(
    ("topology", "offsets", "reached"),
    [
        (TREE, {}, 2),
        (TREE, {"agg": 8}, 4),
        (TREE, {"leaf": 30}, 4),
        (WIDE, {}, 4),
        (WIDE, {"agg": 1}, 8),
        (WIDE, {"agg": 8}, 16),
        (WIDE, {"leaf": 8, "agg": 8}, 4),
        (leaf_spine(2, 4, 1, 10**9, parallel_links=2), {}, 8),
        (leaf_spine(2, 4, 1, 10**9, parallel_links=2), {"spine": 8}, 16),
    ],
)
def test_offsets_of_one_tier_end_polarisation(topology: Topology, offsets: dict[Role, int], reached: int) -> None:
    """Tiers that share bits of the hash choose alike, and an offset that leaves a part of them shared heals a part."""
    ends = topology.hosts[0].name, topology.hosts[-1].name
    _, index = paths_of_ports(topology, *ends, LinuxCrcHash.of(topology, offsets))
    assert len(set(index.tolist())) == reached


def test_bad_offsets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"offset of agg switches is 32 bits, but must lie in 0\.\.31"):
        LinuxCrcHash.of(TREE, {"agg": 32})
    pair = wired({"h1": "l1", "h2": "l2"}, [("l1", "s1"), ("l2", "s1")])
    alike = Topology(
        pair.name,
        pair.hosts,
        tuple(type(switch)(switch.name, switch.role, switch.dpid, 7) for switch in pair.switches),
        pair.links,
        pair.mtu_bytes,
    )
    with pytest.raises(ValueError, match="hash seed 7 of switch 's1' is also that of a switch with another offset"):
        LinuxCrcHash.of(alike, {"spine": 8})
    assert LinuxCrcHash.of(alike, {}) == LinuxCrcHash()
