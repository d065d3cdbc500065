# SPDX-License-Identifier: Apache-2.0
"""A claim: one number of a paper, our number, and a verdict."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Literal

Relation = Literal["equals", "more than", "less than", "at least", "at most"]
Verdict = Literal["agrees", "close", "differs", "holds", "fails", "input", "not printed", "not computed"]

CLOSE = 0.05
"""Largest relative deviation from the paper's number with verdict `agrees` or `close`."""


_BOUNDS: Mapping[Relation, tuple[Callable[[float, float], bool], str]] = {
    "more than": (operator.gt, "<="),
    "less than": (operator.lt, ">="),
    "at least": (operator.ge, "<"),
    "at most": (operator.le, ">"),
}
"""By relation: whether our number and the paper's have it, and the relation that they have otherwise."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A number that a paper states or implies.

    `printed` is the paper's number, with `decimals` digits after the point; None where the paper prints none or our
    copy of it lacks the number. `relation` says whether the paper claims equality or a bound. `note` says how our
    number was obtained, or why it differs. `ours` is None where the paper does not print what it would follow from.
    Claims of one place that have the same `series` and unit share a row of the page, as ranges. With `given`, the
    number is an input of ours and proves nothing. `recorded` is the verdict that a file has for this claim: it holds,
    because the file has fewer digits of our number.
    """

    where: str
    what: str
    unit: str
    ours: float | None
    printed: float | None = None
    decimals: int = 0
    relation: Relation = "equals"
    note: str = ""
    series: str = ""
    given: bool = False
    recorded: Verdict | None = None

    @property
    def ratio(self) -> float | None:
        """Our number divided by the paper's; None where one of them is missing."""
        return None if not self.printed or self.ours is None else self.ours / self.printed

    @property
    def verdict(self) -> Verdict:
        """`agrees`: within 5 %, and equal when rounded or truncated to the printed digits. `close`: within 5 %.

        The printed digits alone would let 3 agree with 2.6. `input`: the number is `given`.
        """
        if self.recorded is not None:
            return self.recorded
        if self.printed is None:
            return "not printed"
        if self.ours is None:
            return "not computed"
        if self.given:
            return "input"
        if self.relation != "equals":
            holds, _ = _BOUNDS[self.relation]
            return "holds" if holds(self.ours, self.printed) else "fails"
        if abs(self.ours - self.printed) > CLOSE * abs(self.printed):
            return "differs"
        return "agrees" if self._digits(0.5) or self._digits(0.0) else "close"

    @property
    def deviates_if(self) -> str:
        """What our number would have to be for the claim to differ or fail; empty where nothing is compared."""
        if self.verdict in ("input", "not printed", "not computed"):
            return ""
        if self.relation != "equals":
            return f"ours {_BOUNDS[self.relation][1]} {self.printed:.{self.decimals}f}"
        return f"|ours / paper - 1| > {CLOSE}" if self.printed else "ours != 0"

    def _digits(self, up: float) -> bool:
        """Whether our number has the printed digits: rounded if `up` is 0.5, truncated if it is 0."""
        assert self.ours is not None
        assert self.printed is not None
        scale = -(10.0**self.decimals) if self.printed < 0 else 10.0**self.decimals
        # The tolerance rounds binary fractions such as 37.4999.. like the decimal number.
        return round(self.printed * scale) == floor(self.ours * scale + up + 1e-9)

    def as_json(self) -> dict[str, float | str | None]:
        """All fields, with ratio and verdict."""
        return {
            "where": self.where,
            "what": self.what,
            "unit": self.unit,
            "relation": self.relation,
            "printed": self.printed,
            "ours": self.ours,
            "ratio": self.ratio,
            "verdict": self.verdict,
            "deviates_if": self.deviates_if,
            "note": self.note,
        }
