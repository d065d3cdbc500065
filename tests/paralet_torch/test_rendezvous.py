# SPDX-License-Identifier: Apache-2.0
"""The exchange of addresses through a store."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from tests.paralet_torch.world import environment


def test_values_of_an_earlier_attempt_are_not_taken() -> None:
    """The store of a restart still has everything that ranks, which are dead now, had agreed on."""
    import torch.distributed as dist  # only here: every worker of pytest imports this module

    from paralet_torch.rendezvous import exchange

    store = dist.HashStore()
    for attempt in ("first", "second", "third"):
        got: dict[int, list[str]] = {}

        def join(rank: int, attempt: str = attempt, got: dict[int, list[str]] = got) -> None:
            got[rank] = exchange(store, rank, 3, f"{attempt} {rank}", timedelta(seconds=120), lambda _: None)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [got[rank] for rank in range(3)] == [[f"{attempt} {rank}" for rank in range(3)]] * 3


def test_a_rank_that_does_not_come_is_named() -> None:
    import torch.distributed as dist

    from paralet_torch.rendezvous import exchange

    store = dist.HashStore()
    store.set("paralet/rank/1", json.dumps(["0", "an old value"]))
    with pytest.raises(dist.DistStoreError, match=r"rank 2 did not come within 0.1 s"):
        exchange(store, 0, 3, "value", timedelta(seconds=0.1), lambda _: None)


ADDRESSES = """
import sys
from datetime import timedelta
import torch.distributed as dist
from paralet_torch.rendezvous import check_addresses, exchange

rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
try:
    exchange(store, rank, 2, ["127.0.0.1", "10.0.0.2"][rank], timedelta(seconds=60), lambda v: check_addresses(rank, v))
except ValueError as error:
    print(error)
"""


def test_every_rank_is_told_that_addresses_do_not_fit() -> None:
    """Rank 0 has the store, and ends first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ADDRESSES, str(rank), str(port)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    addresses = ["127.0.0.1", "10.0.0.2"]
    for rank, process in enumerate(ranks):
        said, errors = process.communicate(timeout=120)
        assert said.startswith(
            f"rank {rank} uses the address {addresses[rank]} and rank {1 - rank} {addresses[1 - rank]}, which cannot "
            "reach each other: choose the network of all ranks with PARALET_IFNAME, or set MASTER_ADDR"
        ), errors


def test_the_host_of_the_store_is_that_of_the_ranks() -> None:
    import torch.distributed as dist

    from paralet_torch.devices import master_of

    store = dist.TCPStore("localhost", 0, 1, is_master=True, wait_for_workers=False)
    variables = {"MASTER_ADDR": "10.0.0.9"}
    assert master_of(dist.PrefixStore("a", dist.PrefixStore("b", store)), variables) == "localhost"
    assert master_of(dist.PrefixStore("a", dist.HashStore()), variables) == "10.0.0.9"
    assert master_of(dist.HashStore(), {}) is None
