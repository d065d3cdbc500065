# SPDX-License-Identifier: Apache-2.0
"""Loads of direct connections by all-to-alls, against routes counted pair by pair and against a switch."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sdn.topoopt import coin_change, coin_route, select_permutations
from testbed.research.cluster_plans.all_to_all_circuits import Permutations
from testbed.training.clusters import DGX_H100
from testbed.training.hardware import Collective


@given(domains=st.integers(3, 40), nics=st.integers(1, 8))
def test_the_busiest_circuit_carries_what_the_routes_of_all_pairs_put_on_it(domains: int, nics: int) -> None:
    assume(nics < domains - 1)
    strides = select_permutations(domains, nics, range(1, domains))
    sums, members = coin_change(domains, strides), range(domains)
    circuits: Counter[tuple[int, int]] = Counter()
    for source in members:
        for destination in members:
            circuits.update(pairwise(coin_route(members, sums, source, destination)))
    assert set(circuits) <= {(member, (member + stride) % domains) for member in members for stride in strides}
    assert Permutations(nics)(domains) == max(circuits.values())


@pytest.mark.parametrize(("nics", "domains", "load"), [(7, 8, 1.0), (8, 8, 1.0), (8, 5, 0.5), (8, 2, 1 / 8)])
def test_circuits_to_all_others_are_shared_by_none(nics: int, domains: int, load: float) -> None:
    assert Permutations(nics)(domains) == load


def test_direct_circuits_to_all_others_are_as_fast_as_a_switch() -> None:
    rails = replace(DGX_H100, domain_gpus=8, forwarding=True)
    direct = replace(rails, all_to_all_load=Permutations(8))
    exchanged = Collective("all_to_all", 64e6)
    assert direct.group(8 * 9).seconds(exchanged) == pytest.approx(rails.group(8 * 9).seconds(exchanged))


def test_relays_cost_more_with_fewer_nics() -> None:
    times_s = [
        replace(DGX_H100, forwarding=True, all_to_all_load=Permutations(nics))
        .group(8 * 32)
        .seconds(Collective("all_to_all", 64e6))
        for nics in range(9)
    ]
    assert times_s == sorted(times_s, reverse=True)
    assert times_s[8] > replace(DGX_H100, forwarding=True).group(8 * 32).seconds(Collective("all_to_all", 64e6))
