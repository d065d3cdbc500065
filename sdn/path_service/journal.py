# SPDX-License-Identifier: Apache-2.0
"""The log of a path service: who asked what and when, and everything that its decisions depend on.

One JSON object a line, appended for ever. `at` is the time of the wall clock as RFC 3339 writes it, `t` the time since
the service has started, by a clock that never goes back. Hosts' lines are logged unchanged, except that hello goes
without its token:

    {"at": "2026-11-27T04:36:00.000001Z", "t": 0, "log": 4, "options": {..}, "topology": {..}, "hash": "ovs"}
    {"at": .., "t": 1.5, "conn": 7, "from": "10.0.0.1:40912", "hello": {"device": .., "instance": .., "lanes": ..}}
    {"at": .., "t": 1.6, "conn": 7, "lines": [..]}         the lines of the host
    {"at": .., "t": 1.7, "conn": 7, "gone": true}
    {"at": .., "t": 1.8, "change": 7, "who": "root (uid 0, pid 9)", "what": "drain spine2", "constraints": {..}}
    {"at": .., "t": 1.8, "groups": {"leaf1": [..]}}        next hops that were read
    {"at": .., "t": 1.9, "who": .., "reload": true, "options": {..}, "topology": {..}, "hash": .., "constraints": {..}}
    {"at": .., "t": 1.9, "who": .., "refused": "there is no change 9"}
    {"at": .., "t": 1.9, "tick": true}
    {"at": .., "t": 1.9, "prepared": 3}                    calls of `PathService.prepare`
    {"at": .., "t": 2.0, "sent": 12, "sum": 1234}          messages so far, and the CRC-32 of them all
    {"at": .., "dropped": 120}                             events that could not be written: no replay from here

A reload has `groups` too where next hops were read before. A line with `log` begins a service; the file may have
several. With `routers` hosts measure their paths.
`sdn.path_service.log_file` writes the lines, `sdn.path_service.replay` reads them.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Protocol

import msgspec

from netmodel import Link, Topology, dump_topology
from sdn._native import Done
from sdn.measured.router_names import RouterNames
from sdn.path_service.constraints import Constraints
from sdn.path_service.group_lists import Listed
from sdn.path_service.messages import Hello
from sdn.path_service.pinning import Sends
from sdn.path_service.service import Options, PathService

VERSION = 4
HELLO = (
    "version",
    "device",
    "instance",
    "lanes",
    "udp_port",
    "protocol",
    "fixed",
    "paths",
    "job",
    "rank",
    "ranks",
)
"""The fields of hello that are logged. Earlier logs of this version lack the last three."""


class Lines(Protocol):
    """Where the log's lines go, such as `sdn.path_service.log_file.LogFile`."""

    def add(self, line: bytes) -> None:
        """Appends a line, which ends with a newline. Neither blocks nor raises."""
        ...


class Digest:
    """The number of messages so far, and the CRC-32 of their connections and values in order."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0

    def add(self, sends: Sends) -> None:
        """Count more messages."""
        for conn, message in sends:
            self.count += 1
            self.sum = zlib.crc32(msgspec.json.encode((conn, msgspec.structs.astuple(message))), self.sum)

    def add_native(self, count: int, encoded: bytes) -> None:
        """Count more messages, which are encoded in the same way, one after the other."""
        self.count += count
        self.sum = zlib.crc32(encoded, self.sum)


class Journal:
    """Writes the lines of one service. `head` comes first."""

    def __init__(self, lines: Lines, clock: Callable[[], float] = time.time) -> None:
        self._add = lines.add
        self._clock = clock
        self._second = -1
        self._text = b""
        self._digest = Digest()
        self._told = 0

    def head(
        self,
        topology: Topology,
        options: Options,
        routers: RouterNames | None = None,
        hash_name: str | None = None,
        generation: int = 1,
    ) -> None:
        """Begin the log of a service that has just started. `hash_name` is for `replay`."""
        said = {"log": VERSION, "generation": generation, "options": asdict(options), "hash": hash_name}
        more = {"topology": dump_topology(topology), "routers": None if routers is None else dict(routers)}
        self._line(0.0, {**said, **more})

    def hello(self, now_s: float, conn: int, hello: Hello, who: str) -> None:
        said = {name: getattr(hello, name) for name in HELLO}
        self._line(now_s, {"conn": conn, "from": who, "hello": said})

    def said(self, now_s: float, conn: int, lines: Iterable[bytes | bytearray]) -> None:
        """Log the lines that a host has sent, each of which is a message."""
        self._add(self._begin(now_s) + b',"conn":%d,"lines":[%b]}\n' % (conn, b",".join(lines)))

    def gone(self, now_s: float, conn: int) -> None:
        self._add(self._begin(now_s) + b',"conn":%d,"gone":true}\n' % conn)

    def constrained(self, now_s: float, constraints: Constraints, reason: dict[str, Any]) -> None:
        """Log new constraints, and why they have changed: see `Server.constrain`."""
        self._line(now_s, {**reason, "constraints": _listed(constraints)})

    def reloaded(
        self,
        now_s: float,
        new: PathService,
        hash_name: str | None,
        constraints: Constraints,
        who: str,
        groups: Listed | None = None,
    ) -> None:
        """Log that a new service has taken over: see `sdn.path_service.succession`. `groups` are those it has."""
        said = {"who": who, "reload": True, "options": asdict(new.options), "hash": hash_name}
        if groups is not None:
            said["groups"] = msgspec.to_builtins(groups)
        self._line(now_s, {**said, "topology": dump_topology(new.topology), "constraints": _listed(constraints)})

    def refused(self, now_s: float, who: str, text: str) -> None:
        """Log that an operator's request was refused, or one who speaks for another's address."""
        self._line(now_s, {"who": who, "refused": text})

    def next_hops(self, now_s: float, groups: Listed) -> None:
        self._line(now_s, {"groups": msgspec.to_builtins(groups)})

    def tick(self, now_s: float) -> None:
        self._add(self._begin(now_s) + b',"tick":true}\n')

    def prepared(self, now_s: float, count: int) -> None:
        self._add(self._begin(now_s) + b',"prepared":%d}\n' % count)

    def sends(self, sends: Sends) -> None:
        """Count messages, which `sent` logs now and then."""
        self._digest.add(sends)

    def answered(self, now_s: float, done: Done) -> None:
        """Log the lines that native code has answered, and count the answers."""
        for conn, lines in done.said:
            self.said(now_s, conn, (lines,))
        self._digest.add_native(done.answers, done.counted)

    def sent(self, now_s: float) -> None:
        """Log how many messages there were so far, and their sum, if there were any since the last time."""
        if self._digest.count > self._told:
            self._told = self._digest.count
            self._line(now_s, {"sent": self._digest.count, "sum": self._digest.sum})

    def _line(self, now_s: float, entry: dict[str, Any]) -> None:
        text = json.dumps(entry, separators=(",", ":")).encode()
        self._add(self._begin(now_s) + b"," + text[1:] + b"\n")

    def _begin(self, now_s: float) -> bytes:
        wall = self._clock()
        second = int(wall)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        return b'{"at":"%b.%06dZ","t":%.6f' % (self._text, int((wall - second) * 1e6), now_s)


def _listed(constraints: Constraints) -> dict[str, Any]:
    pins = [[*ends, list(map(_names, via))] for ends, via in constraints.pins.items()]
    return {"dead": _names(constraints.dead), "drained": _names(constraints.drained), "pins": pins}


def _names(links: Iterable[Link]) -> list[str]:
    return sorted(str(link.a) for link in links)
