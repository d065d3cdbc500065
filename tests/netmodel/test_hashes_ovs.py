# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import OvsHash
from netmodel.hashes import ovs
from tests.netmodel import reference_hashes as reference
from tests.netmodel.sample import fields_of, random_fields, recorded, rows

U64 = st.integers(0, 2**64 - 1)
WEIGHTS = st.lists(st.integers(0, 300), min_size=2, max_size=9).filter(any)


def test_scores_of_a_known_flow() -> None:
    flow = fields_of("10.0.0.1", "10.0.1.1", 17, 50000, 4791)
    assert ovs.scores(flow, 0, [1] * 4)[:, 0].tolist() == [21672, 51288, 19515, 41876]
    assert OvsHash().select(flow, 0, 4).tolist() == [1]


def test_every_bucket_and_score_recorded_from_open_vswitch() -> None:
    vectors = recorded("ovs_vectors.json")
    ties = 0
    for vector in vectors:
        flow = fields_of(*(vector[key] for key in ("src", "dst", "proto", "sport", "dport")))
        weights = vector["weights"]
        assert OvsHash(tuple(weights)).select(flow, vector["seed"], len(weights))[0] == vector["bucket"], vector
        scores = ovs.scores(flow, vector["seed"], weights)[:, 0].tolist()
        for score, trace in zip(scores, vector.get("scores", []), strict=False):
            assert trace in (None, score)  # a bucket of weight zero has no score in a trace
        ties += scores.count(max(scores)) > 1
    assert all(sum((":" in vector["src"]) == ipv6 for vector in vectors) > 300 for ipv6 in (False, True))
    assert ties > 10  # the record holds flows whose best buckets tie


@given(st.sampled_from([4, 6]), st.integers(0, 10**6), U64, WEIGHTS)
def test_agrees_with_the_scalar_reference(version: int, chance: int, seed: int, weights: list[int]) -> None:
    flows = random_fields(20, chance, protocols=(17, 6), version=version)
    expected = [reference.ovs_bucket(*row, seed, weights) for row in rows(flows)]
    assert OvsHash(tuple(weights)).select(flows, seed, len(weights)).tolist() == expected


def test_results_do_not_depend_on_block_boundaries() -> None:
    flows = random_fields(1500, 3)
    expected = [reference.ovs_bucket(*row, 42, [1] * 50) for row in rows(flows)]
    assert OvsHash().select(flows, 42, 50).tolist() == expected


def test_a_tie_goes_to_the_later_bucket() -> None:
    flows = random_fields(10_000, 1)
    scores = ovs.scores(flows, 9, [1] * 64)
    best = scores == scores.max(axis=0)
    assert (best.sum(axis=0) > 1).any()
    last = 63 - np.argmax(best[::-1], axis=0)
    assert (OvsHash().select(flows, 9, 64) == last).all()


def test_a_bucket_of_weight_zero_takes_nothing() -> None:
    assert set(OvsHash((0, 1, 1, 0)).select(random_fields(500, 1), 9, 4).tolist()) == {1, 2}


def test_weights_are_not_proportional_shares() -> None:
    share = np.bincount(OvsHash((1, 1, 1, 2)).select(random_fields(50_000, 2), 0, 4)) / 50_000
    assert share[3] == pytest.approx(0.625, abs=0.01)


@pytest.mark.parametrize(("protocol", "with_ports"), [(1, False), (132, False), (6, True), (17, True)])
def test_the_ports_of_udp_and_tcp_are_hashed_and_those_of_other_protocols_ignored(
    protocol: int, with_ports: bool
) -> None:
    one, other = fields_of("10.0.0.1", "10.0.0.2", protocol, 1, 2), fields_of("10.0.0.1", "10.0.0.2", protocol, 3, 4)
    assert (ovs.basis(one, 5).tolist() != ovs.basis(other, 5).tolist()) == with_ports


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2), (1, 65536)])
def test_bad_weights_are_refused(weights: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="OVS bucket weights"):
        OvsHash(weights)


def test_bad_arguments_are_refused() -> None:
    flow = random_fields(1, 0)
    with pytest.raises(ValueError, match="needs at least one"):
        OvsHash().select(flow, 0, 0)
    with pytest.raises(ValueError, match="2 weights, but the ECMP group has 3 members"):
        OvsHash((1, 1)).select(flow, 0, 3)
    with pytest.raises(ValueError, match=r"not in 0\.\.2\*\*64-1"):
        OvsHash().select(flow, 2**64, 2)
