# SPDX-License-Identifier: Apache-2.0
"""A selection of PyTorch's own backend tests. `make test-torch` runs all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.paralet_torch.world import HERE, environment

SELECTION = [
    "test_all_gather_coalesced_simple",
    "test_all_reduce_group_sum",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split_group",
    "test_barrier_group",
    "test_broadcast_object_list",
    "test_DistributedDataParallelCPU",
    "test_gather_group",
    "test_irecv",
    "test_reduce_full_group_max",
    "test_scatter_group",
    "test_send_recv_any_source",
]


FOR_GLOO = [
    "test_all_reduce_coalesced_max",
    "test_all_reduce_coalesced_full_group_sum",
    "test_batch_isend_irecv_gloo_tags",
    "test_get_future",
    "test_grads_same_across_ranks_with_no_sync",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_scatter_object_list",
    "test_sparse_all_reduce_sum",
]
"""Tests that PyTorch limits to Gloo by its name."""


@pytest.mark.skipif(find_spec("expecttest") is None, reason="expecttest is not installed: run 'make torch'")
@pytest.mark.parametrize(
    ("names", "variables"),
    [(SELECTION, {"BACKEND": "paralet"}), (FOR_GLOO, {"BACKEND": "gloo", "OVER": "paralet"})],
    ids=["for all backends", "for Gloo"],
)
def test_selection_passes(names: list[str], variables: dict[str, str]) -> None:
    argv = [sys.executable, str(HERE / "pytorch_suite.py"), *(f"TestBackend.{name}" for name in names)]
    done = subprocess.run(argv, env=environment(**variables), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^Ran {len(names)} tests", done.stderr, re.MULTILINE), done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith("OK"), done.stderr
