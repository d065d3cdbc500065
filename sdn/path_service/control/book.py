# SPDX-License-Identifier: Apache-2.0
"""What operators have asked for, as entries by kind and name, and changes of these. Pure.

A change says what each entry was before and is after it. So a state is the sum of its changes, any change can be
undone, and whoever follows the changes in order has the same state.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Kind: TypeAlias = Literal["drain", "pin", "dead"]


class Entry(Struct, frozen=True, omit_defaults=True):
    """What is asked for of one name: a drain, a pin or a dead link."""

    via: tuple[str, ...] = ()
    """Of a pin: the links or switches that the path has, as `sdn.path_service.links` names them."""
    until: float | None = None
    """When it ends by itself, in seconds of the wall clock (Unix time); None: never."""


class Edit(Struct, frozen=True, omit_defaults=True):
    """An entry comes, changes or goes. Names: of a drain as asked for, "h1 h5" of a pin, both ends of a dead link."""

    kind: Kind
    name: str
    before: Entry | None = None
    after: Entry | None = None

    @property
    def inverse(self) -> "Edit":
        return Edit(self.kind, self.name, self.after, self.before)


class Change(Struct, frozen=True, omit_defaults=True):
    """A numbered change. Numbers begin at 1 and have no gaps."""

    number: int
    generation: int
    """Of the service that wrote it."""
    at: str
    """The wall clock's time, as RFC 3339 writes it."""
    who: str
    """The user and process that asked, or what in the service did."""
    what: str
    """What was asked, such as "drain spine2"."""
    edits: tuple[Edit, ...]


class Draft(Struct, frozen=True):
    """A change that is not written yet."""

    who: str
    what: str
    edits: tuple[Edit, ...]


State: TypeAlias = Mapping[tuple[Kind, str], Entry]


class ConflictError(ValueError):
    """An entry is not as an edit says it was: one sentence."""


def applied(state: State, edits: Iterable[Edit]) -> dict[tuple[Kind, str], Entry]:
    """The state after these edits. Raises ConflictError where an entry is not as it was before them."""
    after = dict(state)
    for edit in edits:
        key = edit.kind, edit.name
        if after.get(key) != edit.before:
            raise ConflictError(f"the {edit.kind} of {edit.name} has changed since")
        if edit.after is None:
            after.pop(key, None)
        else:
            after[key] = edit.after
    return after


def edit_of(state: State, kind: Kind, name: str, after: Entry | None) -> tuple[Edit, ...]:
    """The edit that gives an entry this value; none where it has it already."""
    before = state.get((kind, name))
    return () if before == after else (Edit(kind, name, before, after),)


def expired(state: State, now: float) -> tuple[Edit, ...]:
    """The edits that end the entries whose time is over, at `now` in seconds of the wall clock."""
    return tuple(
        Edit(kind, name, entry, None)
        for (kind, name), entry in state.items()
        if entry.until is not None and entry.until <= now
    )


def named(state: State, kind: Kind) -> dict[str, Entry]:
    """The entries of a kind by name."""
    return {name: entry for (own, name), entry in state.items() if own == kind}


encode = msgspec.json.encode
entry_of = msgspec.json.Decoder(Entry).decode
edits_of = msgspec.json.Decoder(tuple[Edit, ...]).decode
