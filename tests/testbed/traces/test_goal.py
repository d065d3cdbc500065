# SPDX-License-Identifier: Apache-2.0
"""Schedules in GOAL: times by hand, what waits for what, and the error of every kind of bad line."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.traces.goal import read_goal
from testbed.training.ideal import run

RATE_BPS = 8e9
"""One byte takes a nanosecond."""
SCHEDULE = """num_ranks 2
// rank 0 computes, sends, and computes beside that
rank 0 {
l1: calc 100 cpu 0
l2: send 1000b to 1 tag 7 nic 0
l2 requires l1
/* as soon as
   the send has begun */
l3: calc 300
l3 irequires l2
}

rank 1 {
l1: recv 1000b from 0 tag 7 cpu 0
l2: calc 50
l2 requires l1
calc 40 cpu 1
}
"""


def written(folder: Path, text: str = SCHEDULE) -> Path:
    (folder / "s.goal").write_text(text)
    return folder / "s.goal"


def test_a_schedule_takes_as_long_as_by_hand(tmp_path: Path) -> None:
    graph = read_goal(written(tmp_path))
    assert graph.devices == 2
    assert list(graph.sent_bytes()) == [1000, 0]
    # 100 of computing, 1000 of sending, 50 of computing; 300 beside the sending.
    assert run(graph, RATE_BPS).seconds == pytest.approx(1150e-9)
    assert list(graph.computed_s()) == pytest.approx([400e-9, 50e-9])


def test_irequires_waits_for_the_begin_only(tmp_path: Path) -> None:
    later = SCHEDULE.replace("irequires", "requires")
    assert run(read_goal(written(tmp_path, later)), RATE_BPS).seconds == pytest.approx(1400e-9)


def test_equal_tags_are_matched_in_order(tmp_path: Path) -> None:
    text = (
        "num_ranks 2\nrank 1 {\na: recv 10b from 0\nb: recv 20b from 0\n}\nrank 0 {\nsend 10b to 1\nsend 20b to 1\n}\n"
    )
    assert [task.bytes for task in read_goal(written(tmp_path, text)).tasks if task.kind == "send"] == [10, 20]
    with pytest.raises(ValueError, match=r"s\.goal:3: receives another size than is sent, which is 20"):
        read_goal(written(tmp_path, text.replace("send 10b", "send 20b")))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_ranks 2\n", "", "2: rank 0 has a block already, or num_ranks does not come before it"),
        ("num_ranks 2", "num_ranks 0", "1: num_ranks must be 1 to"),
        ("rank 1 {", "rank 0 {", "13: rank 0 has a block already"),
        ("rank 1 {", "rank 2 {", "13: a rank must be 0 to 1, not 2"),
        ("calc 50", "calc fast", "15: 'l2: calc fast' is no line of a schedule in GOAL here"),
        ("calc 50", "calc 9999999999999999999", "15: the time of calc must be 0 to"),
        ("to 1 tag 7", "from 1 tag 7", "5: send needs to, not from"),
        ("to 1 tag 7", "to 0 tag 7", "5: rank 0 sends to itself"),
        ("to 1 tag 7", "to 2 tag 7", "5: a rank must be 0 to 1, not 2"),
        ("to 1 tag 7", "to 1 tag 8", "14: rank 0 has no send for this receive with tag 7"),
        ("l1: recv 1000b from 0 tag 7 cpu 0", "l1: calc 5", "5: rank 1 has no receive for this send with tag 7"),
        ("from 0 tag 7", "from -1 tag 7", "14: receives from any rank or with any tag (-1) are not read"),
        ("from 0 tag 7", "from 0 tag -1", "14: receives from any rank or with any tag (-1) are not read"),
        ("l2 requires l1", "l2 requires l9", "6: l9 is no label of a line before this one in rank 0"),
        ("l3: calc", "l1: calc", "9: l1 is the label of another line of rank 0 too"),
        ("calc 40 cpu 1\n}\n", "calc 40 cpu 1\n", "18: the schedule ends within a rank"),
        ("has begun */", "has begun", "7: this comment has no end"),
        ("rank 0 {\n", "", "3: 'l1: calc 100 cpu 0' is no line"),
        ("}\n\nrank 1", "\n\nrank 1", "13: 'rank 1 {' is no line of a schedule in GOAL here"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in SCHEDULE
    path = written(tmp_path, SCHEDULE.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"s\.goal:") as refusal:
        read_goal(path)
    assert str(refusal.value).startswith(f"{path}:{expected}")
    assert "\n" not in str(refusal.value)
