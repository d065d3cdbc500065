# SPDX-License-Identifier: Apache-2.0
"""Routers behind the topmost ones are believed when they have told known ways, and not before."""

from __future__ import annotations

from sdn.measured.other_hops import SURE, OtherHops

KNOWN = {port: f"way {port % 4}" for port in range(100, 108)}


def tried(others: OtherHops[int, str, str], pair: str, told: dict[int, str], host: int = 0) -> tuple[int, ...]:
    ports = others.begin(host, pair, "aggs", KNOWN)
    others.end(pair, KNOWN, {port: told[port] for port in ports if port in told})
    return ports


def test_routers_are_believed_after_enough_ways_of_pairs() -> None:
    others = OtherHops[int, str, str]()
    assert tried(others, "a", KNOWN) == (100, 101, 102, 103), "one port of each way"
    assert tried(others, "a", KNOWN) == (), "nothing new"
    assert not others.believed(0, "aggs")
    assert len(tried(others, "b", KNOWN)) == SURE - 4
    assert others.believed(0, "aggs")
    assert not others.believed(0, "other aggs")
    assert tried(others, "c", KNOWN) == ()


def test_a_host_believes_what_it_has_tried_itself() -> None:
    others = OtherHops[int, str, str]()
    for pair in "ab":
        tried(others, pair, KNOWN)
    assert not others.believed(1, "aggs")
    assert tried(others, "c", KNOWN, host=1) == (100, 101)
    assert others.believed(1, "aggs")
    tried(others, "d", dict.fromkeys(KNOWN, "way 0"), host=2)
    assert not others.believed(0, "aggs"), "one of the hosts lies"


def test_what_is_under_way_is_not_tried_twice() -> None:
    others = OtherHops[int, str, str]()
    assert [len(others.begin(0, pair, "aggs", KNOWN)) for pair in "abc"] == [4, 4, 0]
    assert len(others.begin(1, "d", "aggs", KNOWN)) == 2
    others.forget("a")
    assert (others.under_way("a"), others.under_way("d")) == ((), (100, 101))
    assert len(others.begin(0, "c", "aggs", KNOWN)) == 2
    others.end("e", KNOWN, KNOWN)  # was never begun
    assert not others.believed(0, "aggs")


def test_routers_that_tell_other_ways_are_not_believed() -> None:
    others = OtherHops[int, str, str]()
    tried(others, "a", dict.fromkeys(KNOWN, "way 0"))
    for pair in "bcd":
        assert tried(others, pair, KNOWN) == ()
    assert not others.believed(0, "aggs")
    others.changed("aggs")  # then routes may have changed before they told these
    tried(others, "b", KNOWN)
    assert not others.believed(0, "aggs"), "what they told right before they told another way was chance"
    tried(others, "c", KNOWN)
    assert others.believed(0, "aggs")


def test_a_port_that_has_moved_meanwhile_says_nothing_of_the_routers() -> None:
    others = OtherHops[int, str, str]()
    ports = others.begin(0, "a", "aggs", KNOWN)
    others.end("a", {}, dict.fromkeys(ports, "another"))
    tried(others, "a", KNOWN)
    tried(others, "b", KNOWN)
    assert others.believed(0, "aggs")


def test_routers_that_have_told_a_port_wrong_are_believed_until_they_are_tried_again() -> None:
    others = OtherHops[int, str, str]()
    others.anew("aggs")
    assert not others.believed(0, "aggs")
    for pair in "ab":
        tried(others, pair, KNOWN)
    others.anew("aggs")
    assert [others.believed(host, "aggs") for host in range(2)] == [True, False]
    assert len(tried(others, "a", KNOWN)) == 4
    tried(others, "b", dict.fromkeys(KNOWN, "way 0"))
    assert not others.believed(0, "aggs")
    others.anew("aggs")
    assert tried(others, "c", KNOWN) == ()


def test_routers_that_tell_nothing_are_not_tried_for_ever() -> None:
    others = OtherHops[int, str, str]()
    for port, left in ((100, 4), (101, 3)):  # an answer shows that they do tell
        assert [len(tried(others, "a", {})) for _ in range(2)] == [left, left]
        tried(others, "a", {port: KNOWN[port]})
    assert [len(tried(others, "a", {})) for _ in range(4)] == [2, 2, 2, 0]
    others.changed("aggs")
    assert len(tried(others, "a", {})) == 2
