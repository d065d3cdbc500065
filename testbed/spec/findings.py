# SPDX-License-Identifier: Apache-2.0
"""The misfits that checks have found in a spec, and which further checks are meaningful."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from netmodel import LocatedError, Location


class Findings:
    """The misfits of one spec.

    `unread` has the places of the spec that could not be read and were replaced by stand-in values. Misfits there are
    ignored, and checks that need these places are skipped.
    """

    def __init__(self, unread: Iterable[Location] = ()) -> None:
        self.misfits: list[LocatedError] = []
        self._unread = list(unread)

    def fit(self, *keys: str) -> bool:
        """Whether these sections of the spec have no misfits so far, so that checks may rely on them."""
        places = [*self._unread, *(misfit.where for misfit in self.misfits)]
        return not any(place[:1] == (key,) for key in keys for place in places)

    def fit_at(self, *place: str | int) -> bool:
        """Whether nothing at or below this place has a misfit so far."""
        return not any(misfit.where[: len(place)] == place for misfit in self.misfits)

    def add(self, error: LocatedError) -> None:
        """Record an error and its `others`."""
        for misfit in error.all:
            if not any(place[: len(misfit.where)] == misfit.where[: len(place)] for place in self._unread):
                self.misfits.append(misfit)

    @contextmanager
    def collecting(self, *below: str | int) -> Iterator[None]:
        """Record the error that ends the block, if any. Its place is relative to `below`."""
        try:
            yield
        except LocatedError as error:
            self.add(error.below(*below))
