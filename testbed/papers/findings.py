# SPDX-License-Identifier: Apache-2.0
"""What came of checking a paper: its claims, and drawings of the figures that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.papers.claim import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with the name of its file, without ending, and one sentence that says what to see."""

    name: str
    alt: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, slots=True)
class Findings:
    """Claims in the paper's order."""

    claims: Sequence[Claim]
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, what there is to say of it in general (Markdown), and the check, done anew at each call."""

    title: str
    text: str
    find: Callable[[bool], Findings]
    """The argument: whether a small part of it will do, for a look."""
