# SPDX-License-Identifier: Apache-2.0
"""Replays logs: the same events give the same decisions, which are compared with what the log says."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from netmodel import EcmpHash, Link, PortRef, Topology, TopologySpec, parse_yaml
from sdn.path_service.constraints import Constraints
from sdn.path_service.group_lists import Listed
from sdn.path_service.journal import HELLO, VERSION, Digest
from sdn.path_service.log_file import LogError
from sdn.path_service.messages import Hello, from_host
from sdn.path_service.next_hops import unlisted
from sdn.path_service.pinning import Sends
from sdn.path_service.service import Options, PathService
from sdn.path_service.succession import take_over

HashOf: TypeAlias = Callable[[str | None, Topology], EcmpHash | None]
"""The hash of this name, which a log's head has; None: of the switches, or none where hosts measure."""


class Replayed(NamedTuple):
    """What came of one line of a log."""

    service: PathService
    at: str
    """The wall clock's time."""
    t: float
    """Seconds since the service started."""
    sends: Sends


class _Constraints(msgspec.Struct):
    """`Constraints`, with a port of each link."""

    dead: list[str]
    drained: list[str]
    pins: list[tuple[str, str, list[list[str]]]]

    def on(self, topology: Topology) -> Constraints:
        """Raises KeyError and ValueError for what is no port of the topology."""

        def links(names: list[str]) -> frozenset[Link]:
            return frozenset(topology.link_at(PortRef.parse(name)) for name in names)

        pins = {(src, dst): tuple(map(links, via)) for src, dst, via in self.pins}
        return Constraints(links(self.dead), links(self.drained), pins)


class _Entry(msgspec.Struct):
    """A line of the log; `lines` are the host's bytes."""

    at: str
    t: float = 0.0
    log: int | None = None
    options: dict[str, Any] | None = None
    topology: Any = None
    routers: dict[str, str] | None = None
    hash: str | None = None
    conn: int = -1
    hello: dict[str, Any] | None = None
    lines: list[msgspec.Raw] | None = None
    gone: bool = False
    reload: bool = False
    constraints: _Constraints | None = None
    groups: Listed | None = None
    tick: bool = False
    prepared: int | None = None
    refused: str | None = None
    sent: int | None = None
    sum: int = 0
    dropped: int = 0


_decode = msgspec.json.Decoder(_Entry).decode


def replay(paths: Iterable[Path], hash_of: HashOf = lambda name, topology: None) -> Iterator[Replayed]:
    """Gives the events of logs to new path services, one for each start.

    `paths` are the parts of one log in order, of which those that end with .gz are compressed. Raises LogError where a
    log is wrong, lacks events, or has other decisions than those that come of its events; and OSError.
    """
    service: PathService | None = None
    digest = Digest()
    for path in paths:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    entry = _decode(line)
                    if entry.log is not None:
                        service, digest = _begun(entry, hash_of), Digest()
                        continue
                    if service is None:
                        raise ValueError("the log begins in the middle: give the parts before this one too")
                    if entry.dropped:
                        raise ValueError(f"{entry.dropped} events are missing here")
                    if entry.reload:
                        service, sends = _reloaded(service, entry, hash_of)
                    else:
                        sends = _done(service, entry)
                    digest.add(sends)
                    if entry.sent is not None and (entry.sent, entry.sum) != (digest.count, digest.sum):
                        raise ValueError("the service decided otherwise: was it another version, or another hash?")
                except (KeyError, TypeError, ValueError) as error:
                    raise LogError(f"{path}:{number}: {error}") from error
                yield Replayed(service, entry.at, entry.t, sends)


def _begun(entry: _Entry, hash_of: HashOf) -> PathService:
    if entry.log != VERSION or entry.options is None:
        raise ValueError(f"this is not a log of version {VERSION}")
    topology = parse_yaml(entry.topology, TopologySpec, file="topology").topology
    return PathService(topology, Options(**entry.options), hash_of(entry.hash, topology), entry.routers)


def _reloaded(old: PathService, entry: _Entry, hash_of: HashOf) -> tuple[PathService, Sends]:
    if entry.constraints is None:
        raise ValueError("a reload has no constraints")
    topology = parse_yaml(entry.topology, TopologySpec, file="topology").topology
    options = old.options if entry.options is None else Options(**entry.options)  # older logs have none
    new = PathService(topology, options, hash_of(entry.hash, topology))
    next_hops = None if entry.groups is None else unlisted(entry.groups)
    return new, take_over(entry.t, old, new, entry.constraints.on(topology), next_hops)


def _done(service: PathService, entry: _Entry) -> Sends:
    if entry.hello is not None:
        hello = Hello(token="-", **{name: entry.hello[name] for name in HELLO if name in entry.hello})
        return service.connect(entry.t, entry.conn, hello)[0]
    if entry.lines is not None:
        return service.handle(entry.t, entry.conn, [from_host(bytes(line)) for line in entry.lines])
    if entry.gone:
        return service.disconnect(entry.t, entry.conn)
    if entry.constraints is not None:
        return service.constrain(entry.t, entry.constraints.on(service.topology))
    if entry.groups is not None:
        return service.next_hops(entry.t, unlisted(entry.groups))
    if entry.tick:
        return service.tick(entry.t)
    if entry.prepared is None and entry.sent is None and entry.refused is None:
        raise ValueError("this is no event")
    for _ in range(entry.prepared or 0):
        service.prepare()
    return []
