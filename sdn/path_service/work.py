# SPDX-License-Identifier: Apache-2.0
"""Work in steps of a few milliseconds, so that hosts are answered between them. Pure."""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
Work: TypeAlias = Generator[None, None, Result]
"""Steps, each up to a `yield`, and a result. Events may come between two steps."""


def finished(work: Work[Result]) -> Result:
    """Does all steps at once."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: Result = ended.value
            return result
