# SPDX-License-Identifier: Apache-2.0
"""Attacks that take too long for every change. `make attack` runs them in network and process namespaces of their own.

Each checks what docs/security.md or docs/path-service.md promises, and prints its figures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from emul import sandbox


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale", type=float, default=1.0, metavar="PART", help="size of every attack, as a part of the full one"
    )


@pytest.fixture(autouse=True)
def _in_a_sandbox() -> None:
    if not sandbox.inside():
        pytest.skip("attacks run in namespaces of their own: sudo make attack")


@pytest.fixture
def sized(pytestconfig: pytest.Config) -> Callable[[int], int]:
    """The size of an attack whose full size is given."""
    scale: float = pytestconfig.getoption("scale")
    return lambda full: max(1, round(scale * full))
