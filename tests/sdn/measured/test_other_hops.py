# SPDX-License-Identifier: Apache-2.0
"""Routers behind the topmost ones are believed when they have told known ways, and not before."""

from __future__ import annotations

from sdn.measured.other_hops import SURE, OtherHops

KNOWN = {port: f"way {port % 4}" for port in range(100, 108)}


def tried(others: OtherHops[str, str], pair: str, told: dict[int, str]) -> list[int]:
    ports = others.begin(pair, "aggs", KNOWN)
    others.end(pair, KNOWN, {port: told[port] for port in ports if port in told})
    return ports


def test_routers_are_believed_after_enough_ways_of_pairs() -> None:
    others = OtherHops[str, str]()
    assert tried(others, "a", KNOWN) == [100, 101, 102, 103], "one port of each way"
    assert tried(others, "a", KNOWN) == [], "nothing new"
    assert not others.believed("aggs")
    assert len(tried(others, "b", KNOWN)) == SURE - 4
    assert others.believed("aggs")
    assert not others.believed("other aggs")
    assert tried(others, "c", KNOWN) == []


def test_what_is_under_way_is_not_tried_twice() -> None:
    others = OtherHops[str, str]()
    assert [len(others.begin(pair, "aggs", KNOWN)) for pair in "abc"] == [4, 4, 0]
    others.end("a", KNOWN, {})  # nobody answered, or the pair has ended
    assert len(others.begin("c", "aggs", KNOWN)) == 4
    others.end("d", KNOWN, KNOWN)  # was never begun
    assert not others.believed("aggs")


def test_routers_that_tell_other_ways_are_not_believed() -> None:
    others = OtherHops[str, str]()
    tried(others, "a", dict.fromkeys(KNOWN, "way 0"))
    for pair in "bcd":
        assert tried(others, pair, KNOWN) == []
    assert not others.believed("aggs")


def test_a_port_that_has_moved_meanwhile_says_nothing_of_the_routers() -> None:
    others = OtherHops[str, str]()
    ports = others.begin("a", "aggs", KNOWN)
    others.end("a", {}, dict.fromkeys(ports, "another"))
    tried(others, "a", KNOWN)
    tried(others, "b", KNOWN)
    assert others.believed("aggs")
