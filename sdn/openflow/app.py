# SPDX-License-Identifier: Apache-2.0
"""The OpenFlow app: an os-ken app that programs the switches of one topology. Run as a process of its own.

    python -m sdn.openflow.app --topology FILE --port N [--pinning hash|rules]

It listens on 127.0.0.1:N and speaks OpenFlow 1.5. With `--pinning rules` switches look at bits of UDP source ports
(`sdn.openflow.source_rules`) before they hash. Standard output carries one JSON object per line:

    {"event": "listening", "port": N}: switches can connect
    {"event": "ready", "switches": n, "routes": n, "groups": n, "dead": [..]}: every switch is programmed (barrier seen)
    {"event": "dead", "dead": [["leaf1:5", "spine1:1"], ..]}: these links are dead now; switches are about to be changed
    {"event": "links", "dead": [["leaf1:5", "spine1:1"], ..], "switches": [..]}: the routes of those switches have been
        changed, and avoid these dead links
    {"event": "steered", "switches": [..]}: a steering request has been carried out by those switches
    {"event": "error", "detail": "..."}: a switch refused something, or a bug

Standard input takes requests, one JSON object per line (`steering.Steer`); standard error is the log. SIGTERM and
SIGINT end it with status 0; a wrong argument ends it with one sentence and status 2.

os-ken runs an app's handlers one after the other in one thread of its own, which ends silently at the first exception;
so `@guarded` reports exceptions of handlers, and the thread continues.
"""

import argparse
import functools
import json
import logging
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from os_ken import cfg
from os_ken.base.app_manager import AppManager, OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.event import EventBase
from os_ken.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.ofproto import ofproto_v1_5
from pydantic import ValidationError

from netmodel import Link, PortRef, Topology, links_with_circuits, load_topology, with_circuits
from netmodel.printable import printable
from sdn.openflow import messages as openflow
from sdn.openflow.program import EMPTY, Program, difference, programs
from sdn.openflow.source_rules import Pinning
from sdn.openflow.steering import Steer

LISTEN_ADDRESS = "127.0.0.1"
_LISTEN_TIMEOUT_S = 10.0
_OFPP_MAX = 0xFFFFFF00
_LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
_log = logging.getLogger("sdn")


def announce(event: str, **fields: object) -> None:
    """Write one event line to standard output."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def guarded(handler: "Callable[[FabricApp, Any], None]") -> "Callable[[FabricApp, Any], None]":
    """A handler whose exceptions are logged and announced instead of ending os-ken's event thread."""

    @functools.wraps(handler)
    def wrapper(app: "FabricApp", event: Any) -> None:
        try:
            handler(app, event)
        except Exception as error:
            _log.exception("handler %s failed", printable(handler.__name__))
            announce("error", detail=f"handler {handler.__name__} failed: {error!r}")

    return wrapper


class EventSteer(EventBase):
    """A steering request, passed into os-ken's event thread."""

    def __init__(self, request: Steer) -> None:
        super().__init__()
        self.request = request


@dataclass(slots=True)
class _Connection:
    """A connected switch, and the program that it has, or will have when the barriers in `awaiting` are answered."""

    name: str
    datapath: openflow.Datapath
    program: Program = EMPTY
    awaiting: set[int] = field(default_factory=set)
    ports_known: bool = False

    @property
    def settled(self) -> bool:
        """Whether the switch has confirmed all changes."""
        return self.ports_known and not self.awaiting


class FabricApp(OSKenApp):
    """Programs every switch of one topology, and reprograms them when links fail or recover.

    Only os-ken's event thread changes the state.
    """

    OFP_VERSIONS = [ofproto_v1_5.OFP_VERSION]  # noqa: RUF012 - os-ken reads the class attribute

    def __init__(self, *args: Any, topology: Topology, pinning: Pinning, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._topology = topology
        self._pinning: Pinning = pinning
        self._names = {switch.dpid: switch.name for switch in topology.switches}
        self._connections: dict[str, _Connection] = {}
        self._down: set[PortRef] = set()
        self._request = Steer(steer=None)
        self._expected = frozenset(self._programs(self._request))
        self._changed: set[str] = set()  # switches changed because of links, not announced yet
        self._ready = False
        self._announced_dead: frozenset[Link] = frozenset()
        self._known_dead: frozenset[Link] = frozenset()
        self._steered: set[str] | None = None  # switches changed because of steering, not announced yet

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    @guarded
    def on_features(self, event: Any) -> None:
        """A switch has connected: delete its state, add the rules of its base, and request the state of its ports."""
        datapath = event.msg.datapath
        name = self._names.get(datapath.id)
        if name is None:
            _log.warning("switch with unknown dpid %#x refused", datapath.id)
            announce("error", detail=f"a switch with dpid {datapath.id:#x}, which is not in the topology, connected")
            return
        _log.info("%s connected (dpid %#x)", printable(name), datapath.id)
        connection = self._connections[name] = _Connection(name, datapath)
        full = self._programs(self._request)[name] if name in self._expected else EMPTY
        self._send(connection, (*openflow.wipe(datapath), *openflow.base(datapath, full)))
        datapath.send_msg(openflow.describe_ports(datapath))

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_port_descriptions(self, event: Any) -> None:
        """The state of every port of a switch that has just connected, possibly in several parts."""
        connection = self._connection_of(event.msg.datapath)
        if connection is None:
            return
        for port in event.msg.body:
            self._note_port(connection, port, deleted=False)
        if not event.msg.flags & ofproto_v1_5.OFPMPF_REPLY_MORE:
            connection.ports_known = True
            self._update()

    @set_ev_cls(ofp_event.EventOFPPortStatus, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_port_status(self, event: Any) -> None:
        """A port went down, came up, appeared or vanished."""
        message = event.msg
        connection = self._connection_of(message.datapath)
        if connection is None:
            return
        self._note_port(connection, message.desc, deleted=message.reason == ofproto_v1_5.OFPPR_DELETE)
        if connection.ports_known:
            self._update()

    @set_ev_cls(ofp_event.EventOFPBarrierReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_barrier(self, event: Any) -> None:
        """A switch has carried out the messages before a barrier."""
        connection = self._connection_of(event.msg.datapath)
        if connection is not None:
            connection.awaiting.discard(event.msg.xid)
            self._announce_progress()

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_error(self, event: Any) -> None:
        """Handle a switch's refusal of a message."""
        name = self._names.get(event.msg.datapath.id, "a switch")
        text = openflow.error_text(event.msg)
        _log.error("%s refused a message: %s", printable(name), printable(text))
        announce("error", detail=f"{name} refused a message: {text}")

    @set_ev_cls(ofp_event.EventOFPStateChange, DEAD_DISPATCHER)
    @guarded
    def on_disconnect(self, event: Any) -> None:
        """A switch has disconnected. It forwards as before; when it connects again it is programmed from scratch."""
        connection = self._connection_of(event.datapath)
        if connection is not None:
            _log.warning("%s disconnected", printable(connection.name))
            del self._connections[connection.name]

    @set_ev_cls(EventSteer)
    @guarded
    def on_steer(self, event: EventSteer) -> None:
        """Handle a request for another steering."""
        self._programs(event.request)  # raises ValueError before anything changes
        self._request, self._steered = event.request, set()
        self._update()

    def _connection_of(self, datapath: openflow.Datapath) -> _Connection | None:
        """The state of a datapath; None when the switch is unknown or has connected again since."""
        connection = self._connections.get(self._names.get(datapath.id, ""))
        return connection if connection is not None and connection.datapath is datapath else None

    def _note_port(self, connection: _Connection, port: Any, *, deleted: bool) -> None:
        if port.port_no >= _OFPP_MAX:
            return
        reference = PortRef(connection.name, port.port_no)
        if deleted or openflow.port_is_down(connection.datapath, port):
            if reference not in self._down:
                _log.info("port %s is down", printable(reference))
            self._down.add(reference)
        else:
            if reference in self._down:
                _log.info("port %s is up", printable(reference))
            self._down.discard(reference)

    def _programs(self, request: Steer) -> dict[str, Program]:
        """The programs for a steering request and the links that are alive."""
        seen = with_circuits(self._topology, request.circuits)
        dead = links_with_circuits(self._topology, request.circuits, self._dead_links())
        return programs(seen, dead, self._pinning, request.steer)

    def _dead_links(self) -> frozenset[Link]:
        return frozenset(link for link in self._topology.links if link.a in self._down or link.b in self._down)

    def _update(self) -> None:
        """Change every connected switch to the program for the links that are alive now."""
        dead = self._dead_links()
        if self._ready and dead != self._known_dead:
            announce("dead", dead=_ends(dead))  # before switches change, so that hosts can move at once
        self._known_dead = dead
        wanted = self._programs(self._request)
        for connection in self._connections.values():
            if not connection.ports_known or connection.name not in wanted:
                continue
            steps = difference(connection.program, wanted[connection.name])
            connection.program = wanted[connection.name]
            if steps:
                (self._changed if self._steered is None else self._steered).add(connection.name)
                self._send(connection, openflow.change(connection.datapath, steps))
        self._announce_progress()

    def _send(self, connection: _Connection, messages: Iterable[openflow.Message]) -> None:
        """Send messages and a barrier that confirms them."""
        datapath = connection.datapath
        for message in messages:
            datapath.send_msg(message)
        last = openflow.barrier(datapath)
        datapath.set_xid(last)
        connection.awaiting.add(last.xid)
        datapath.send_msg(last)

    def _announce_progress(self) -> None:
        """Announce readiness, link changes and steering when the switches concerned have confirmed them."""
        if not all(connection.settled for connection in self._connections.values()):
            return
        if not self._ready:
            if self._expected <= self._connections.keys():
                self._ready = True
                held = [connection.program for connection in self._connections.values()]
                announce(
                    "ready",
                    switches=len(held),
                    routes=sum(len(program.routes) for program in held),
                    groups=sum(len(program.groups) for program in held),
                    dead=_ends(self._dead_links()),
                )
                self._announced_dead = self._dead_links()
        else:
            self._announce_links()
        if self._steered is not None:
            announce("steered", switches=sorted(self._steered))
            self._steered = None

    def _announce_links(self) -> None:
        dead = self._dead_links()
        if dead != self._announced_dead:
            self._announced_dead = dead
            changed = ", ".join(sorted(self._changed)) or "none"
            _log.info("dead links %s; changed switches: %s", printable(_ends(dead)), printable(changed))
            announce("links", dead=_ends(dead), switches=sorted(self._changed))
        self._changed.clear()


def _ends(links: Iterable[Link]) -> list[tuple[str, str]]:
    return sorted((str(link.a), str(link.b)) for link in links)


def serve(topology: Topology, port: int, pinning: Pinning = "hash") -> FabricApp:
    """Start os-ken's listener and the app for `topology`, which is returned at once; os-ken's threads continue.

    Raises OSError when the port is in use: os-ken's own listener thread would end without a report.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LISTEN_ADDRESS, port))
    cfg.CONF(
        args=["--ofp-tcp-listen-port", str(port), "--ofp-listen-host", LISTEN_ADDRESS], project="paralet", version=""
    )
    manager = AppManager.get_instance()
    manager.load_apps(["os_ken.controller.ofp_handler"])
    # Apps start in this order: ours before the listener, so that it handles the first switch that connects.
    app: FabricApp = manager.instantiate(FabricApp, topology=topology, pinning=pinning)
    manager.instantiate_apps(**manager.create_contexts())
    return app


def _await_listener(port: int) -> None:
    """Wait until os-ken's listener thread listens. Raises OSError when it does not within _LISTEN_TIMEOUT_S.

    It reads the kernel's table of sockets, because os-ken would take a trial connection for a switch.
    """
    deadline = time.monotonic() + _LISTEN_TIMEOUT_S
    listening = re.compile(rf"^ *\d+: 0100007F:{port:04X} \S+ 0A ", re.MULTILINE)
    while not listening.search(Path("/proc/net/tcp").read_text()):
        if time.monotonic() > deadline:
            raise OSError(f"nothing listens on {LISTEN_ADDRESS}:{port} after {_LISTEN_TIMEOUT_S:.0f} s")
        time.sleep(0.01)


def _thread_died(arguments: threading.ExceptHookArgs) -> None:
    """Reports an uncaught exception in a thread of os-ken, which would end without a report."""
    _log.error("thread %s died", printable(arguments.thread), exc_info=arguments.exc_value)
    announce("error", detail=f"a thread of os-ken died: {arguments.exc_value!r}")


def _stop_signals() -> int:
    """A descriptor from which the number of each SIGTERM or SIGINT can be read.

    Signal masks and sigwait do not work here: threads that numpy starts when it is imported receive signals too.
    """
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    return read_end


def _take_requests(app: FabricApp, stopping: int) -> None:
    """Pass requests from standard input to `app` until `stopping` can be read."""
    waiting: list[int] = [stopping, 0]
    unread = b""
    while stopping not in (ready := select.select(waiting, [], [])[0]):
        if not (read := os.read(ready[0], 1 << 16)):
            waiting.remove(0)  # end of input: no more requests
        *lines, unread = (unread + read).split(b"\n")
        for line in lines:
            try:
                request = Steer.model_validate_json(line)
            except ValidationError as error:
                announce("error", detail=f"a steering request is wrong: {error.errors()[0]['msg']}")
            else:
                app.send_event(app.name, EventSteer(request))


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m sdn.openflow.app", description="Program a topology's switches.")
    parser.add_argument("--topology", required=True, help="topology file (YAML)")
    parser.add_argument("--port", required=True, type=int, help=f"TCP port to listen on, at {LISTEN_ADDRESS}")
    parser.add_argument(
        "--pinning", choices=get_args(Pinning), default="hash", help="what source ports choose paths by (%(default)s)"
    )
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_LOG_FORMAT, datefmt="%H:%M:%S")
    threading.excepthook = _thread_died
    stopping = _stop_signals()
    try:
        topology = load_topology(arguments.topology)
        if not 1 <= arguments.port <= 65535:
            raise ValueError(f"port {arguments.port} is not in 1..65535")
        programs(topology, pinning=arguments.pinning)  # a ValueError here, not in a thread of os-ken
        app = serve(topology, arguments.port, arguments.pinning)
        _await_listener(arguments.port)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"sdn.openflow.app: {printable(error)}\n")
        return 2
    _log.info("listening on %s:%d for %d switches", LISTEN_ADDRESS, arguments.port, len(topology.switches))
    announce("listening", port=arguments.port)
    _take_requests(app, stopping)
    _log.info("%s received, stopping", printable(signal.Signals(os.read(stopping, 1)[0]).name))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # os-ken's listener and datapath threads are not daemons and would keep the process alive
