# SPDX-License-Identifier: Apache-2.0
"""A rank in the tests of backend paralet: runs the scenarios that its test names."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection

import torch.distributed as dist

import paralet_torch  # noqa: F401  # registers the backend
from tests.paralet_torch import scenarios


def main(
    rank: int, size: int, store: str, backend: str, variables: Mapping[str, str], test: Connection[object, object]
) -> None:
    """Answer each `[scenario, *arguments]` with ``result``, or ``error`` with a traceback, until there are no more."""
    os.environ.clear()
    os.environ.update(variables)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    while True:
        try:
            name, *arguments = test.recv()
        except EOFError:
            break
        try:
            test.send({"result": getattr(scenarios, name)(*arguments)})
        except Exception:
            test.send({"error": traceback.format_exc()})
    dist.destroy_process_group()
