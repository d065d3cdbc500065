# SPDX-License-Identifier: Apache-2.0
"""What two path services say to each other, one JSON object a line; docs/high-availability.md explains it.

A service that does not lead connects to where the other one listens for hosts, and says `Follow` first.
"""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from sdn.path_service.control.book import Change, Entry, Kind
from sdn.path_service.messages import Count, Error, MessageError, ServiceName, Token

MAX_LINE = 64 * 1024 * 1024
"""Longest line in bytes: a `Snapshot` has all entries."""


class Follow(Struct, tag="follow", tag_field="type", frozen=True):
    """The first line: this service would like to follow, or, where it `leads`, to know whether it still may."""

    token: Token
    name: ServiceName
    """Chosen at random at each start."""
    generation: Count
    """Of the service that its data is of."""
    last: Count
    """The number of its last change."""
    above: Count
    """The highest generation that it knows of, or has asked votes for."""
    standby: bool = False
    """With the same data, the other one should lead."""
    leads: bool = False
    of: str = ""
    """The name of the service that has led with its data; "" after a restart."""
    lease_s: float = 1.0
    """The same for both, or the other one would lead for longer than this one lets it."""


class Claim(Struct, tag="claim", tag_field="type", frozen=True):
    """Neither service leads: this one has the newer data, and would like to lead in this generation."""

    generation: Count


class Offer(Struct, tag="offer", tag_field="type", frozen=True):
    """Neither service leads, and the other one has the newer data: it may lead if it hears this."""


class Accept(Struct, tag="accept", tag_field="type", frozen=True):
    """The answer to `Offer`."""


class Yield(Struct, tag="yield", tag_field="type", frozen=True):
    """The other service may lead in this generation: this one does not, until it has followed."""

    generation: Count


class Fenced(Struct, tag="fenced", tag_field="type", frozen=True):
    """Both services lead, and this one in a higher generation."""

    generation: Count


class Snapshot(Struct, tag="snapshot", tag_field="type", frozen=True):
    """All data of a service that leads. From now on the other follows."""

    number: Count
    """As of `Beat`."""
    name: ServiceName
    generation: Count
    witnesses: tuple[str, ...]
    last: Count = 0
    entries: tuple[tuple[Kind, str, Entry], ...] = ()
    changes: tuple[Change, ...] = ()
    """The last ones, which operators may undo."""


class Beat(Struct, tag="beat", tag_field="type", frozen=True, omit_defaults=True):
    """The service that leads asks for an `Ack`, and tells the hosts that it serves if these have changed."""

    number: Count
    witnesses: tuple[str, ...] | None = None


class Stored(Struct, tag="stored", tag_field="type", frozen=True):
    """Changes that the service that leads has written."""

    changes: tuple[Change, ...]


class Ack(Struct, tag="ack", tag_field="type", frozen=True):
    """All up to this `Beat` was received, and all up to this change is on the disk."""

    number: Count
    last: Count


Ours: TypeAlias = Follow | Claim | Offer | Accept | Yield | Fenced | Snapshot | Beat | Stored | Ack

_decoder = msgspec.json.Decoder(Ours | Error)
_encode = msgspec.json.encode


class _Type(Struct):
    type: Annotated[str, Meta(max_length=64)]


_type_of = msgspec.json.Decoder(_Type)


def is_follow(line: bytes | bytearray) -> bool:
    """Whether a line comes from another service, and not from a host."""
    try:
        return _type_of.decode(line).type == "follow"
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False


def read(line: bytes | bytearray) -> Any:
    """The message in a line, of `Ours`. Raises MessageError, also for what a service says to one that it refuses."""
    try:
        message = _decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MessageError(" ".join(str(error).split())[:200]) from None
    if isinstance(message, Error):
        raise MessageError(f"it says {message.code}: {message.text}")
    return message


def line_of(message: Ours) -> bytes:
    """The line of a message, with its newline."""
    return _encode(message) + b"\n"
