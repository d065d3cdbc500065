# SPDX-License-Identifier: Apache-2.0
"""The result of checking a paper: its claims, and figures like those of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from testbed.research.papers.claim import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with its file name (no suffix) and alternative text."""

    name: str
    alt: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, slots=True)
class Findings:
    """Claims in the order of the paper."""

    claims: Sequence[Claim]
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper and its check."""

    title: str
    introduction: Traversable
    """A Markdown file, the page's introduction: what was checked and how. Its links start at docs/papers/."""
    find: Callable[[bool], Findings]
    """Runs the check. With True, only a small and quick part of it."""
