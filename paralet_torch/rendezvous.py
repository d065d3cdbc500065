# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a new group exchange their addresses through its store.

A store may hold what an earlier attempt left: torchrun's agents can keep theirs over a restart. So every rank marks
its value with a new random number, rank 0 publishes a table of all values, and the table counts when every rank has
found its own value in it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from ipaddress import ip_address

import torch.distributed as dist

_PAUSE_S = 0.01


def check_addresses(rank: int, addresses: Sequence[str]) -> None:
    """Raises ValueError when another rank's address is none that this one's reaches."""
    own = ip_address(addresses[rank])
    for other, text in enumerate(addresses):
        address = ip_address(text)
        if address.is_loopback == own.is_loopback and address.version == own.version:
            continue
        raise ValueError(
            f"rank {rank} uses the address {own} and rank {other} {address}, which cannot reach each other: choose the "
            "network of all ranks with PARALET_IFNAME, or set MASTER_ADDR to an address that all hosts reach (Debian's "
            "/etc/hosts gives a host's own name the address 127.0.1.1)"
        )


def exchange(
    store: dist.Store, rank: int, size: int, value: str, timeout: timedelta, check: Callable[[list[str]], None]
) -> list[str]:
    """The values of all ranks, in their order, for which `check` raises nothing.

    Raises DistStoreError when not all come within `timeout`.
    """
    seen: list[str] = []
    try:
        values = _exchange(store, rank, size, value, timeout, seen)
    except RuntimeError:
        # Rank 0 may have ended, and the store with it, because `check` refused the values: say that, and not the end.
        if seen:
            check(seen)
        raise
    check(values)
    return values


def _exchange(store: dist.Store, rank: int, size: int, value: str, timeout: timedelta, seen: list[str]) -> list[str]:
    """`seen` gets the values of the last table that had this rank's."""
    keys = [f"paralet/rank/{other}" for other in range(size)]
    acknowledgements = [f"paralet/seen/{other}" for other in range(size)]
    own = [uuid.uuid4().hex, value]
    store.set(keys[rank], json.dumps(own))
    deadline = time.monotonic() + timeout.total_seconds()
    last = ""
    while time.monotonic() < deadline:
        if rank == 0 and store.check(keys):
            table = json.dumps([json.loads(store.get(key)) for key in keys])
            if table != last:
                store.set("paralet/table", table)
                last = table
        elif rank != 0 and store.check(["paralet/table"]):
            table = store.get("paralet/table").decode()
        else:
            time.sleep(_PAUSE_S)
            continue
        rows = json.loads(table)
        if len(rows) == size and rows[rank] == own:
            name = hashlib.sha256(table.encode()).hexdigest()
            seen[:] = [str(text) for _, text in rows]
            if rank != 0 and table != last:
                store.set(acknowledgements[rank], name)
                last = table
            if rank == 0 and _all_are(store, acknowledgements[1:], name):
                store.set("paralet/agreed", name)
            if _all_are(store, ["paralet/agreed"], name):
                return seen
        time.sleep(_PAUSE_S)
    missing = [other for other, key in enumerate(keys) if not store.check([key])]
    who = f"rank {', '.join(map(str, missing))} did not come" if missing else "not all ranks agreed on their addresses"
    raise dist.DistStoreError(f"{who} within {timeout.total_seconds():g} s")


def _all_are(store: dist.Store, keys: list[str], value: str) -> bool:
    return not keys or (bool(store.check(keys)) and all(store.get(key).decode() == value for key in keys))
