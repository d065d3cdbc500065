# SPDX-License-Identifier: Apache-2.0
"""Which rank or path the operations of NCCL wait for."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict

import pytest

from hostlib.stats import SnapshotError
from testbed.live.nccl_operations import Operation, parse, sentences, states
from tests.testbed.live.nccl_ranks import hanging_ranks, operation, ranks, waiting


def snapshot(*operations: Operation) -> bytes:
    """What a process publishes."""
    body = json.dumps(
        {"generation": 1, "pid": 42, "operations": [asdict(operation) for operation in operations]}
    ).encode()
    return b"paralet-operations 1 %d %d\n" % (zlib.crc32(body), len(body)) + body


def test_a_snapshot_is_read_and_a_damaged_one_refused() -> None:
    good = snapshot(operation(1, waiting(0)))
    assert parse(good + b"left from a longer one") == (42, (operation(1, waiting(0)),))
    for bad, reason in (
        (b"", "no header"),
        (good.replace(b"operations 1", b"operations 2", 1), "version 2"),
        (good[:-1], "checksum"),
        (good.replace(b"AllReduce", b"AllGather"), "checksum"),
        (snapshot().replace(b'"pid"', b'"dip"'), "checksum"),
    ):
        with pytest.raises(SnapshotError, match=reason):
            parse(bad)


def test_a_snapshot_of_something_else_is_refused() -> None:
    body = b'{"pid": 1}'
    with pytest.raises(SnapshotError, match="invalid"):
        parse(b"paralet-operations 1 %d %d\n" % (zlib.crc32(body), len(body)) + body)


def test_the_rank_that_has_not_begun_is_named() -> None:
    (state,) = [state for state in states(hanging_ranks()) if state.running]
    assert state.title == "AllReduce 7 of training (4 ranks)"
    assert state.late == "3 ranks have waited 4.0 s for rank 2, which has not begun it"
    assert state.seen == 3
    assert state.sentence == (
        "AllReduce 7 of training (4 ranks): running 4.0 s, 3.0 MB sent; 3 ranks have waited 4.0 s for rank 2, which "
        "has not begun it; slowest lane 3 to 10.0.0.9, port 50003: 6.0 ms, mean 2.0 ms."
    )


@pytest.mark.parametrize(
    ("operations", "late"),
    [
        (
            [operation(0, waiting(1)), operation(1, waiting(2, "gpu"))],
            "2 ranks have waited 4.0 s for the GPU of rank 1",
        ),
        (
            [operation(0, waiting(1)), operation(1, waiting(0, "network", send=True))],
            "2 ranks have waited 4.0 s for the path from rank 1 to rank 0",
        ),
        ([operation(0, waiting(1))], "1 rank has waited 4.0 s for rank 1, which was not looked at"),
        ([operation(0, waiting(1)), operation(1)], "1 rank has waited 4.0 s for rank 1"),
        (
            [operation(0, waiting(1)), operation(1, waiting(0, "peer", send=True))],
            "2 ranks have waited 4.0 s for one another: rank 0, rank 1",
        ),
        ([operation(0, waiting(1, since_s=13.9)), operation(1, waiting(0, since_s=13.9))], ""),  # they move
        ([operation(0, waiting(1), ended_s=12.0)], ""),
    ],
)
def test_chains_of_waits_end_where_the_reason_is(operations: list[Operation], late: str) -> None:
    assert states(ranks(*operations))[0].late == late


def test_each_communicator_shows_what_is_under_way_or_its_latest() -> None:
    old = operation(0, sequence=6, began_s=1.0, ended_s=2.0, number=7)
    new = operation(0, sequence=7, began_s=11.0, ended_s=12.5)
    other = operation(1, communicator=0xCD, name="", began_s=13.5)
    found = states([*ranks(old, other), *ranks(new)])
    assert [(state.title, state.running, state.seconds) for state in found] == [
        ("AllReduce 7 of 0xcd (4 ranks)", True, 0.5),
        ("AllReduce 7 of training (4 ranks)", False, 1.5),
    ]
    assert sentences(found, 1)[1:] == ["and 1 more operations"]


def test_sends_and_receives_name_their_peer() -> None:
    (state,) = states(ranks(operation(0, waiting(3), function="Recv", peer=3)))
    assert state.title == "Recv of rank 0 and rank 3 of training (4 ranks)"
    assert state.late == "1 rank has waited 4.0 s for rank 3, which was not looked at"
