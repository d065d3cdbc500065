# SPDX-License-Identifier: Apache-2.0
"""Communication that computing hides."""

from dataclasses import replace

import pytest

from testbed.training.closed_form import estimate
from testbed.training.clusters import DGX_A100
from testbed.training.communication import hidden_s
from testbed.training.strategies import Strategy
from testbed.training.transformer import GPT_22B


@pytest.mark.parametrize("pipeline", [1, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_gpu_that_computes_in_no_time_hides_nothing(pipeline: int, sequence: bool) -> None:
    """So it shows all collectives of a tensor group, also those of the embedding and the output."""
    strategy = Strategy(tensor=8, pipeline=pipeline, microbatches=6, sequence=sequence)
    at_once = replace(DGX_A100, gpu=replace(DGX_A100.gpu, matrix_flops=1e30, memory_bps=1e30))
    shown, every = (estimate(GPT_22B, strategy, cluster).tensor_s for cluster in (DGX_A100, at_once))
    assert hidden_s(GPT_22B, strategy, at_once) == pytest.approx(0.0, abs=1e-9)
    assert hidden_s(GPT_22B, strategy, DGX_A100) == pytest.approx(every - shown)
    assert every > shown


@pytest.mark.parametrize("microbatches", [2, 16])
def test_transfers_that_fill_a_pipeline_hide_no_gradients(microbatches: int) -> None:
    strategy = Strategy(pipeline=8, data=2, microbatches=microbatches)
    shown = estimate(GPT_22B, strategy, DGX_A100).data_s
    every = estimate(GPT_22B, replace(strategy, overlap_gradients=False), DGX_A100).data_s
    assert hidden_s(GPT_22B, strategy, DGX_A100) == pytest.approx(every - shown)
    assert every > shown
