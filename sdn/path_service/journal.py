# SPDX-License-Identifier: Apache-2.0
"""The event log: everything that a path service's decisions depend on, and its replay.

Each line is one JSON object. The first line, `{"log": 1, ..}`, has the topology, the options and, with measured paths,
the names of `routers`. Every other line is an event with its time `t` in seconds:

    {"t": 1.5, "conn": 7, "hello": {"device": .., "instance": .., "lanes": .., ..}}     without the token
    {"t": 1.6, "conn": 7, "lines": [..]}         the lines of the host, unchanged
    {"t": 1.7, "conn": 7, "gone": true}
    {"t": 1.8, "constraints": {"dead": ["leaf1:5"], "drained": [..], "pins": [["10.0.0.1", "10.0.1.1", [[..]]]]}}
    {"t": 1.8, "groups": {"leaf1": [{"ports": [5, 4], "addresses": ["10.0.1.1"]}]}}    next hops that were read
    {"t": 1.9, "tick": true}
    {"t": 1.9, "prepared": 3}                    calls of `PathService.prepare`
    {"t": 2.0, "dropped": 120}                   events that could not be written: no replay from here

`sdn.path_service.log_file` writes the lines. A file that was begun anew lacks the events before it, so only a service's
first file can be replayed.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import msgspec

from netmodel import EcmpHash, Link, PortRef, Topology, TopologySpec, dump_topology, parse_yaml
from sdn.measured.router_names import RouterNames
from sdn.path_service.constraints import Constraints
from sdn.path_service.group_lists import Listed
from sdn.path_service.log_file import LogError
from sdn.path_service.messages import Hello, from_host
from sdn.path_service.next_hops import unlisted
from sdn.path_service.pinning import Sends
from sdn.path_service.service import Options, PathService

VERSION = 2
_HELLO = ("device", "instance", "lanes", "udp_port", "protocol")  # beside its version, which old logs lack


class Lines(Protocol):
    """Where an event log's lines go, such as `sdn.path_service.log_file.LogFile`."""

    def add(self, line: bytes) -> None:
        """Appends a line, which ends with a newline. Neither blocks nor raises."""
        ...


class Journal:
    """Writes what a path service's decisions depend on as lines of an event log, whose first one is `head`."""

    def __init__(self, lines: Lines) -> None:
        self._add = lines.add

    def hello(self, now_s: float, conn: int, hello: Hello) -> None:
        said = {name: getattr(hello, name) for name in ("version", *_HELLO)}
        self._add(_line({"t": now_s, "conn": conn, "hello": said}))

    def said(self, now_s: float, conn: int, lines: Iterable[bytes | bytearray]) -> None:
        """Log the lines that a host has sent, each of which is a message."""
        self._add(b'{"t":%.6f,"conn":%d,"lines":[%b]}\n' % (now_s, conn, b",".join(lines)))

    def gone(self, now_s: float, conn: int) -> None:
        self._add(b'{"t":%.6f,"conn":%d,"gone":true}\n' % (now_s, conn))

    def constrained(self, now_s: float, constraints: Constraints) -> None:
        dead, drained = _names(constraints.dead), _names(constraints.drained)
        pins = [[*ends, list(map(_names, via))] for ends, via in constraints.pins.items()]
        self._add(_line({"t": now_s, "constraints": {"dead": dead, "drained": drained, "pins": pins}}))

    def next_hops(self, now_s: float, groups: Listed) -> None:
        self._add(msgspec.json.encode({"t": now_s, "groups": groups}) + b"\n")

    def tick(self, now_s: float) -> None:
        self._add(b'{"t":%.6f,"tick":true}\n' % now_s)

    def prepared(self, now_s: float, count: int) -> None:
        self._add(b'{"t":%.6f,"prepared":%d}\n' % (now_s, count))


def head(topology: Topology, options: Options, routers: RouterNames | None = None) -> bytes:
    """The first line of an event log."""
    said = {"log": VERSION, "options": asdict(options), "topology": dump_topology(topology)}
    return _line(said if routers is None else {**said, "routers": dict(routers)})


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
    """An event of the log; `lines` are the host's bytes."""

    t: float
    conn: int = -1
    hello: dict[str, Any] | None = None
    lines: list[msgspec.Raw] | None = None
    gone: bool = False
    constraints: _Constraints | None = None
    groups: Listed | None = None
    prepared: int | None = None
    tick: bool = False
    dropped: int = 0


def replay(path: Path, ecmp_hash: EcmpHash | None = None) -> Iterator[tuple[PathService, float, Sends]]:
    """Gives a log's events to a new path service. Yields, per event, the service, the time and the resulting messages.

    Raises LogError, OSError.
    """
    decoder = msgspec.json.Decoder(_Entry)
    service: PathService | None = None
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if service is None:
                    service = _begun(msgspec.json.decode(line), ecmp_hash)
                    continue
                if line.isspace():  # the end of a log whose service was killed
                    continue
                entry = decoder.decode(line)
                sends = _done(service, entry)
            except (KeyError, TypeError, ValueError) as error:
                raise LogError(f"{path}:{number}: {error}") from error
            yield service, entry.t, sends


def _begun(head: Any, ecmp_hash: EcmpHash | None) -> PathService:
    if not isinstance(head, dict) or head.get("log") != VERSION:
        raise ValueError(f"this is not an event log of version {VERSION}")
    topology = parse_yaml(head["topology"], TopologySpec, file="topology").topology
    return PathService(topology, Options(**head["options"]), ecmp_hash, head.get("routers"))


def _done(service: PathService, entry: _Entry) -> Sends:
    if entry.dropped:
        raise ValueError(f"{entry.dropped} events are missing here")
    if entry.hello is not None:
        return service.connect(entry.t, entry.conn, Hello(**{"version": 1, "token": "-", **entry.hello}))[0]
    if entry.lines is not None:
        said = [from_host(bytes(line)) for line in entry.lines]
        return service.handle(entry.t, entry.conn, said)
    if entry.prepared is not None:
        for _ in range(entry.prepared):
            service.prepare()
        return []
    if entry.gone:
        return service.disconnect(entry.t, entry.conn)
    if entry.constraints is not None:
        return service.constrain(entry.t, entry.constraints.on(service.topology))
    if entry.groups is not None:
        return service.next_hops(entry.t, unlisted(entry.groups))
    if entry.tick:
        return service.tick(entry.t)
    raise ValueError("this is no event")


def _names(links: Iterable[Link]) -> list[str]:
    return sorted(str(link.a) for link in links)


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
