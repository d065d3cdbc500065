# SPDX-License-Identifier: Apache-2.0
"""The conformance suite, which is built once for all modules."""

from __future__ import annotations

import fcntl
import os

import pytest

from tests.nccl_net_plugin.conformance.suite import Suite, build


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """The workers of a run share it: the first builds it, and the others find nothing to build."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "conformance.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(folder / "conformance")
