# SPDX-License-Identifier: Apache-2.0
"""NCCL Inspector's files: times by hand, ranks, and errors with their lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from testbed.traces.nccl_inspector import read_inspector
from testbed.training.ideal import run

FOLDER = Path(__file__).parent / "data" / "inspector"
RATE_BPS = 8e9
"""One byte takes a nanosecond."""


def test_a_jobs_collectives_take_as_long_as_by_hand() -> None:
    graph = read_inspector(FOLDER)
    # All four reduce 4000 bytes (6000 sent), ranks 2 and 3 scatter 1000 (500 sent), all gather 4000 (3000 sent). Rank 1
    # has not recorded the all-gather.
    assert graph.devices == 4
    assert list(graph.sent_bytes()) == [9000, 9000, 9500, 9500]
    assert run(graph, RATE_BPS).seconds == pytest.approx(9.5e-6)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"rank": 0', '"rank": 4', ": header.rank must be a whole number of 0 to 3"),
        ('"rank": 0', '"rank": true', ": header.rank must be a whole number"),
        ('"rank": 0', '"rank": 1', ": rank 1 of communicator 0xa1 is in another process too"),
        ('"n_ranks": 4', '"n_ranks": 5', ": communicator 0xa1 has 4 ranks here and 5 in"),
        ('"hostname": "a"', '"hostname": 7', ": metadata.hostname must be a text"),
        ('"coll_perf"', '"perf"', ": has none of dump_stats, coll_perf, p2p_perf, proxy_trace"),
        ('"coll":', '"what":', ": coll_perf.coll must be a text"),
        ('"AllReduce"', '"SendRecv"', ": 'SendRecv' is not read, as its peer is not recorded"),
        ("4000", "-1", ": coll_perf.coll_msg_size_bytes must be a whole number"),
        ("4000", "4008", ": AllReduce 1 of communicator 0xa1 differs from what another rank recorded"),
        ('{"header"', '"header"', ": is not a JSON object"),
        ('{"header"', "[" * 100_000, ": is not a JSON object"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(tmp_path: Path, old: str, new: str, expected: str) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "logs")
    changed = folder / "a-pid11.log"
    text = changed.read_text()
    assert old in text
    changed.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"\.log:\d: ") as refusal:
        read_inspector(folder)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_rank_of_a_communicator_must_be_there(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "logs")
    (folder / "b-pid22.log").unlink()
    with pytest.raises(ValueError, match=r"log:1: 1 of 4 ranks of communicator 0xa1 are in no file"):
        read_inspector(folder)


def test_a_process_has_one_gpu(tmp_path: Path) -> None:
    lines = [
        (FOLDER / f"a-pid{pid}.log").read_text().splitlines()[0].replace('"n_ranks": 4', '"n_ranks": 2')
        for pid in (11, 12)
    ]
    (tmp_path / "a.log").write_text("\n".join(lines).replace('"pid": 12', '"pid": 11'))
    with pytest.raises(ValueError, match="process 11 on a has several ranks of communicator 0xa1"):
        read_inspector(tmp_path / "a.log")


def head(rank: int, version: str, ranks: int = 2) -> dict[str, Any]:
    return {
        "header": {"id": "0xc3", "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {"inspector_output_format_version": version, "hostname": "a", "pid": 11 + rank},
    }


def collective(what: str, number: int, size: int) -> dict[str, Any]:
    return {"coll_perf": {"coll": what, "coll_sn": number, "coll_msg_size_bytes": size, "coll_algo": "RING"}}


def transfer(what: str, number: int, peer: int, size: int) -> dict[str, Any]:
    return {"p2p_perf": {"p2p": what, "p2p_sn": number, "p2p_peer": peer, "p2p_msg_size_bytes": size}}


def marker(rank: int, version: str, *, collectives: int = 0, transfers: int = 0, **more: int) -> dict[str, Any]:
    return head(rank, version) | {
        "dump_stats": {"coll_records": collectives, "coll_dropped_total": 0, "p2p_records": transfers, **more}
    }


def recorded(folder: Path, *ranks: list[dict[str, Any]]) -> Path:
    for rank, entries in enumerate(ranks):
        (folder / f"a-pid{11 + rank}.log").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def test_each_kind_of_collective_has_numbers_of_its_own_and_the_order_of_the_file(tmp_path: Path) -> None:
    """NCCL counts per kind: an all-reduce and an all-gather of a communicator are both its first."""
    ranks = [
        [
            head(rank, "v4.0") | collective("AllGather", 1, 1000),
            head(rank, "v4.0") | collective("AllReduce", 1, 4000),
            head(rank, "v4.0") | collective("AllGather", 2, 3000),
        ]
        for rank in range(2)
    ]
    graph = read_inspector(recorded(tmp_path, *ranks))
    assert [(task.kind, task.bytes) for task in graph.tasks] == [
        ("all_gather", 1000),
        ("all_reduce", 4000),
        ("all_gather", 3000),
    ]
    assert graph.after == [[], [0], [1]]


@pytest.mark.parametrize("version", ["v4.1", "v4.2"])
def test_a_marker_before_records_with_headers_is_passed_over(tmp_path: Path, version: str) -> None:
    ranks = [
        [
            marker(rank, version, collectives=1, transfers=1),
            head(rank, version) | collective("AllReduce", 7, 4000),
            head(rank, version) | transfer("Send" if rank == 0 else "Recv", 1, 1 - rank, 500),
        ]
        for rank in range(2)
    ]
    graph = read_inspector(recorded(tmp_path, *ranks))
    assert list(graph.sent_bytes()) == [4500, 4000]


def test_records_after_a_marker_have_its_header(tmp_path: Path) -> None:
    ranks = [
        [
            marker(rank, "v4.3", collectives=1, transfers=2, proxy_records=1),
            collective("AllReduce", 7, 4000),
            transfer("Send" if rank == 0 else "Recv", 1, 1 - rank, 500),
            transfer("Send" if rank == 0 else "Recv", 2, 1 - rank, 300),
            {"proxy_trace": {"record_type": "proxy_op", "peer": 1}},
            marker(rank, "v4.4"),
        ]
        for rank in range(2)
    ]
    graph = read_inspector(recorded(tmp_path, *ranks))
    assert [(task.devices, task.bytes) for task in graph.tasks] == [((0, 1), 4000), ((0, 1), 500), ((0, 1), 300)]
    assert graph.after == [[], [], [1]]  # the second transfer waits for the first


def test_transfers_both_ways_do_not_wait_for_each_other_and_copies_are_left_out(tmp_path: Path) -> None:
    ranks = [
        [
            head(rank, "v4.1") | transfer("Recv", 1, 1 - rank, 500),
            head(rank, "v4.1") | transfer("Send", 2, 1 - rank, 500),
            head(rank, "v4.1") | transfer("Send", 3, rank, 500),
        ]
        for rank in range(2)
    ]
    graph = read_inspector(recorded(tmp_path, *ranks))
    assert sorted(task.devices for task in graph.tasks) == [(0, 1), (1, 0)]
    assert run(graph, RATE_BPS).seconds == pytest.approx(0.5e-6)


def test_a_transfer_that_one_end_has_dropped_is_read_from_the_other(tmp_path: Path) -> None:
    sender = [head(0, "v4.1") | transfer("Send", number, 1, 100 * number) for number in (1, 3)]
    graph = read_inspector(recorded(tmp_path, sender, [head(1, "v4.1") | transfer("Recv", 1, 0, 300)]))
    assert [task.bytes for task in graph.tasks] == [100, 300]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([collective("AllReduce", 1, 8)], ":1: has no header, and no dump_stats before it counts this coll_perf"),
        (
            [marker(0, "v4.3", collectives=1), collective("AllReduce", 1, 8), collective("AllReduce", 2, 8)],
            ":3: has no header, and no dump_stats before it counts this coll_perf",
        ),
        (
            [marker(0, "v4.3", collectives=2), collective("AllReduce", 1, 8)],
            ":1: 1 of the coll_perf that this dump_stats counts are not in the file",
        ),
        (
            [marker(0, "v4.3", transfers=1), marker(0, "v4.3")],
            ":1: 1 of the p2p_perf that this dump_stats counts are not in the file",
        ),
        ([marker(0, "v4.3", collectives=-1)], ":1: dump_stats.coll_records must be a whole number of 0 to"),
        ([marker(0, "v4.3", proxy_records=-1)], ":1: dump_stats.proxy_records must be a whole number of 0 to"),
        ([head(0, "v4.1") | transfer("Send", 1, 2, 8)], ":1: p2p_perf.p2p_peer must be a whole number of 0 to 1"),
        ([head(0, "v4.1") | transfer("Put", 1, 1, 8)], ":1: p2p_perf.p2p must be Send or Recv, not 'Put'"),
        (
            [head(0, "v4.1") | transfer("Send", 1, 1, 8), head(0, "v4.1") | transfer("Send", 1, 1, 8)],
            ":2: p2p_sn 1 of rank 0 is that of another line too",
        ),
        (
            [head(0, "v4.1") | transfer("Send", 1, 1, 8)],
            ":1: ranks 0 and 1 of communicator 0xc3: transfer 1 has 8 bytes at the sender, 9 at the receiver",
        ),
        ([{"coll_perf": 1}], ":1: has no header"),
    ],
)
def test_a_bad_record_of_later_versions_is_one_sentence_with_its_line(
    tmp_path: Path, entries: list[dict[str, Any]], expected: str
) -> None:
    other = [head(1, "v4.1") | transfer("Recv", 1, 0, 9)]
    with pytest.raises(ValueError, match=r"\.log:\d: ") as refusal:
        read_inspector(recorded(tmp_path, entries, other))
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)
