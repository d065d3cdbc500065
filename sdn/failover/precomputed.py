# SPDX-License-Identifier: Apache-2.0
"""Answers that are computed before they are needed, one per call."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Case = TypeVar("Case", bound=Hashable)
Answer = TypeVar("Answer")


class Precomputed(Generic[Case, Answer]):
    """Precomputed answers to several cases.

    `cases` lists the cases, the most urgent first; `make` computes the answer to one. Only `step` calls them, so the
    other methods are cheap and can be called at every change. An answer depends on everything that `make` reads. When
    some of that changes, the owner has to say so: with `restart` when all answers are wrong, with `discard` for each
    answer that is wrong, and by setting `aged` when answers are valid but no longer the best.
    """

    def __init__(self, cases: Callable[[], Iterable[Case]], make: Callable[[Case], Answer]) -> None:
        self._cases = cases
        self._make = make
        self._answers: dict[Case, Answer] = {}
        self._left: list[Case] | None = None  # the most urgent last; None: not listed since the last restart
        self.aged = False
        """Whether every answer has to be computed again. The old ones are kept until then."""

    def restart(self) -> None:
        """Discard every answer, so that all are computed again."""
        self._answers.clear()
        self._left = None
        self.aged = False

    def discard(self, case: Case) -> None:
        """Discards the answer to one case, which `step` computes next."""
        if self._answers.pop(case, None) is not None and self._left is not None:
            self._left.append(case)

    def step(self) -> bool:
        """Computes the answer to one more case. Returns False, and does nothing, when all are computed."""
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
        """The number of answers."""
        return len(self._answers)
