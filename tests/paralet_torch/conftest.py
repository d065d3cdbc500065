# SPDX-License-Identifier: Apache-2.0
"""Tests of backend paralet skip where torch is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.paralet_torch.world import HERE, Ranks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("torch") is None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason="torch is not installed: run 'make torch'"))


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Three ranks, which the tests of a module share."""
    with Ranks(3, tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks
