# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom, by made-up dumps: every cause, chains over hosts, and cycles."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hostlib.stats import ConnectionSnapshot, DeviceSnapshot, Survey
from testbed.errors import InputError
from testbed.live.dumps import as_json, from_json
from testbed.live.waits import Diagnosis, Dump, diagnose
from tests.testbed.live.snapshots import connection, device, dump, lane

A, B, C = (device(address=f"10.0.0.{number}", under_way=()) for number in (1, 2, 3))


def at(host: str, place: DeviceSnapshot, *under_way: ConnectionSnapshot, **changes: Any) -> Dump:
    """A dump of this host with one device, whose connections are these."""
    lanes = changes.pop("lanes", ())
    return dump(host, replace(place, under_way=under_way, lanes=lanes), **changes)


def silent(number: int, peer: DeviceSnapshot = B) -> Any:
    """A lane with posted work of which nothing was acknowledged since second 10."""
    return lane(number, peer=peer.address, unfinished=2, outstanding_bytes=5000, waiting_since_s=10.0)


def only(diagnosis: Diagnosis) -> tuple[str, str, str]:
    """The kind of the only wait, and kind and sentence of the only cause."""
    (wait,) = diagnosis.waits
    (cause,) = diagnosis.causes
    return wait.cause, cause.kind, cause.sentence


def test_a_send_without_a_receive_is_the_fault_of_the_peers_application() -> None:
    found = diagnose([at("a", A, connection(B, sends=3, send_tag=7)), at("b", B, pid=77)])
    assert found.stuck
    assert found.waits[0].sentence == (
        "10.0.0.1 (process 42 on a) waits for 10.0.0.2 (process 77 on b), 100 s: 3 sends, the oldest with tag 7, found "
        "no receive: the peer has posted none."
    )
    assert only(found) == (
        "no-receive",
        "application",
        "10.0.0.2 (process 77 on b) waits for nobody, and 1 process waits for it: its application does not send or "
        "receive what they need; see where it is, for example by `py-spy dump --pid 77`",
    )


def test_a_receive_without_a_send_is_the_fault_of_the_peers_application() -> None:
    found = diagnose([at("a", A, connection(B, receives=1, receive_tag=9)), at("b", B, pid=77)])
    assert only(found)[:2] == ("no-send", "application")
    assert "1 receive, the oldest with tag 9" in found.waits[0].sentence


def test_a_peer_without_a_dump_is_unknown() -> None:
    kind, cause, sentence = only(diagnose([at("a", A, connection("10.0.0.9", sends=1))]))
    assert (kind, cause) == ("no-receive", "unknown")
    assert sentence == (
        "1 process waits for 10.0.0.9, of which there is no dump: run `paralet stat --json` on its host too"
    )


def test_a_peer_whose_address_another_device_has_is_gone() -> None:
    old = replace(B, guid="before")
    kind, cause, sentence = only(diagnose([at("a", A, connection(old, sends=1)), at("b", B)]))
    assert (kind, cause) == ("no-receive", "replaced")
    assert "is gone: 10.0.0.2 (process 42 on b) has its address" in sentence


def test_a_stopped_peer_is_named_whatever_is_under_way() -> None:
    for under_way in (
        connection(B, sends=1),
        connection(B, receives=1),
        connection(B, in_flight=1, posted=2),
        connection(B, state="connecting"),
    ):
        found = diagnose([at("a", A, under_way, lanes=(silent(0),)), at("b", B, pid=77, state="T")])
        assert found.causes[0].kind == "stopped"
        assert found.causes[0].waiting == 1
        assert "try `kill -CONT 77`" in found.causes[0].sentence


def test_waits_of_a_stopped_process_are_ignored() -> None:
    """Its snapshot is as old as the stop."""
    found = diagnose([at("a", A, connection(B, sends=1), state="T"), at("b", B, connection(A, receives=1))])
    assert [(wait.waiter[:8], cause.kind) for wait, cause in zip(found.waits, found.causes, strict=True)] == [
        ("10.0.0.2", "stopped")
    ]


def test_one_silent_lane_is_a_path_that_loses_packets() -> None:
    busy = lane(1, peer=B.address, unfinished=1, waiting_since_s=99.5)
    other = lane(2, peer=C.address, unfinished=1, waiting_since_s=99.5)
    sending = connection(B, in_flight=1, posted=2, unposted=4)
    for far in ((), (at("b", B),)):
        found = diagnose([at("a", A, sending, lanes=(silent(0), busy, other)), *far])
        kind, cause, sentence = only(found)
        assert (kind, cause) == ("lane-silent", "path")
        assert "2 flowlets on 1 lane (UDP source port 50000) got no acknowledgement" in found.waits[0].sentence
        assert "4 flowlets more wait because the lanes' windows are full" in found.waits[0].sentence
        assert sentence.startswith("the path of UDP source port 50000 from 10.0.0.1 (process 42 on a) to 10.0.0.2")
        assert sentence.endswith("loses packets: another lane to the peer goes on")


def test_all_lanes_silent_is_the_path_only_if_the_peer_is_known_to_live() -> None:
    lanes = (silent(0), silent(1))
    sending = connection(B, in_flight=1, posted=2)
    assert only(diagnose([at("a", A, sending, lanes=lanes), at("b", B)]))[:2] == ("peer-silent", "path")
    kind, cause, sentence = only(diagnose([at("a", A, sending, lanes=lanes)]))
    assert (kind, cause) == ("peer-silent", "silent")
    assert sentence.startswith("10.0.0.2 answers nothing on any lane")
    hears = replace(sending, heard_s=99.0)
    assert only(diagnose([at("a", A, hears, lanes=lanes)]))[:2] == ("lane-silent", "path")


def test_lanes_that_go_on_are_slow_and_not_stuck() -> None:
    busy = lane(0, peer=B.address, unfinished=1, waiting_since_s=99.5)
    found = diagnose([at("a", A, connection(B, in_flight=1, posted=1), lanes=(busy,))])
    assert not found.stuck
    assert (found.waits, found.moving) == ((), 1)


def test_a_device_may_hold_its_flowlets_back_itself() -> None:
    waiting = connection(B, in_flight=1, unposted=3)
    planned = replace(A, policy="controller")
    assert only(diagnose([at("a", planned, waiting), at("b", B)])) == (
        "held",
        "held",
        "10.0.0.1 (process 42 on a) waits for ports of the path service",
    )


def test_tags_that_do_not_agree_are_named_at_either_end() -> None:
    sender = at("a", A, connection(B, sends=1, send_tag=7, advertisements=1, advertised_tag=9))
    receiver = at("b", B, connection(A, receives=1, receive_tag=9))
    assert only(diagnose([sender]))[:2] == ("tags", "tags")
    both = diagnose([sender, receiver])
    (cause,) = both.causes
    assert (cause.kind, cause.waiting) == ("tags", 2)
    assert cause.sentence == (
        "10.0.0.1 (process 42 on a) sends tag 7 while 10.0.0.2 (process 42 on b) receives tag 9: tags must agree"
    )


def test_an_advertisement_that_was_lost_is_a_path_of_the_receiver() -> None:
    sender = at("a", A, connection(B, sends=1))
    receiver = at("b", B, connection(A, receives=1), lanes=(silent(3, A),))
    found = diagnose([sender, receiver])
    assert {wait.cause for wait in found.waits} == {"advertisement", "peer-silent"}
    assert {cause.kind for cause in found.causes} == {"path"}
    assert all("port 50003 from 10.0.0.2" in cause.sentence for cause in found.causes)
    early = diagnose([at("a", A, connection(B, sends=1, early=2))])
    assert only(early)[:2] == ("advertisement", "path")


def test_openings_and_ends_that_are_not_answered_are_waits() -> None:
    for state, kind in (("connecting", "connecting"), ("closing", "closing")):
        found = diagnose([at("a", A, connection(B, state=state)), at("b", B)])
        assert only(found)[:2] == (kind, "application")


def test_a_chain_over_three_hosts_ends_at_its_cause() -> None:
    """A waits for B, which waits for C, which waits for nobody (nccl#968: only one of them is the culprit)."""
    a = at("a", A, connection(B, sends=1))
    b = at("b", B, connection(C, receives=1, number=2))
    found = diagnose([a, b, at("c", C, pid=99)])
    assert len(found.waits) == 2
    (cause,) = found.causes
    assert (cause.kind, cause.waiting) == ("application", 2)
    assert cause.sentence.startswith("10.0.0.3 (process 99 on c) waits for nobody, and 2 processes wait for it")
    (unknown,) = diagnose([a, b]).causes
    assert (unknown.kind, unknown.waiting) == ("unknown", 2)
    (partly,) = diagnose([a]).causes
    assert "waits for 10.0.0.2, of which there is no dump" in partly.sentence


def test_a_chain_that_ends_at_a_lossy_path_has_no_other_cause() -> None:
    b = at("b", B, connection(C, in_flight=1, posted=1, number=2), lanes=(silent(0, C),))
    (cause,) = diagnose([at("a", A, connection(B, sends=1)), b, at("c", C)]).causes
    assert (cause.kind, cause.waiting) == ("path", 2)


def test_of_a_ring_in_which_one_rank_hangs_that_rank_is_the_cause() -> None:
    """The ranks of a ring all-reduce wait for their left neighbour; one posts nothing (nccl#1063: a GPU hangs)."""
    ranks = 30
    ring = [device(address=f"10.0.1.{rank + 1}") for rank in range(ranks)]
    dumps = []
    for rank, own in enumerate(ring):
        waits = [connection(ring[rank - 1], rank, receives=8)]
        if rank == 16:
            waits.append(connection(ring[17], 17, sends=1))
        dumps.append(at(f"host{rank}", own, *([] if rank == 17 else waits), pid=1000 + rank))
    (cause,) = diagnose(dumps).causes
    assert (cause.kind, cause.waiting) == ("application", ranks - 1)
    assert cause.sentence.startswith("10.0.1.18 (process 1017 on host17) waits for nobody")


def test_processes_that_wait_for_each_other_are_a_cycle() -> None:
    a = at("a", A, connection(B, receives=1, progressed_s=5.0))
    b = at("b", B, connection(A, receives=1))
    (cause,) = diagnose([a, b]).causes
    assert (cause.kind, cause.waiting) == ("cycle", 2)
    assert cause.sentence == (
        "2 processes wait for each other: 10.0.0.1 (process 42 on a), 10.0.0.2 (process 42 on b); 10.0.0.2 (process 42 "
        "on b) has waited longest"
    )
    (alone,) = diagnose([dump("a", replace(A, under_way=(connection(B, sends=1),)), B)]).causes
    assert (alone.kind, alone.sentence[:37]) == ("cycle", "10.0.0.1 (process 42 on a) waits for ")


def test_connections_of_one_process_and_peer_are_one_sentence() -> None:
    waits = [connection(B, number, sends=1, progressed_s=90.0 - number) for number in range(8)]
    (wait,) = diagnose([at("a", A, *waits), at("b", B)]).waits
    assert (wait.connections, wait.seconds) == (8, 17.0)
    assert "on 8 connections, 17 s:" in wait.sentence


def test_what_moved_lately_is_not_stuck() -> None:
    dump = at("a", A, connection(B, sends=1, progressed_s=97.0))
    assert diagnose([dump]) == Diagnosis((), (), 1, ())
    assert diagnose([dump], after_s=2.0).stuck


def test_ages_are_by_the_clock_of_each_host() -> None:
    late = at("a", A, connection(B, sends=1, progressed_s=1_000_000.0), clock_s=1_000_001.0)
    assert not diagnose([late, at("b", B)]).stuck


def test_of_two_dumps_of_a_host_the_later_counts() -> None:
    before, after = at("a", A, connection(B, sends=1)), at("a", A, clock_s=101.0)
    assert not diagnose([before, after]).stuck
    assert not diagnose([after, before]).stuck


def test_what_limits_the_diagnosis_is_said() -> None:
    assert diagnose([dump("a", A), dump("b", replace(B, under_way_omitted=3))]).notes == (
        "10.0.0.2 (process 42 on b) has 3 more connections under way, which have waited less",
    )


def test_dumps_are_read_as_they_were_written() -> None:
    made = dump("a", replace(A, under_way=(connection(B, sends=1),), lanes=(silent(0),)))
    text = as_json(Survey(made.processes, (), (), ()))
    read = from_json(text.encode(), "a.json")
    assert read.processes == made.processes
    assert read.clock_s > 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "truncated"),
        (b"{}", "missing required field `host`"),
        (b'{"host": "a", "clock_s": "now", "processes": []}', "Expected `float`, got `str`"),
        (b"\xff", "malformed"),
        (json.dumps({"time": "", "processes": []}).encode(), "missing required field `host`"),
    ],
)
def test_a_file_that_is_no_dump_is_one_sentence(text: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        from_json(text, "a.json")
    assert str(caught.value).startswith("a.json is not the output of `paralet stat --json`: ")
