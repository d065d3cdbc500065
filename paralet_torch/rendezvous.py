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
from datetime import timedelta

import torch.distributed as dist

_PAUSE_S = 0.01


def exchange(store: dist.Store, rank: int, size: int, value: str, timeout: timedelta) -> list[str]:
    """The values of all ranks, in their order. Raises DistStoreError when not all come within `timeout`."""
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
            if rank != 0 and table != last:
                store.set(acknowledgements[rank], name)
                last = table
            if rank == 0 and _all_are(store, acknowledgements[1:], name):
                store.set("paralet/agreed", name)
            if _all_are(store, ["paralet/agreed"], name):
                return [str(text) for _, text in rows]
        time.sleep(_PAUSE_S)
    missing = [other for other, key in enumerate(keys) if not store.check([key])]
    who = f"rank {', '.join(map(str, missing))} did not come" if missing else "not all ranks agreed on their addresses"
    raise dist.DistStoreError(f"{who} within {timeout.total_seconds():g} s")


def _all_are(store: dist.Store, keys: list[str], value: str) -> bool:
    return not keys or (bool(store.check(keys)) and all(store.get(key).decode() == value for key in keys))
