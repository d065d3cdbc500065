# SPDX-License-Identifier: Apache-2.0
"""What papers say beside what we get: one package per paper, each with a function that returns its claims."""

from collections.abc import Callable
from dataclasses import dataclass

from testbed.papers import rail_only
from testbed.papers.claim import Claim, Relation, Verdict


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper and its claims, which are computed anew at each call."""

    title: str
    claims: Callable[[], list[Claim]]


PAPERS = {
    "003": Paper("Rail-only: A Low-Cost High-Performance Network for Training LLMs (2307.12169v5)", rail_only.claims),
}
"""By the number that the documentation knows the paper by."""

__all__ = ["PAPERS", "Claim", "Paper", "Relation", "Verdict"]
