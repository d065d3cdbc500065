# SPDX-License-Identifier: Apache-2.0
"""The page of published rates of training."""

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.training import published
from testbed.training.closed_form import estimate, memory_bytes
from testbed.training.clusters import DGX_A100
from testbed.training.published import SOURCES, Published
from testbed.training.transformer import LLAMA_3_405B

ROWS = [row for source in SOURCES for row in source.rows]


def test_the_page_is_what_its_command_prints() -> None:
    page = Path(__file__).parents[3] / "docs" / "notes" / "published-training.md"
    assert page.read_text(encoding="utf-8") == published.page()


def test_every_row_has_the_gpus_and_the_batch_of_its_source() -> None:
    assert [(row.strategy.gpus, row.strategy.batch) for row in ROWS] == [
        *((32, 512), (64, 512), (128, 512), (256, 1024), (512, 1536), (1024, 1792), (1536, 2304), (1920, 2160)),
        *((2520, 2520), (3072, 3072)),
        *(size for gpus, batch in ((8, 4), (64, 64), (280, 280), (512, 512)) for size in ((gpus, batch),) * 2),
        *((256, 768), (512, 768), (768, 768), (1024, 768)),
        *((3072, 6144), (6144, 6144), (8192, 6144), (12288, 6144)),
        *((8192, 2048), (16384, 2048), (16384, 128)),
    ]
    for row in ROWS:
        assert (row.chosen.gpus, row.chosen.batch) == (row.strategy.gpus, row.strategy.batch)


def test_what_a_source_leaves_out_is_what_is_fastest_and_fits() -> None:
    open_row = next(row for row in ROWS if len(row.sizes) > 1 and row.strategy.pipeline > 1)
    seen = set()
    for size in open_row.sizes:
        for chunks in range(1, open_row.model.layers + 1):
            batches = open_row.strategy.microbatches // size
            if open_row.strategy.microbatches % size or batches % open_row.strategy.pipeline:
                continue
            run = replace(open_row.strategy, microbatch=size, microbatches=batches, interleave=chunks)
            try:
                found = estimate(open_row.model, run, open_row.cluster)
            except ValueError:
                continue
            seen.add((size, chunks))
            assert found.memory_bytes > open_row.cluster.gpu.memory_bytes or found.iteration_s >= open_row.estimated_s
    assert (open_row.chosen.microbatch, open_row.chosen.interleave) in seen
    assert memory_bytes(open_row.model, open_row.chosen) <= open_row.cluster.gpu.memory_bytes


def test_measured_products_make_every_row_slower_by_at_most_their_rate() -> None:
    """86.9 and 80.3 % in place of 95 %: only products take longer, so that the best choice may change, but not gain."""
    for row in ROWS:
        other = published.with_best_products(row)
        share = 0.95 / other.cluster.gpu.matrix_efficiency
        assert round(100 * other.cluster.gpu.matrix_efficiency, 1) == (86.9 if row.cluster == DGX_A100 else 80.3)
        assert row.estimated_s < other.estimated_s < share * row.estimated_s


def test_a_row_that_fits_into_no_memory_is_refused() -> None:
    row = next(row for row in ROWS if row.model == LLAMA_3_405B and row.strategy.context == 1)
    stored = Published(row.model, replace(row.strategy, flash=False), row.cluster, row.seconds, tuned_chunks=True)
    with pytest.raises(ValueError, match=r"Llama 3 405B on 8192 GPUs does not fit into their memory"):
        _ = stored.chosen
