# SPDX-License-Identifier: Apache-2.0
"""One number of a paper beside ours, and what to think of it."""

from dataclasses import dataclass
from typing import Literal

Relation = Literal["equals", "more than", "less than"]
Verdict = Literal["agrees", "close", "differs", "holds", "fails", "not printed"]

CLOSE = 0.05
"""Relative deviation up to which a number that does not agree to its last digit still counts as close."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`printed`: the paper's number, None where it has none or our text of it lost it; `decimals` of it are printed.

    `relation` says what the paper claims: that the value equals `printed`, or is more or less. `note` says what the
    number rests on, or why it may differ.
    """

    where: str
    what: str
    unit: str
    ours: float
    printed: float | None = None
    decimals: int = 0
    relation: Relation = "equals"
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours / the paper's."""
        return None if not self.printed else self.ours / self.printed

    @property
    def verdict(self) -> Verdict:
        """`agrees`: the same number, rounded or cut off to the digits printed. `close`: within 5 %."""
        if self.printed is None:
            return "not printed"
        if self.relation != "equals":
            holds = self.ours > self.printed if self.relation == "more than" else self.ours < self.printed
            return "holds" if holds else "fails"
        off = abs(self.ours - self.printed)
        if off < 10.0**-self.decimals and self._as_printed():
            return "agrees"
        return "close" if off <= CLOSE * abs(self.printed) else "differs"

    def _as_printed(self) -> bool:
        scale = 10.0**self.decimals
        wanted = round((self.printed or 0.0) * scale)
        # A hair more, so that 37.4999.. of binary fractions still rounds as the decimal would.
        return wanted in (int(self.ours * scale + 1e-9), int(self.ours * scale + 0.5 + 1e-9))

    def as_json(self) -> dict[str, float | str | None]:
        """All of it, for programs."""
        return {
            "where": self.where,
            "what": self.what,
            "unit": self.unit,
            "relation": self.relation,
            "printed": self.printed,
            "ours": self.ours,
            "ratio": self.ratio,
            "verdict": self.verdict,
            "note": self.note,
        }
