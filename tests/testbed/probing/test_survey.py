# SPDX-License-Identifier: Apache-2.0
"""What is asked, step by step, and what is said about it, without a network."""

from __future__ import annotations

import pytest

from hostlib.probing import ProbeLimits, Target
from netmodel.probing.observations import Observation
from netmodel.probing.paths import FoundPath
from testbed.probing.picture import picture
from testbed.probing.remarks import lost_of, pair_of, remarks, unexplained
from testbed.probing.survey import Questions, Survey, survey
from tests.testbed.probing.scripted import Answers, Scripted

HERE, THERE = "10.0.0.1", "10.0.1.1"
PORTS = tuple(range(50000, 50064))
UNLIMITED = ProbeLimits(router_rate=0)


def three_tiers(target: Target, port: int, ttl: int, _: int) -> str | None:
    """Two aggs, of which each has two cores. The destination says nothing on the port of interest."""
    way = ["172.0.0.1", f"172.1.{port % 2}.1", f"172.2.{port % 4}.1", f"172.3.{port % 4}.1", f"172.4.{port % 2}.1"]
    if ttl <= len(way):
        return way[ttl - 1]
    return target.destination if target.destination_port == 33434 else None


def parallel_down(target: Target, port: int, ttl: int, _: int) -> str | None:
    """Two spines, with two links to the last leaf each."""
    way = ["172.0.0.1", f"172.1.{port % 2}.1", f"172.2.{port % 4}.1", THERE]
    return way[min(ttl, 4) - 1]


def asked(answers: Answers, **questions: object) -> tuple[Survey, Scripted]:
    prober = Scripted(answers)
    return survey(prober, Target(HERE, THERE), Questions(PORTS, **questions)), prober  # type: ignore[arg-type]


def said(found: Survey) -> str:
    return "\n".join(remarks(found, pair_of(found)))


def test_one_probe_of_each_port_at_the_middle_of_the_way_tells_its_path() -> None:
    found, prober = asked(three_tiers)
    assert (found.hops, found.reached, found.told_by) == (5, True, (3,))
    pair = pair_of(found)
    assert pair is not None
    assert [len(path.ports) for path in pair.paths] == [16, 16, 16, 16]
    assert all(
        path.hops[2:4] == (f"172.2.{path.ports[0] % 4}.1", f"172.3.{path.ports[0] % 4}.1") for path in pair.paths
    )
    assert all(None not in path.hops for path in pair.paths)
    assert not said(found)
    assert prober.packets < 64 + 16 * 5 + 4 * 5 + 40


def test_paths_that_part_behind_the_topmost_routers_are_noticed_and_all_ports_asked_there() -> None:
    found, _ = asked(parallel_down)
    assert found.told_by == (2, 3)
    pair = pair_of(found)
    assert pair is not None
    assert {port: path.hops[2] for path in pair.paths for port in path.ports} == {
        port: f"172.2.{port % 4}.1" for port in PORTS
    }


def test_a_hop_may_be_named_or_all_asked() -> None:
    assert asked(three_tiers, ttl=4)[0].told_by == (4,)
    assert asked(three_tiers, ttl="all")[0].told_by == (1, 2, 3, 4, 5)


def test_silence_behind_the_last_router_is_told() -> None:
    found, _ = asked(lambda target, port, ttl, times: None if ttl > 5 else three_tiers(target, port, ttl, times))
    assert (found.hops, found.reached) == (5, False)
    assert "nobody answered behind hop 5" in said(found)


def test_without_a_router_on_the_way_there_is_nothing_to_choose() -> None:
    found, _ = asked(lambda target, *_: target.destination)
    assert found.hops == 0
    assert "no router is on the way" in said(found)


def test_without_any_answer_few_probes_are_sent() -> None:
    found, prober = asked(lambda *_: None)
    pair = pair_of(found)
    assert pair is not None
    assert not pair.pinnable
    assert prober.packets <= 8


def test_the_first_router_alone_pins_nothing() -> None:
    pair = pair_of(asked(lambda target, port, ttl, times: "172.0.0.1" if ttl == 1 else None)[0])
    assert pair is not None
    assert not pair.pinnable


def test_one_router_between_two_hosts_is_enough_where_a_closed_port_tells_that_it_is_the_only_one() -> None:
    def answers(target: Target, port: int, ttl: int, times: int) -> str | None:
        return "172.0.0.1" if ttl == 1 else target.destination if target.destination_port == 33434 else None

    found, _ = asked(answers)
    pair = pair_of(found)
    assert (found.hops, found.reached) == (1, True)
    assert pair is not None
    assert pair.pinnable


def test_a_silent_middle_is_told() -> None:
    found, _ = asked(lambda target, port, ttl, times: None if ttl == 3 else three_tiers(target, port, ttl, times))
    assert "no router at hop 3 answered" in said(found)


def test_answers_by_loopbacks_are_told_once_paths_share_the_next_address() -> None:
    def answers(target: Target, port: int, ttl: int, times: int) -> str | None:
        return "172.9.0.1" if ttl == 3 else parallel_down(target, port, ttl, times)

    found, _ = asked(answers)
    assert "2 paths that differ at hop 2 lead to 1 addresses at hop 3" in said(found)


def by_reply(target: Target, port: int, ttl: int, times: int) -> str | None:
    """Four spines; the last leaf answers by an uplink of its own choice."""
    return ["172.0.0.1", f"172.1.{port % 4}.1", f"172.2.{port // 4 % 4}.1", THERE][min(ttl, 4) - 1]


def three_tiers_by_reply(target: Target, port: int, ttl: int, times: int) -> str | None:
    """An agg answers by the port to any of its two cores, the last leaf by that to any agg."""
    if ttl == 4:
        return f"172.3.{port % 2}.{port // 4 % 2}"
    return f"172.4.{port // 8 % 2}.1" if ttl == 5 else three_tiers(target, port, ttl, times)


@pytest.mark.parametrize(("answers", "top", "hops"), [(by_reply, 2, 3), (three_tiers_by_reply, 3, 5)])
def test_answers_by_the_port_of_the_reply_make_no_paths(answers: Answers, top: int, hops: int) -> None:
    found, _ = asked(answers)
    assert (found.hops, found.told_by, found.vague) == (hops, (top,), tuple(range(top + 1, hops + 1)))
    pair = pair_of(found)
    assert pair is not None
    assert [len(path.ports) for path in pair.paths] == [16, 16, 16, 16]
    assert not pair.undecided
    assert f"ports are pinned up to hop {top}, and parallel links are not told apart" in said(found)


def test_parallel_links_to_both_sides_of_two_spines_are_told_apart() -> None:
    def answers(target: Target, port: int, ttl: int, times: int) -> str | None:
        way = ["172.0.0.1", f"172.1.{port % 4}.1", f"172.2.{port % 2 + 2 * (port // 4 % 2)}.1", THERE]
        return way[min(ttl, 4) - 1]

    found, _ = asked(answers)
    assert (found.told_by, found.vague) == ((2, 3), ())
    pair = pair_of(found)
    assert pair is not None
    assert len(pair.paths) == 8


def test_a_sprayed_fabric_pins_nothing() -> None:
    def answers(target: Target, port: int, ttl: int, times: int) -> str | None:
        return f"172.2.{(port + times * 7 + times // 2) % 4}.1" if ttl == 3 else three_tiers(target, port, ttl, times)

    pair = pair_of(asked(answers)[0])
    assert pair is not None
    assert not pair.pinnable


@pytest.mark.parametrize("linear", [True, False])
def test_whether_the_hash_is_linear_is_found(linear: bool) -> None:
    def answers(target: Target, port: int, ttl: int, times: int) -> str | None:
        if ttl != 3:
            return three_tiers(target, port, ttl, times)
        bits = port ^ port >> 3 if linear else port * 40503 >> 7
        return f"172.2.{bits % 4}.1"

    found, _ = asked(answers, linear=True)
    assert ("the hash is linear" in said(found)) == linear
    assert ("the hash is not linear" in said(found)) != linear


def one(at_s: float, answer: bool) -> Observation:
    router, rtt_s = ("172.0.0.1", 0.001) if answer else (None, None)
    return Observation(HERE, THERE, "udp", 50000, 4791, 1, "hop" if answer else "none", router, rtt_s, at_s)


def test_silence_after_a_burst_of_answers_is_the_limits_and_other_silence_is_loss() -> None:
    burst = [one(at / 100, True) for at in range(6)]
    assert unexplained([*burst, one(0.1, False)], ProbeLimits()) == 0
    assert unexplained([*burst[:5], one(0.1, False)], ProbeLimits()) == 1
    assert unexplained([*burst, one(20.0, False)], ProbeLimits()) == 1
    assert unexplained([*burst, one(0.1, False)], UNLIMITED) == 1


def test_loss_is_counted_for_each_path() -> None:
    def answers(target: Target, port: int, ttl: int, times: int) -> str | None:
        return None if ttl == 3 and port % 4 == 1 and times > 2 else three_tiers(target, port, ttl, times)

    found, _ = asked(answers)
    pair = pair_of(found)
    assert pair is not None
    lost = {path.ports[0] % 4: lost_of(found, path, UNLIMITED)[0] for path in pair.paths}
    assert lost[1] > 0
    assert lost[0] == lost[2] == lost[3] == 0


def test_the_picture_shows_where_paths_part_and_their_shares() -> None:
    paths = [
        FoundPath(("a", "b1", "c1"), tuple(range(12)), 1, 1, None),
        FoundPath(("a", "b1", "c2"), tuple(range(6)), 1, 1, None),
        FoundPath(("a", None, "c3"), tuple(range(6)), 1, 1, None),
    ]
    assert picture("h1", "h2", paths, str.upper) == [
        "H1",
        "`- A  ######################## 100%",
        "   |- B1  ################## 75%",
        "   |  |- C1 > H2  ############ 50%",
        "   |  `- C2 > H2  ###### 25%",
        "   `- ? > C3 > H2  ###### 25%",
    ]
