# SPDX-License-Identifier: Apache-2.0
"""The conformance suite, which is built once for all modules."""

from __future__ import annotations

import pytest

from tests.nccl_net_plugin.conformance.suite import Suite, build


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return build(tmp_path_factory.mktemp("conformance"))
