# SPDX-License-Identifier: Apache-2.0
"""Answers made before they are asked for, a slice at a time, by whoever has time to spare."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Case = TypeVar("Case", bound=Hashable)
Answer = TypeVar("Answer")


class Precomputed(Generic[Case, Answer]):
    """What to do in each of several cases.

    `cases` lists them, the most pressing first; `make` makes the answer to one, in the time that its caller can stand
    to be held up. Both are called by `step` alone, so that the others, called at every change, cost next to nothing.
    An answer rests on all that `make` looks at. When some of that has changed, say what has become of the answers:
    `restart` when all are wrong, `discard` for those that are, set `aged` when they are right but no longer the best.
    """

    def __init__(self, cases: Callable[[], Iterable[Case]], make: Callable[[Case], Answer]) -> None:
        self._cases = cases
        self._make = make
        self._answers: dict[Case, Answer] = {}
        self._left: list[Case] | None = None  # the most pressing last; None: not listed since the last restart
        self.aged = False
        """Every answer is to be made anew in time; until then the old one stays."""

    def restart(self) -> None:
        """Forgets every answer."""
        self._answers.clear()
        self._left = None
        self.aged = False

    def discard(self, case: Case) -> None:
        """Forgets the answer to one case, and makes it anew next."""
        if self._answers.pop(case, None) is not None and self._left is not None:
            self._left.append(case)

    def step(self) -> bool:
        """Makes the answer to one more case. False, and nothing done, when there are all."""
        if self._left is None or (not self._left and self.aged):
            self._left = list(self._cases())[::-1]
            self.aged = False
        if not self._left:
            return False
        case = self._left.pop()
        self._answers[case] = self._make(case)
        return True

    @property
    def done(self) -> bool:
        """Whether there is an answer to every case, and none has aged."""
        return self._left is not None and not self._left and not self.aged

    def for_failure(self, case: Case) -> Answer | None:
        """The answer to a case; None when there is none."""
        return self._answers.get(case)

    def __len__(self) -> int:
        """How many answers there are."""
        return len(self._answers)
