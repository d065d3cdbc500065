# SPDX-License-Identifier: Apache-2.0
"""`paralet bench probing` with small fabrics."""

from __future__ import annotations

import pytest

from sdn.measured.pace import Pace
from testbed.bench import probing
from testbed.bench.probing import Size, simulate

SMALL = Size(pods=4, leaves=2, hosts=8, cores=16, peers=3)


def test_a_model_saves_probes_and_time_where_lanes_share_a_way() -> None:
    ours, sampled = (simulate(SMALL, affine=affine, lanes=4) for affine in (True, False))
    assert ours.probes < 0.5 * sampled.probes
    assert ours.pinned_s < sampled.pinned_s


def test_a_way_for_each_lane_takes_few_probes_with_any_hash() -> None:
    for affine in (True, False):
        outcome = simulate(SMALL, affine=affine)
        assert 8 <= outcome.probes < 30
        assert 0 < outcome.pinned_s < 60
        assert 500 < outcome.pair_bytes < 2_000


def test_routers_are_not_asked_for_more_than_their_pace() -> None:
    """Ports fall on routers by chance, so one of them may get somewhat more than its share."""
    crowded = Size(pods=16, leaves=4, hosts=16, cores=4, peers=3)
    outcome = simulate(crowded, affine=False)
    assert 150 < outcome.router_per_s < 1.6 * Pace().router_per_s
    assert outcome.lost < 0.1


def test_all_metrics_are_told() -> None:
    one = simulate(SMALL, affine=True)
    rows = probing.compared(SMALL, one, one, "itself")
    assert [(row.metric, row.unit) for row in rows] == [
        ("until 95 % can be pinned", "s"),
        ("probes per pair", ""),
        ("most asked of a router", "1/s"),
        ("memory per pair", "B"),
        ("processor time per probe", "us"),
    ]
    assert {row.case for row in rows} == {"64 hosts, 16 cores, 3 peers each"}
    assert all(row.ours == row.peer > 0 for row in rows)


def test_an_affine_hash_needs_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="12 cores are no power of two"):
        simulate(Size(4, 2, 8, 12), affine=True)
