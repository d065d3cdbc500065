# SPDX-License-Identifier: Apache-2.0
"""Ranks that die or stop: every other rank gets an error, and none waits for ever."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.paralet_torch.world import Ranks


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("scenario", ["reduce_until_it_fails", "futures_until_they_fail", "train_until_it_fails"])
def test_a_lost_rank_is_an_error_on_the_others(tmp_path: Path, sign: signal.Signals, scenario: str) -> None:
    with Ranks(3, tmp_path, {"PARALET_RETRY_TIME": "2s"}) as ranks:
        ranks.run("train_once")  # everybody is connected
        for rank in range(3):
            ranks.tell(rank, scenario)
        ranks.send_signal(2, sign)
        for rank in (0, 1):
            said = ranks.answer(rank)
            assert "error" not in said, said
            first = said["result"][0] if isinstance(said["result"], list) else said["result"]
            assert "allreduce" in first
            assert "failed" in first
            if isinstance(said["result"], list):
                assert "failed" in said["result"][1]  # a group that has failed stays failed
