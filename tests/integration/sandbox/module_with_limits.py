# SPDX-License-Identifier: Apache-2.0
"""A sandboxed module whose tests have time limits."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sandboxed


@pytest.mark.timeout(7)
def test_with_a_limit_of_its_own() -> None:
    pass


def test_with_the_usual_limit() -> None:
    pass
