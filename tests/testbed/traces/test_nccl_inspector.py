# SPDX-License-Identifier: Apache-2.0
"""NCCL Inspector's files: times by hand, ranks, and errors with their lines."""

from __future__ import annotations

import shutil
from pathlib import Path

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
        ('"coll_perf"', '"perf"', ": coll_perf.coll must be a text"),
        ('"AllReduce"', '"SendRecv"', ": 'SendRecv' is not read, as its peer is not recorded"),
        ("4000", "-1", ": coll_perf.coll_msg_size_bytes must be a whole number"),
        ("4000", "4008", ": collective 1 of communicator 0xa1 differs from what another rank recorded"),
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
