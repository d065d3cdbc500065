# SPDX-License-Identifier: Apache-2.0
"""Flows of HPCC's simulator: starts and sizes by hand, and the error of every kind of bad line."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.traces.hpcc import read_flows

FLOWS = "3\n2 1 3 100 2000 0.0\n3 1 3 100 3000 0.000005\n7 2 3 100 1000 2.000001000\n"


def written(folder: Path, text: str = FLOWS) -> Path:
    (folder / "flow.txt").write_text(text)
    return folder / "flow.txt"


def test_flows_start_at_their_times(tmp_path: Path) -> None:
    graph = read_flows(written(tmp_path))
    assert graph.devices == 4
    assert [(task.devices, task.bytes) for task in graph.tasks] == [((1, 0), 2000), ((2, 0), 3000), ((3, 1), 1000)]
    assert [task.delay_s for task in graph.tasks] == pytest.approx([0, 5e-6, 2.000001])
    assert not any(graph.after)


def test_devices_are_nodes_from_the_first_one_on(tmp_path: Path) -> None:
    graph = read_flows(written(tmp_path), first=1)
    assert graph.devices == 7
    assert [task.devices for task in graph.tasks] == [(1, 0), (2, 0), (6, 1)]
    with pytest.raises(ValueError, match=r"flow\.txt:2: nodes 2 and 1 must be 2 \(`first`\) to 2000001"):
        read_flows(written(tmp_path), first=2)


def test_no_more_is_read_than_the_number_of_flows(tmp_path: Path) -> None:
    """The released flow.txt has more flows than its first line says, and ends with sentences."""
    path = written(tmp_path, FLOWS.replace("3\n", "2\n", 1) + "\nFirst line: # of flows\nsrc0 dst0 3 dst_port0 size0\n")
    assert [task.bytes for task in read_flows(path).tasks] == [2000, 3000]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("3\n", "4\n", "1: must be the number of flows, which is 3 at most, not 4"),
        ("3\n", "x\n", "1: the number of flows must be a whole number, not 'x'"),
        (FLOWS, "", "1: must be the number of flows, which is 0 at most, not 0"),
        ("2 1 3 100 2000 0.0", "2 1 3 2000 0.0", "2: a flow has 6 numbers (src, dst, priority group, "),
        ("2 1 3", "1 1 3", "2: node 1 sends to itself"),
        ("2000 ", "-2000 ", "2: bytes must be 0 to 1000000000000000000, not -2000"),
        ("0.0\n", "-1\n", "2: start must be seconds, 0 to 1e+09, not '-1'"),
        ("0.0\n", "nan\n", "2: start must be seconds, 0 to 1e+09, not 'nan'"),
        ("0.0\n", "soon\n", "2: start must be seconds, 0 to 1e+09, not 'soon'"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in FLOWS
    path = written(tmp_path, FLOWS.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"flow\.txt:") as refusal:
        read_flows(path)
    assert str(refusal.value).startswith(f"{path}:{expected}")
    assert "\n" not in str(refusal.value)
