# SPDX-License-Identifier: Apache-2.0
"""The path service's messages, version 1: what may be said, and how long it may be. docs/path-service.md explains them.

A message is one line of JSON. Types, ranges and lengths are checked while it is parsed; unknown keys are ignored.
Sizes are in bytes, rates in bit/s, times in seconds.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from netmodel import ROCE_PORT

VERSION = 1
MAX_HOST_LINE = 64 * 1024
"""Of a line from a host, without its newline."""
MAX_SERVICE_LINE = 1024 * 1024
"""Of a line from the service."""

Id: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Address: TypeAlias = Annotated[str, Meta(max_length=15, description="IPv4 in dotted form")]
UdpPort: TypeAlias = Annotated[int, Meta(ge=1, le=0xFFFF)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
Period: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
Token: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class Hello(Struct, tag="hello", tag_field="type", frozen=True, gc=False):
    """A host's first line: which device this connection speaks for."""

    version: int
    token: Token
    device: Address
    instance: Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="random, per device object")]
    lanes: Annotated[int, Meta(ge=1, le=1024)]
    udp_port: UdpPort = ROCE_PORT
    """Where the device receives RoCEv2 packets: switches hash the destination port too."""


class Announce(Struct, tag="announce", tag_field="type", frozen=True, gc=False):
    """An elephant begins; with the id of an open one: its size has changed."""

    id: Id
    peer: Address
    bytes: Count
    job: Annotated[str, Meta(max_length=64)] = ""
    repeat_s: Period | None = None
    """After which time the host expects its like again."""
    peer_port: UdpPort = ROCE_PORT


class Release(Struct, tag="release", tag_field="type", frozen=True, gc=False):
    """An elephant has ended."""

    id: Id


class MeasuredFlow(Struct, frozen=True, gc=False):
    """What an elephant did since the last such message."""

    id: Id
    bytes: Count
    seconds: Seconds
    rtt_s: Seconds | None = None
    retransmits: Count = 0


class Measured(Struct, tag="measured", tag_field="type", frozen=True, gc=False):
    """What open elephants achieve."""

    flows: Annotated[tuple[MeasuredFlow, ...], Meta(max_length=1024)]


class Report(Struct, tag="report", tag_field="type", frozen=True, gc=False):
    """A lane has left its assigned port for one of ECMP's by itself."""

    id: Id
    lane: Annotated[int, Meta(ge=0, lt=1024)]
    port: Annotated[int, Meta(ge=0, le=0xFFFF)]
    reason: Literal["rtt", "loss"]
    value: float = 0.0


class Ping(Struct, tag="ping", tag_field="type", frozen=True, gc=False):
    """Are you there?"""

    nonce: Count = 0


HostMessage: TypeAlias = Hello | Announce | Release | Measured | Report | Ping


class Welcome(Struct, tag="welcome", tag_field="type", frozen=True, gc=False):
    """The answer to hello."""

    version: int
    session: str


class Assign(Struct, tag="assign", tag_field="type", frozen=True, gc=False, omit_defaults=True):
    """Use these UDP source ports for lanes 0, 1, .. towards `peer`; none: go back to ECMP.

    Without `id` it is for what the device sends to `peer` without an elephant of its own: acknowledgements of the
    peer's elephant, or an elephant that is expected. `generation` grows by connection.
    """

    peer: str
    ports: list[int]
    generation: int
    rate_bps: float | None
    """The most that the elephant may send; None: no limit."""
    id: int | None = None
    peer_port: int = ROCE_PORT
    cut: bool = False
    """The path before has died: what is in flight on it does not arrive."""


class Pong(Struct, tag="pong", tag_field="type", frozen=True, gc=False):
    """The answer to ping."""

    nonce: int


ErrorCode: TypeAlias = Literal[
    "token", "version", "line", "message", "device", "hello", "replaced", "silent", "full", "stopping", "busy"
]


class Error(Struct, tag="error", tag_field="type", frozen=True, gc=False):
    """Something is wrong; unless the code is "busy", the service closes the connection."""

    code: ErrorCode
    text: str
    """One sentence."""


ServiceMessage: TypeAlias = Welcome | Assign | Pong | Error


class _AnyVersion(Struct, tag="hello", tag_field="type"):
    """What a hello of every version has."""

    version: int


_decoder = msgspec.json.Decoder(HostMessage)
_any_version = msgspec.json.Decoder(_AnyVersion)
_service_decoder = msgspec.json.Decoder(ServiceMessage)
_encoder = msgspec.json.Encoder()


class MessageError(ValueError):
    """A line is no message of this protocol; says in one sentence why."""


def from_host(line: bytes | bytearray) -> HostMessage:
    """The message in a host's line. Raises MessageError. Lines beyond MAX_HOST_LINE are for the caller to refuse."""
    try:
        message: HostMessage = _decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MessageError(_reason(error)) from None
    return message


def from_service(line: bytes | bytearray) -> ServiceMessage:
    """The message in a line of the service. Raises MessageError."""
    try:
        message: ServiceMessage = _service_decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MessageError(_reason(error)) from None
    return message


def version_of(line: bytes | bytearray) -> int | None:
    """The version that a hello names, whatever else it says; None when it is no hello of any version."""
    try:
        return _any_version.decode(line).version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def to_line(message: HostMessage | ServiceMessage) -> bytes:
    """The line of a message, with its newline."""
    return _encoder.encode(message) + b"\n"


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of both directions: `$defs/FromHost` and `$defs/FromService`."""
    directions, definitions = msgspec.json.schema_components(
        (HostMessage, ServiceMessage), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"paralet path service, version {VERSION}: one message a line",
        "anyOf": [{"$ref": "#/$defs/FromHost"}, {"$ref": "#/$defs/FromService"}],
        "$defs": {**dict(zip(("FromHost", "FromService"), directions, strict=True)), **definitions},
    }


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())[:200]
