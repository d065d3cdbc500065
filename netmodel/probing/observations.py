# SPDX-License-Identifier: Apache-2.0
"""What probes saw, and the file that one host writes about it (format paralet-probe-1)."""

from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

MOST_OBSERVATIONS = 1 << 20
"""Observations in one file, at most."""
MOST_BYTES = 1 << 28
"""Bytes of one file, at most."""

Protocol: TypeAlias = Literal["udp", "tcp"]
Answer: TypeAlias = Literal["hop", "destination", "none"]
"""`hop`: a router on the path answered. `destination`: the packet arrived. `none`: nothing came back in time."""

_Address: TypeAlias = Annotated[str, Meta(max_length=45)]
_Port: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF)]
_Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]


class ProbeFileError(ValueError):
    """A file of observations that cannot be used, in one sentence that names it."""


class Observation(Struct, frozen=True, gc=False, rename={"source": "from", "destination": "to"}):
    """One probe and its answer. JSON calls `source` and `destination` "from" and "to".

    Addresses are text as `str(ipaddress.ip_address(..))` writes it; decoding turns other spellings into it. Raises
    ValueError (when decoded: msgspec.ValidationError) for a text that is no address, for two families, and for an
    answer that contradicts `router` and `rtt_s`.
    """

    source: _Address
    destination: _Address
    protocol: Protocol
    source_port: _Port
    destination_port: _Port
    ttl: Annotated[int, Meta(ge=1, le=255)]
    answer: Answer
    router: _Address | None
    """The address from which the answer came; None without an answer. A destination may leave it out."""
    rtt_s: _Seconds | None
    """From the probe to its answer; None without an answer, or where it was not measured."""
    at_s: _Seconds
    """When the probe was sent: seconds since this host's probing began, by a clock that never goes back."""

    def __post_init__(self) -> None:
        families = []
        for field in ("source", "destination", "router"):
            text = getattr(self, field)
            if text is not None:
                canonical, family = _canonical(text)
                families.append(family)
                if canonical != text:
                    force_setattr(self, field, canonical)
        if len(set(families)) > 1:
            raise ValueError("addresses of one observation must be all IPv4 or all IPv6")
        if self.source == self.destination:
            raise ValueError(f"{self.source} probes itself")
        if self.answer == "hop" and self.router is None:
            raise ValueError('an answer "hop" needs the address of its router')
        if self.answer == "none" and (self.router is not None or self.rtt_s is not None):
            raise ValueError('an answer "none" has neither router nor rtt_s')


class ProbeFile(Struct, frozen=True, gc=False, tag_field="format", tag="paralet-probe-1"):
    """All that one host observed."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    """The host's name."""
    began: Annotated[str, Meta(max_length=64)]
    """When its probing began, as RFC 3339 writes it."""
    observations: Annotated[tuple[Observation, ...], Meta(max_length=MOST_OBSERVATIONS)]


_decoder = msgspec.json.Decoder(ProbeFile)


def from_json(text: bytes) -> ProbeFile:
    """The file with this content. Raises ValueError with what is wrong and where."""
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_json(file: ProbeFile) -> bytes:
    """The content of a file: an observation a line. Raises ValueError for more observations than a file may have."""
    if len(file.observations) > MOST_OBSERVATIONS:
        raise ValueError(
            f"{len(file.observations):,} observations are too many for one file, which may have {MOST_OBSERVATIONS:,}"
        )
    head = msgspec.json.encode(ProbeFile(file.host, file.began, ()))
    lines = b",\n".join(map(msgspec.json.encode, file.observations))
    return head.removesuffix(b"]}") + b"\n" + lines + b"\n]}\n"


def load(path: Path) -> ProbeFile:
    """The observations in the file `path`. Raises ProbeFileError."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ProbeFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(text) > MOST_BYTES:
        raise ProbeFileError(f"{path}: a file of observations has at most {MOST_BYTES:,} bytes; probe fewer ports")
    try:
        return from_json(text)
    except ValueError as error:
        raise ProbeFileError(f"{path}: no file of observations (paralet-probe-1): {error}") from None


def save(path: Path, file: ProbeFile) -> None:
    """Writes the file `path`, or leaves it as it is. Raises ProbeFileError."""
    fresh = path.with_name(f".{path.name}.part")
    try:
        fresh.write_bytes(to_json(file))
        fresh.replace(path)
    except OSError as error:
        raise ProbeFileError(f"{path}: cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        raise ProbeFileError(f"{path}: {error}") from None


@lru_cache(maxsize=1 << 16)
def _canonical(text: str) -> tuple[str, int]:
    address = ip_address(text)
    return str(address), address.version
