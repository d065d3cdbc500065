# SPDX-License-Identifier: Apache-2.0
"""Routers behind the topmost ones are believed when they have told known ways, and not before."""

from __future__ import annotations

from sdn.measured.other_hops import SURE, OtherHops

KNOWN = {port: f"way {port % 4}" for port in range(100, 108)}


def tried(others: OtherHops[str, str, str], pair: str, told: dict[int, str]) -> list[int]:
    """A trial of the only pair of a host."""
    ports = others.begin(f"host of {pair}", pair, "aggs", KNOWN)
    others.end(pair, KNOWN, {port: told[port] for port in ports if port in told})
    return ports


def test_routers_are_believed_after_enough_ways_of_pairs() -> None:
    others = OtherHops[str, str, str]()
    assert tried(others, "a", KNOWN) == [100, 101, 102, 103], "one port of each way"
    assert tried(others, "a", KNOWN) == [], "nothing new"
    assert not others.believed("aggs")
    assert len(tried(others, "b", KNOWN)) == SURE - 4
    assert others.believed("aggs")
    assert not others.believed("other aggs")
    assert tried(others, "c", KNOWN) == []


def test_what_is_under_way_is_not_tried_twice() -> None:
    others = OtherHops[str, str, str]()
    assert [len(others.begin(pair, pair, "aggs", KNOWN)) for pair in "abc"] == [4, 4, 0]
    others.end("a", KNOWN, {})  # nobody answered, or the pair has ended
    assert len(others.begin("c", "c", "aggs", KNOWN)) == 4
    others.end("d", KNOWN, KNOWN)  # was never begun
    assert not others.believed("aggs")


def test_routers_that_tell_other_ways_are_not_believed() -> None:
    others = OtherHops[str, str, str]()
    tried(others, "a", dict.fromkeys(KNOWN, "way 0"))
    for pair in "bcd":
        assert tried(others, pair, KNOWN) == []
    assert not others.believed("aggs")


def test_a_port_that_has_moved_meanwhile_says_nothing_of_the_routers() -> None:
    others = OtherHops[str, str, str]()
    ports = others.begin("a", "a", "aggs", KNOWN)
    others.end("a", {}, dict.fromkeys(ports, "another"))
    tried(others, "a", KNOWN)
    tried(others, "b", KNOWN)
    assert others.believed("aggs")


def test_routers_that_have_told_a_port_wrong_are_believed_until_they_are_tried_again() -> None:
    others = OtherHops[str, str, str]()
    others.anew("aggs")
    assert not others.believed("aggs")
    for pair in "ab":
        tried(others, pair, KNOWN)
    others.anew("aggs")
    assert others.believed("aggs")
    assert len(tried(others, "a", KNOWN)) == 4
    tried(others, "b", dict.fromkeys(KNOWN, "way 0"))
    assert not others.believed("aggs")
    others.anew("aggs")
    assert tried(others, "c", KNOWN) == []


def test_routers_that_do_not_answer_are_not_tried_for_ever() -> None:
    others = OtherHops[str, str, str]()
    ports = [len(tried(others, pair, {})) for pair in "abcdefghijkl"]
    assert ports == sorted(ports, reverse=True)
    assert ports[0] > ports[-1] == 0
    assert not others.believed("aggs")


def test_one_host_does_not_decide_for_others() -> None:
    """A host that lies may have many pairs."""
    others = OtherHops[str, str, str]()
    for pair in "abcdef":
        known = {port: f"{way} of {pair}" for port, way in KNOWN.items()}
        ports = others.begin("liar", pair, "aggs", known)
        others.end(pair, known, known)
        assert len(ports) == (4 if pair == "a" else 0)
    assert not others.believed("aggs")
    tried(others, "g", KNOWN)
    assert others.believed("aggs")
