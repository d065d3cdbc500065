# SPDX-License-Identifier: Apache-2.0
"""The exchange of addresses through a store."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest

dist = pytest.importorskip("torch.distributed", reason="torch is not installed: run 'make torch'")


def test_values_of_an_earlier_attempt_are_not_taken() -> None:
    """The store of a restart still has everything that ranks, which are dead now, had agreed on."""
    from paralet_torch.rendezvous import exchange

    store = dist.HashStore()
    for attempt in ("first", "second", "third"):
        got: dict[int, list[str]] = {}

        def join(rank: int, attempt: str = attempt, got: dict[int, list[str]] = got) -> None:
            got[rank] = exchange(store, rank, 3, f"{attempt} {rank}", timedelta(seconds=120))

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [got[rank] for rank in range(3)] == [[f"{attempt} {rank}" for rank in range(3)]] * 3


def test_a_rank_that_does_not_come_is_named() -> None:
    from paralet_torch.rendezvous import exchange

    store = dist.HashStore()
    store.set("paralet/rank/1", json.dumps(["0", "an old value"]))
    with pytest.raises(dist.DistStoreError, match=r"rank 2 did not come within 0.1 s"):
        exchange(store, 0, 3, "value", timedelta(seconds=0.1))
