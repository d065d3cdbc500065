# SPDX-License-Identifier: Apache-2.0
"""`paralet bench torch` on a small scale. What it measures is not asserted: it depends on the machine."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from testbed.bench import torch as bench
from testbed.errors import InputError, TestbedError


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: run 'make torch'")
def test_all_reduces_of_both_backends_are_measured() -> None:
    rows = list(bench.all_reduces(2, sizes=(1 << 10, 64 << 10), repetitions=2))
    assert [(row.metric, row.case, row.unit) for row in rows] == [
        ("all-reduce latency", "2 ranks, 1 KiB", "us"),
        ("all-reduce bus bandwidth", "2 ranks, 64 KiB", "Gbit/s"),
    ] * 2
    assert all(row.ours > 0 and row.peer > 0 and row.peer_name == "gloo" for row in rows)


def test_a_rank_that_fails_is_named_with_its_last_words() -> None:
    commands = [([sys.executable, "-c", f"exit({end!r})"], dict[str, str]()) for end in (0, "no memory left")]
    with pytest.raises(TestbedError, match="rank 1 failed: no memory left"):
        bench._rank_0(commands)


def test_without_torch_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="make torch"):
        bench.measure()
