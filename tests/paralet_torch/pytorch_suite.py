# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of a torch.distributed backend, as they ship in its wheel, with backend paralet or another.

usage: BACKEND=paralet python tests/paralet_torch/pytorch_suite.py [unittest options] [TestBackend.test_NAME ...]

Every test starts three ranks on loopback. `make test-torch` runs all of them. With BACKEND=gloo and OVER=paralet those
tests run over paralet that are limited to the name gloo.
"""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from datetime import timedelta
from typing import Any

BACKEND = os.environ.setdefault("BACKEND", "paralet")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("INIT_METHOD", "env://")
os.environ.setdefault("PARALET_ADDRESSES", "127.0.0.1")
if "TEMP_DIR" not in os.environ:
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="paralet-torch-")
    for folder in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(os.environ["TEMP_DIR"], folder))

import torch  # noqa: E402  # reads what is set above
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

import paralet_torch  # noqa: E402

# What the suite asks of a backend before it runs a test. Gloo has the same features.
for feature in ("ddp", "subgroup", "gpu", "cuda", "plugin"):
    DistTestCases.backend_feature[feature].add(paralet_torch.NAME)

import torch.testing._internal.distributed.distributed_test as suite  # noqa: E402

Base: Any = suite.TestDistBackend
Tests: Any = suite.DistributedTest._DistTestBase


class TestBackend(Base, Tests):
    """All tests of the suite."""

    def setUp(self) -> None:
        super().setUp()
        # Importing torch anew in every rank of every test would take most of the time.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def run_over(backend: str) -> None:
    """Let all groups that the tests make use `backend`, whatever the tests ask for."""
    make_default, make = dist.init_process_group, dist.new_group
    dist.init_process_group = lambda *words, **options: make_default(*words, **options | {"backend": backend})
    dist.new_group = lambda *words, **options: make(*words, **options | {"backend": backend})
    dist.monitored_barrier = monitored_barrier


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """That of the group: torch's own admits only Gloo."""
    if group != dist.GroupMember.NON_GROUP_MEMBER:
        limit = timedelta(seconds=timeout) if isinstance(timeout, float) else timeout
        (group or dist.group.WORLD).monitored_barrier(limit, wait_all_ranks)


if "OVER" in os.environ:
    run_over(os.environ["OVER"])

del Base, Tests

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
