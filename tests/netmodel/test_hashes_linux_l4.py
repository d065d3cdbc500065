# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import FlowFields, LinuxL4Hash
from netmodel.hashes import linux_l4
from tests.netmodel import reference_hashes as reference
from tests.netmodel.sample import fields_of, random_fields, recorded, rows

VERSION = st.sampled_from([4, 6])


def test_the_reference_is_siphash_24() -> None:
    key, message = bytes(range(16)), bytes(range(15))
    assert reference.siphash24(key, message) == 0xA129CA6149BE45E5  # the SipHash paper, appendix A
    assert reference.siphash24(key, b"") == 0x726FDB47DD0E0E31  # vectors.h of its reference implementation


def test_every_nexthop_recorded_from_linux() -> None:
    vectors = recorded("linux_vectors.json")
    for vector in vectors:
        flow = fields_of(*(vector[key] for key in ("src", "dst", "proto", "sport", "dport")))
        weights = vector["weights"]
        assert LinuxL4Hash(tuple(weights)).select(flow, vector["seed"], len(weights))[0] == vector["nexthop"], vector
    assert [sum((":" in vector["src"]) == ipv6 for vector in vectors) for ipv6 in (False, True)] == [300, 300]


@given(VERSION, st.integers(0, 10**6), st.integers(0, 2**64 - 1), st.lists(st.integers(1, 256), min_size=1, max_size=9))
def test_agrees_with_the_scalar_reference(version: int, chance: int, seed: int, weights: list[int]) -> None:
    flows = random_fields(20, chance, protocols=(17, 6), version=version)
    expected = [reference.linux_nexthop(*row, seed, weights) for row in rows(flows)]
    assert LinuxL4Hash(tuple(weights)).select(flows, seed, len(weights)).tolist() == expected
    assert linux_l4.flow_hash(flows, seed).tolist() == [reference.linux_hash(*row, seed) for row in rows(flows)]


@pytest.mark.parametrize("version", [4, 6])
def test_both_directions_of_a_flow_have_the_same_hash(version: int) -> None:
    there = random_fields(1000, 4, version=version)
    back = FlowFields(src=there.dst, dst=there.src, sport=there.dport, dport=there.sport, proto=there.proto)
    assert (LinuxL4Hash().select(there, 77, 5) == LinuxL4Hash().select(back, 77, 5)).all()


def test_weights_are_proportional_shares() -> None:
    share = np.bincount(LinuxL4Hash((1, 1, 1, 2)).select(random_fields(50_000, 2), 3, 4)) / 50_000
    assert share.tolist() == pytest.approx([0.2, 0.2, 0.2, 0.4], abs=0.01)


def test_only_the_low_half_of_the_seed_counts() -> None:
    flows = random_fields(200, 5)
    assert (LinuxL4Hash().select(flows, 0xABCD_00000001, 4) == LinuxL4Hash().select(flows, 1, 4)).all()
    assert (LinuxL4Hash().select(flows, 2, 4) != LinuxL4Hash().select(flows, 1, 4)).any()


@pytest.mark.parametrize("weights", [(0, 1), (1, 257)])
def test_bad_weights_are_refused(weights: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must lie in 1\.\.256"):
        LinuxL4Hash(weights)
