# SPDX-License-Identifier: Apache-2.0
"""Several hops that together tell the way of a probe."""

from __future__ import annotations

from ipaddress import ip_address

from sdn.measured.discovery import Ask, Hop, PairKey
from sdn.measured.hops import settled

HOPS = (Hop(2, "spines", 2), Hop(3, "leaf2", 1))
PAIR = PairKey(0, 4, 4791)
SPINE, LEAF = ip_address("172.16.0.1"), ip_address("172.16.0.9")


def test_one_hop_settles_all_ports() -> None:
    assert settled(Ask(PAIR, 2, (1, 2)), HOPS[:1], {1: SPINE}) == ({1: (SPINE,), 2: ()}, None)


def test_ports_that_are_answered_are_asked_about_at_the_next_hop() -> None:
    first, further = settled(Ask(PAIR, 2, (1, 2, 3), urgent=True), HOPS, {1: SPINE, 3: SPINE})
    assert first == {2: ()}
    assert further == Ask(PAIR, 3, (1, 3), urgent=True, told={1: (SPINE,), 3: (SPINE,)})
    assert settled(further, HOPS, {3: LEAF}) == ({1: (), 3: (SPINE, LEAF)}, None)


def test_nothing_more_is_asked_where_nobody_answers() -> None:
    assert settled(Ask(PAIR, 2, (1,)), HOPS, {}) == ({1: ()}, None)


def test_ports_that_were_not_probed_are_neither_silent_nor_asked_about() -> None:
    ask = Ask(PAIR, 2, (1, 2, 3), until=("spine1",))
    assert settled(ask, HOPS[:1], {1: SPINE}, left_out={3}) == ({1: (SPINE,), 2: ()}, None)
    assert settled(ask, HOPS, {1: SPINE}, left_out={2, 3}) == ({}, Ask(PAIR, 3, (1,), told={1: (SPINE,)}))
    assert settled(ask, HOPS, {}, left_out={1, 2, 3}) == ({}, None)
