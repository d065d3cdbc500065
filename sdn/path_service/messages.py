# SPDX-License-Identifier: Apache-2.0
"""The messages of the path service's protocol, versions 1 and 2; docs/path-service.md explains them.

A message is one line of JSON. Types, ranges, lengths and addresses of routers are checked while it is parsed; unknown
keys are ignored. Sizes are in bytes, rates in bit/s, times in seconds. Version 2 adds probes.
"""

import inspect
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from netmodel import IPPROTO_TCP, IPPROTO_UDP, ROCE_PORT
from netmodel.flow import Address as IpAddress

VERSIONS = (1, 2)
"""Of the protocol. A host says hello with the highest one that it speaks, and the service answers in that."""
PROBING = 2
"""The version from which hosts may probe."""
MOST_PROBED = 64
"""The most ports in one message about probes."""
MOST_RANKS = 1 << 20
"""The most ranks of a job."""
MAX_HOST_LINE = 64 * 1024
"""Longest line from a host in bytes, without its newline."""
MAX_SERVICE_LINE = 1024 * 1024
"""Longest line from the service in bytes, without its newline."""

Id: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Address: TypeAlias = Annotated[str, Meta(max_length=39, description="IP address as text, IPv6 as RFC 5952 writes it")]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=0xFFFF)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
Period: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
PerSecond: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
ServiceName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Job: TypeAlias = Annotated[str, Meta(max_length=64)]
Rank: TypeAlias = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Token: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class Hello(Struct, tag="hello", tag_field="type", frozen=True, gc=False):
    """A host's first line: the device that this connection is for."""

    version: int
    token: Token
    device: Address
    instance: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)", description="random, per device object")]
    lanes: Annotated[int, Meta(ge=1, le=1024)]
    udp_port: Port = ROCE_PORT
    """Where the device receives packets, of either protocol: switches hash the destination port too."""
    protocol: Literal["udp", "tcp"] = "udp"
    """Of the device's lanes and of their peers': RoCEv2, or TCP. Switches hash it too."""
    fixed: bool = False
    """Its elephants cannot change their ports. Their sizes are what they have sent so far, 0 at first."""
    paths: bool = False
    """It wants to know the paths of the ports that it is assigned: `Assign.paths`."""
    generation: Count | None = None
    """The highest of the services that have welcomed this device object, 0 without one. None: it does not look."""
    voted: Count = 0
    """The highest generation in which this device object has voted: see `Vote`. 0: none."""
    job: Job = ""
    """That of its rank."""
    rank: Rank | None = None
    """Of a program on this host that is a rank of `job`; None: not known."""
    ranks: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    """Those of `job`."""

    @property
    def ip_protocol(self) -> int:
        """The number of `protocol`."""
        return IPPROTO_TCP if self.protocol == "tcp" else IPPROTO_UDP


class Announce(Struct, tag="announce", tag_field="type", frozen=True, gc=False):
    """An elephant begins. With the id of an open elephant: its size has changed."""

    id: Id
    peer: Address
    bytes: Count
    job: Job = ""
    repeat_s: Period | None = None
    """The time after which the host expects a similar elephant, from start to start."""
    peer_port: Port = ROCE_PORT
    port: Port | None = None
    """Of a host whose elephants cannot change their ports: the one that this elephant has already."""


class Release(Struct, tag="release", tag_field="type", frozen=True, gc=False):
    """An elephant has ended."""

    id: Id


class MeasuredFlow(Struct, frozen=True, gc=False):
    """The bytes that an elephant has sent since the last `Measured`."""

    id: Id
    bytes: Count
    seconds: Seconds
    rtt_s: Seconds | None = None
    retransmits: Count = 0


class Measured(Struct, tag="measured", tag_field="type", frozen=True, gc=False):
    """Measurements of the open elephants."""

    flows: Annotated[tuple[MeasuredFlow, ...], Meta(max_length=1024)]


class Report(Struct, tag="report", tag_field="type", frozen=True, gc=False):
    """A lane has left its assigned port for a random one, because of `reason`."""

    id: Id
    lane: Annotated[int, Meta(ge=0, lt=1024)]
    port: Annotated[int, Meta(ge=0, le=0xFFFF)]
    reason: Literal["rtt", "loss"]
    value: float = 0.0


class Ping(Struct, tag="ping", tag_field="type", frozen=True, gc=False):
    """Asks for a `Pong`."""

    nonce: Count = 0


class CanProbe(Struct, tag="probe", tag_field="type", frozen=True, gc=False):
    """This host can probe, at this rate in probes a second at most."""

    rate: PerSecond
    hops: bool = False
    """It watches a port at several hops, and says at which one it has moved. Else it watches what it was told last."""
    until: bool = False
    """It knows `Probe.once` and `Probe.until`. A host that does not is sent neither."""


class Answer(Struct, array_like=True, frozen=True, gc=False):
    """What came of the probe of one port."""

    port: Port
    answer: Literal["hop", "destination", "none", "failed"]
    """A router answered; the packet arrived; no answer came after all attempts; or the host could not send it."""
    router: Address | None = None
    """The address from which the answer of a hop came."""
    rtt_s: Seconds | None = None

    def __post_init__(self) -> None:
        if self.answer == "hop":
            ip_address(self.router or "")  # raises ValueError, which the parser reports

    @property
    def address(self) -> IpAddress | None:
        """The router's address; None without one."""
        return ip_address(self.router or "") if self.answer == "hop" else None


Answers: TypeAlias = Annotated[tuple[Answer, ...], Meta(max_length=MOST_PROBED)]


class Probed(Struct, tag="probed", tag_field="type", frozen=True, gc=False):
    """What came of a `Probe`: an answer for each of its ports.

    Where it has `until`: for each port that was probed, also where nobody answered. A port without any was not probed.
    """

    ask: Id
    answers: Answers


class Moved(Struct, tag="moved", tag_field="type", frozen=True, gc=False):
    """Ports of a `Watch` for which another router than the expected one answers now, or nobody."""

    peer: Address
    answers: Answers
    peer_port: Port = ROCE_PORT
    ttl: Annotated[int, Meta(ge=0, le=255)] = 0
    """Of the `Watch`; 0 where the host watches at one hop only."""


class Voted(Struct, tag="voted", tag_field="type", frozen=True, gc=False, omit_defaults=True):
    """The service for which this host has voted, in the highest generation in which it has: see `Vote`."""

    generation: Count
    service: ServiceName
    trial: bool = False
    """It would vote so, and has not."""


UsualMessage: TypeAlias = Announce | Release | Measured | Report | Ping | CanProbe | Probed | Moved
"""What a host says all the time."""
HostMessage: TypeAlias = Hello | UsualMessage | Voted


class Welcome(Struct, tag="welcome", tag_field="type", frozen=True, gc=False, omit_defaults=True):
    """The answer to hello, of the same version."""

    version: int
    session: str
    probe: bool = False
    """Whether the service would like this host to probe."""
    router_rate: float = 1.0
    """Answers per second that a router gives one host; 0: without limit."""
    generation: int = 0
    """Of the service: higher than of all that have served before it. A host refuses one below the highest that it has
    seen."""


class Assign(Struct, tag="assign", tag_field="type", frozen=True, gc=False, omit_defaults=True):
    """Assigns these source ports to lanes 0, 1, .. towards `peer`; an empty list: go back to ECMP.

    Without `id` the ports are for acknowledgements of the peer's elephant, or for an elephant that is expected.
    `generation` increases with every assignment of a connection.
    """

    peer: str
    ports: list[int]
    generation: int
    rate_bps: float | None
    """Upper limit of the elephant's rate; None: no limit."""
    id: int | None = None
    peer_port: int = ROCE_PORT
    cut: bool = False
    """The previous path is dead: packets in flight on it are lost."""
    paths: list[list[str]] = []
    """For a host that wants them, the path of each port, or one for all, as the ports by which packets leave hosts and
    switches. Empty where nobody knows."""


class Pong(Struct, tag="pong", tag_field="type", frozen=True, gc=False):
    """The answer to ping."""

    nonce: int


class Probe(Struct, tag="probe", tag_field="type", frozen=True, gc=False, omit_defaults=True):
    """Asks a host to probe source ports towards `peer` once, which it answers by `Probed`."""

    ask: int
    """Unique among the connection's open ones."""
    peer: str
    ttl: int
    ports: list[int]
    """1 to `MOST_PROBED`."""
    rate: float | None
    """The most probes a second; None: as the host likes."""
    peer_port: int = ROCE_PORT
    once: bool = False
    """One packet for each port, as soon as some router at this hop can answer: another port will do as well."""
    until: list[str] = []
    """Addresses of routers, at most `MOST_PROBED`: ports are probed a few at a time until one of these answers."""


class Watch(Struct, tag="watch", tag_field="type", frozen=True, gc=False, omit_defaults=True):
    """Asks a host to probe ports in use once a period, and to tell by `Moved` when another router answers, or nobody.

    It replaces the earlier one for the same peer and port, and the same `ttl` where the host watches at several hops.
    Without ports it ends that.
    """

    peer: str
    ttl: int
    period_s: float
    ports: list[tuple[int, str]]
    """Each with the address of the router that should answer, at most `MOST_PROBED`."""
    peer_port: int = ROCE_PORT


class Vote(Struct, tag="vote", tag_field="type", frozen=True, gc=False, omit_defaults=True):
    """Asks for the host's vote to be the service of a generation. A host votes once for each, and answers `Voted`."""

    generation: int
    service: str
    """The name of the service, which it has chosen at random."""
    trial: bool = False
    """Only asks for whom the host would vote."""


class Wait(Struct, tag="wait", tag_field="type", frozen=True, gc=False):
    """Tells a host that was not welcomed yet that this service is there and may lead soon. Nothing answers it."""


ErrorCode: TypeAlias = Literal[
    "standby",
    "token",
    "version",
    "line",
    "message",
    "device",
    "tls",
    "certificate",
    "hello",
    "replaced",
    "silent",
    "full",
    "stopping",
    "busy",
]


class Error(Struct, tag="error", tag_field="type", frozen=True, gc=False):
    """A refusal. The service closes the connection, except with code "busy"."""

    code: ErrorCode
    text: str
    """One sentence."""


ServiceMessage: TypeAlias = Welcome | Assign | Pong | Error | Probe | Watch | Vote | Wait


class _AnyVersion(Struct, tag="hello", tag_field="type"):
    """The part of a hello that all versions have."""

    version: int


_decoder = msgspec.json.Decoder(HostMessage)
_usual_decoder = msgspec.json.Decoder(UsualMessage)
_any_version = msgspec.json.Decoder(_AnyVersion)
_service_decoder = msgspec.json.Decoder(ServiceMessage)
_encoder = msgspec.json.Encoder()


class MessageError(ValueError):
    """A line is not a message of this protocol; the text says why in one sentence."""


def from_host(line: bytes | bytearray) -> HostMessage:
    """The message in a host's line. Raises MessageError. The caller refuses lines longer than MAX_HOST_LINE."""
    try:
        message: HostMessage = _decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MessageError(_reason(error)) from None
    return message


def usual_from_host(lines: Iterable[bytes]) -> list[HostMessage] | None:
    """The messages in lines, if each is a `UsualMessage`; otherwise None."""
    try:
        return list(map(_usual_decoder.decode, lines))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def from_service(line: bytes | bytearray) -> ServiceMessage:
    """The message in a line of the service. Raises MessageError."""
    try:
        message: ServiceMessage = _service_decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MessageError(_reason(error)) from None
    return message


def version_of(line: bytes | bytearray) -> int | None:
    """The version of a hello, whatever else the line has; None when it is not a hello of any version."""
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
    for definition in definitions.values():
        # Python 3.13 removes the indentation of docstrings; before, they keep it.
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"paralet path service, versions {' and '.join(map(str, VERSIONS))}: one message a line",
        "anyOf": [{"$ref": "#/$defs/FromHost"}, {"$ref": "#/$defs/FromService"}],
        "$defs": {**dict(zip(("FromHost", "FromService"), directions, strict=True)), **definitions},
    }


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())[:200]
