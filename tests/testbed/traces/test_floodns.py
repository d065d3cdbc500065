# SPDX-License-Identifier: Apache-2.0
"""Jobs of the simulator released with "Routing for Large ML Models": times by hand, and errors with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.traces import floodns
from testbed.traces.floodns import graph_of, read_jobs
from testbed.training.ideal import run

FOLDER = Path(__file__).parent / "data" / "floodns"
RATE_BPS = 8e9
"""One byte takes a nanosecond."""


def test_jobs_have_their_rings_and_times() -> None:
    first, second = read_jobs(FOLDER)
    assert (first.name, first.rings, first.hop_bytes) == ("job_0-A", ((96, 128), (97, 129)), 100)
    assert (first.start_s, first.compute_s) == pytest.approx((1e-6, 500e-9))
    assert (second.rings, second.start_s) == (((98, 130, 131),), 0.0)


@pytest.mark.parametrize(("iterations", "nanoseconds"), [(1, 1200), (2, 1900)])
def test_a_job_starts_with_an_allreduce_and_computes_between_iterations(iterations: int, nanoseconds: int) -> None:
    # Job 0: from 1000 on two steps of 100; then 500 of computing and two steps again. Job 1 ends before.
    assert run(graph_of(read_jobs(FOLDER), iterations), RATE_BPS).seconds == pytest.approx(nanoseconds * 1e-9)
    only = read_jobs(FOLDER / "job_1-B.txt")
    assert run(graph_of(only, iterations), RATE_BPS).seconds == pytest.approx((200, 1100)[iterations - 1] * 1e-9)


def test_nodes_are_numbered_in_order_or_from_the_first_server() -> None:
    jobs = read_jobs(FOLDER)
    assert graph_of(jobs, 1).devices == 7
    graph = graph_of(jobs, 1, first=96)
    assert graph.devices == 131 - 96 + 1
    assert graph.sent_bytes()[[0, 2, 34]].tolist() == [200, 200, 200]
    with pytest.raises(ValueError, match=r"job_0-A\.txt:2: node 96 is before `first`, which is 97"):
        graph_of(jobs, 1, first=97)
    with pytest.raises(ValueError, match=r"job_1-B\.txt:2: node 98 is before `first`, which is 99"):
        graph_of(jobs[1:], 1, first=99)


def test_a_graph_that_is_too_large_names_the_job_that_makes_it_so(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = read_jobs(FOLDER)
    with pytest.raises(ValueError, match=r"job_0-A\.txt:2: 2000000 iterations of the jobs up to this one are more"):
        graph_of(jobs, 2_000_000)
    monkeypatch.setattr(floodns, "MOST_TASKS", 20)
    with pytest.raises(ValueError, match=r"job_1-B\.txt:2: 1 iterations of the jobs up to this one are more than 20"):
        graph_of(jobs, 1)
    with pytest.raises(ValueError, match=r"job_1-B\.txt:2: node 131 is device 41, and at most 20 are read"):
        graph_of(jobs[1:], 1, first=90)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("128 96 1 0 1000", "128 96 1 0 1001", "3: start_time, flow_size and compute_time differ"),
        ("128 96", "128 128", "3: node 128 sends to itself, or twice in stage 0"),
        ("128 96", "96 128", "3: node 96 sends to itself, or twice in stage 0"),
        ("128 96", "128 99", "3: the hops of stage 0 are not a ring of all its 2 nodes"),
        ("1000 100 500 1", "1000 100 500 0", "3: the hops of stage 0 are not a ring of all its 3 nodes"),
        ("500 0", "500", "2: needs 8 numbers (src dst src_tor"),
        ("96 128", "x 128", "2: src must be a whole number, not 'x'"),
        (" 500 0", " -500 0", "2: compute_time must be 0 to"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = (FOLDER / "job_0-A.txt").read_text()
    assert old in text
    path = tmp_path / "job_0-A.txt"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"job_0-A\.txt:") as refusal:
        read_jobs(tmp_path)
    assert str(refusal.value).startswith(f"{path}:{expected}")


def test_folders_without_jobs_and_empty_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no files job_\*\.txt"):
        read_jobs(tmp_path)
    (tmp_path / "job_0.txt").write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"job_0\.txt:1: has no hop of a ring"):
        read_jobs(tmp_path)
