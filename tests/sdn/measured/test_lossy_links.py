# SPDX-License-Identifier: Apache-2.0
"""Links that lose packets are named by the lanes over them."""

from __future__ import annotations

from sdn.measured.lossy_links import LossyLinks

LANES = {"up1": 2, "up2": 2, "core": 4, "down": 8}


def judged(links: LossyLinks[str], now_s: float) -> list[tuple[tuple[str, ...], int, int, int]]:
    assert links.is_due(now_s)
    return [(each.links, each.lossy, each.lanes, each.hosts) for each in links.judge(now_s, LANES)]


def test_the_link_that_explains_most_losses_is_named() -> None:
    links: LossyLinks[str] = LossyLinks()
    for lane, up in enumerate(("up1", "up1", "up2", "up2")):
        links.report(1.0, lane, f"h{lane}", (up, "core", "down"))
    assert not links.is_due(1.1)
    assert judged(links, 1.5) == [(("core",), 4, 4, 4)]
    assert list(links.avoided) == ["core"]
    assert not links.is_due(2.0)


def test_links_with_the_same_evidence_are_named_together() -> None:
    links: LossyLinks[str] = LossyLinks()
    for at_s in (1.0, 1.4):  # two hosts have to be sure
        assert links.judge(at_s, {**LANES, "edge": 2}) == []
        for host in ("h1", "h2"):
            links.report(at_s, host, host, ("up1", "edge"))
    links.report(1.4, "other", "h3", ("up2", "down"))
    (named,) = links.judge(1.7, {**LANES, "edge": 2})
    assert set(named.links) == set(links.avoided) == {"up1", "edge"}


def test_neither_one_host_nor_few_lanes_nor_old_losses_name_a_link() -> None:
    links: LossyLinks[str] = LossyLinks()
    links.report(1.0, 1, "h1", ("up1",))
    links.report(1.0, 2, "h1", ("up1",))
    links.report(1.0, 3, "h2", ("down",))
    links.report(1.0, 4, "h3", ("down",))
    assert judged(links, 1.5) == []
    links.report(9.0, 5, "h4", ("up1",))
    assert judged(links, 9.5) == []
    assert not links.avoided


def test_losses_everywhere_name_no_link() -> None:
    links: LossyLinks[str] = LossyLinks()
    for lane in range(8):
        links.report(1.0, lane, f"h{lane}", (f"up{lane // 2}",))
    assert links.judge(1.5, {f"up{number}": 2 for number in range(4)}) == []


def test_a_link_that_goes_on_losing_packets_is_avoided_for_longer() -> None:
    links: LossyLinks[str] = LossyLinks()
    now_s, times = 0.0, []
    for _ in range(3):
        for host in ("h1", "h2", "h3"):
            links.report(now_s, host, host, ("up1",))
        assert judged(links, now_s + 0.5)
        began_s = now_s = now_s + 0.5
        while not links.over(now_s):
            now_s += 1.0
        times.append(now_s - began_s)
        assert not links.avoided
    assert times == [10.0, 20.0, 40.0]
    links.forget(["up1"])
    for host in ("h1", "h2", "h3"):
        links.report(now_s, host, host, ("up1",))
    assert judged(links, now_s + 0.5)
    assert links.over(now_s + 10.5) == ["up1"]
