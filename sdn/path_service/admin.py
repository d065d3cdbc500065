# SPDX-License-Identifier: Apache-2.0
"""The operator's side of a path service's Unix socket: requests, and how to send one.

One JSON object a line each way, as on the hosts' socket: `{"token": .., "type": "status"}`, for example. The answer is
an object, `{"error": "one sentence"}` when something is wrong. A Unix socket is a file, so it can be reached from any
network namespace. `sdn.path_service.admin_server` answers.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from sdn.path_service.group_lists import Listed

MOST_FLOWS = 100_000
TIMEOUT_S = 30.0
"""The time in seconds within which a request must be sent and answered."""


Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^ ]+$")]
Period: TypeAlias = Annotated[float, Meta(gt=0, le=1e9)]


class Status(Struct, tag="status", tag_field="type", frozen=True):
    """A request for `PathService.status`, with the numbers of connections and refusals."""

    token: str


class Flows(Struct, tag="flows", tag_field="type", frozen=True):
    """A request for the `most` oldest commodities: `PathService.flows`."""

    token: str
    most: Annotated[int, Meta(ge=1, le=MOST_FLOWS)] = 1000


class Paths(Struct, tag="paths", tag_field="type", frozen=True):
    """A request for all links with their loads: `PathService.paths`."""

    token: str


class LinkChange(Struct, tag="link", tag_field="type", frozen=True):
    """Notice that links have gone down, or have come back; `sdn.path_service.links` says how they are named."""

    token: str
    link: Name
    up: bool = False


class NextHopsRead(Struct, tag="next_hops", tag_field="type", frozen=True):
    """The groups of all switches, as they were read: see `PathService.next_hops`."""

    token: str
    groups: Listed


class Drain(Struct, tag="drain", tag_field="type", frozen=True):
    """Have elephants leave and avoid links, which go on working. `sdn.path_service.links` says how links are named."""

    token: str
    what: Name
    for_s: Period | None = None
    """The time in seconds after which the drain ends by itself; null: never."""
    dry_run: bool = False
    """Only tell what it would do."""


class Undrain(Struct, tag="undrain", tag_field="type", frozen=True):
    """End a drain, by the name that it was asked for with."""

    token: str
    what: Name
    dry_run: bool = False


class Pin(Struct, tag="pin", tag_field="type", frozen=True):
    """Have the elephants from one host to another take paths with these links or switches.

    Hosts are given by name, or by one address. A later pin of the same two replaces this one.
    """

    token: str
    src: Word
    dst: Word
    via: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=8)]
    for_s: Period | None = None
    """The time in seconds after which the pin ends by itself; null: never."""
    dry_run: bool = False


class Unpin(Struct, tag="unpin", tag_field="type", frozen=True):
    """End a pin, by the hosts that it was asked for with."""

    token: str
    src: Word
    dst: Word
    dry_run: bool = False


class Undo(Struct, tag="undo", tag_field="type", frozen=True):
    """Change back what a change has changed, as long as nothing has changed it since."""

    token: str
    change: Annotated[int, Meta(ge=1)]
    dry_run: bool = False


class WhatIf(Struct, tag="what_if", tag_field="type", frozen=True):
    """A request for what would happen without these links or switches. Nothing changes."""

    token: str
    without: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)]


class ListChanges(Struct, tag="changes", tag_field="type", frozen=True):
    """A request for the first `most` changes after this number."""

    token: str
    after: Annotated[int, Meta(ge=0)] = 0
    most: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class Reload(Struct, tag="reload", tag_field="type", frozen=True):
    """Read the topology, options and token anew. What cannot change while the service runs is refused, as a whole."""

    token: str


class Promote(Struct, tag="promote", tag_field="type", frozen=True):
    """Have this one of two services lead, though it cannot know that the other one does not."""

    token: str


Request: TypeAlias = (
    Status
    | Flows
    | Paths
    | LinkChange
    | NextHopsRead
    | Drain
    | Undrain
    | Pin
    | Unpin
    | Undo
    | WhatIf
    | ListChanges
    | Reload
    | Promote
)


class AdminError(Exception):
    """The path service does not answer, or refuses the request: one sentence."""


def admin_socket(token_file: Path) -> Path:
    """The socket of the path service that has this token file: it is in the same folder."""
    return token_file.absolute().with_name(token_file.name + ".sock")


def ask(path: Path, request: Request) -> dict[str, Any]:
    """Sends one request to the path service whose socket is at `path`. Returns its answer. Raises AdminError."""
    try:
        with socket.socket(socket.AF_UNIX) as client, short_name(path) as name:
            client.settimeout(TIMEOUT_S)
            client.connect(name)
            client.sendall(msgspec.json.encode(request) + b"\n")
            with client.makefile("rb") as answer:
                line = answer.readline()
        said: dict[str, Any] = json.loads(line)
    except (FileNotFoundError, ConnectionRefusedError):
        raise AdminError(f"no path service listens at {path}: start one with `paralet path-service run`") from None
    except (OSError, ValueError) as error:
        raise AdminError(f"the path service at {path} does not answer: {error}") from error
    if "error" in said:
        raise AdminError(said["error"])
    return said


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for `path` that is valid inside the context and fits the 107 bytes of a socket's name (unix(7))."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
