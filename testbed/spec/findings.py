# SPDX-License-Identifier: Apache-2.0
"""The conflicts that checks have found in a spec, and which further checks are meaningful."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from netmodel import LocatedError, Location


class Findings:
    """The conflicts of one spec.

    `unread` has the places of the spec that could not be read and were replaced by stand-in values. Conflicts there are
    ignored, and checks that need these places are skipped.
    """

    def __init__(self, unread: Iterable[Location] = ()) -> None:
        self.conflicts: list[LocatedError] = []
        self._unread = list(unread)

    def fit(self, *keys: str) -> bool:
        """Whether these sections of the spec have no conflicts so far, so that checks may rely on them."""
        places = [*self._unread, *(conflict.where for conflict in self.conflicts)]
        return not any(place[:1] == (key,) for key in keys for place in places)

    def fit_at(self, *place: str | int) -> bool:
        """Whether nothing at or below this place has a conflict so far."""
        return not any(conflict.where[: len(place)] == place for conflict in self.conflicts)

    def add(self, error: LocatedError) -> None:
        """Record an error and its `others`."""
        for conflict in error.all:
            if not any(place[: len(conflict.where)] == conflict.where[: len(place)] for place in self._unread):
                self.conflicts.append(conflict)

    @contextmanager
    def collecting(self, *below: str | int) -> Iterator[None]:
        """Record the error that ends the block, if any. Its place is relative to `below`."""
        try:
            yield
        except LocatedError as error:
            self.add(error.below(*below))
