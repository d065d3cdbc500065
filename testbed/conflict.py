# SPDX-License-Identifier: Apache-2.0
"""The error of a spec whose parts do not fit each other."""

from netmodel import LocatedError


class Conflict(LocatedError):
    """A spec asks for something impossible, in one sentence; `where` is the place in the spec."""

    def __init__(self, what: str, *where: str | int) -> None:
        super().__init__(what, where)
