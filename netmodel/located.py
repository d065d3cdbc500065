# SPDX-License-Identifier: Apache-2.0
"""Errors that know their place in the data, several at a time."""

from collections.abc import Sequence
from typing import Self, TypeAlias

Location: TypeAlias = tuple[str | int, ...]
"""A place in the data: keys and indices from the top."""


class LocatedError(ValueError):
    """A value that is wrong, in one sentence, at the place `where` below the value that was checked.

    `others` has the further errors that the same check found. `netmodel.load_yaml` reports all of them, with their
    lines.
    """

    def __init__(self, what: str, where: Location = ()) -> None:
        super().__init__(what)
        self.where = where
        self.others: tuple[LocatedError, ...] = ()

    @property
    def all(self) -> "tuple[LocatedError, ...]":
        """This error, and the others that were found with it."""
        return (self, *self.others)

    def below(self, *place: str | int) -> Self:
        """This error, and the others, as errors of the value that has the checked one at `place`."""
        for error in self.all:
            error.where = (*place, *error.where)
        return self


def raise_all(errors: "Sequence[LocatedError]") -> None:
    """Raise the first of `errors`, with the rest as its `others`; do nothing if there are none."""
    if errors:
        first = errors[0]
        first.others = tuple(other for error in errors for other in error.all if other is not first)
        raise first
