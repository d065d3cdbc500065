# SPDX-License-Identifier: Apache-2.0
"""The controller: an os-ken app that programs the switches of one topology. Run as a process of its own.

    python -m sdn.app --topology FILE --port N

It listens on 127.0.0.1:N and speaks OpenFlow 1.5. Standard output carries one JSON object per line:

    {"event": "listening", "port": N}: switches can connect
    {"event": "ready", "switches": n, "routes": n, "groups": n, "dead": [..]}: every switch is programmed (barrier seen)
    {"event": "links", "dead": [["leaf1:5", "spine1:1"], ..], "switches": [..]}: the routes of those switches have been
        changed, and go round these dead links
    {"event": "error", "detail": "..."}: a switch refused something, or a bug

and standard error is the log. SIGTERM and SIGINT end it with status 0; a wrong argument is one sentence and status 2.

os-ken runs an app's handlers one after the other in one thread of its own, which ends silently at the first exception;
so `@guarded` reports whatever a handler raises, and goes on.
"""

import argparse
import functools
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from os_ken import cfg
from os_ken.base.app_manager import AppManager, OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.ofproto import ofproto_v1_5

from netmodel import Link, PortRef, Topology, load_topology
from sdn import openflow
from sdn.program import EMPTY, Program, difference, programs

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
            _log.exception("handler %s failed", handler.__name__)
            announce("error", detail=f"handler {handler.__name__} failed: {error!r}")

    return wrapper


@dataclass(slots=True)
class _Connection:
    """A connected switch: what it holds (or will, when the barriers in `awaiting` are answered)."""

    name: str
    datapath: openflow.Datapath
    program: Program = EMPTY
    awaiting: set[int] = field(default_factory=set)
    ports_known: bool = False

    @property
    def settled(self) -> bool:
        """Whether the switch has confirmed all that it was told."""
        return self.ports_known and not self.awaiting


class FabricApp(OSKenApp):
    """Programs every switch of one topology and keeps the programs in step with the links that are alive.

    All state is changed in os-ken's event thread only.
    """

    OFP_VERSIONS = [ofproto_v1_5.OFP_VERSION]  # noqa: RUF012 - os-ken reads the class attribute

    def __init__(self, *args: Any, topology: Topology, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._topology = topology
        self._names = {switch.dpid: switch.name for switch in topology.switches}
        self._expected = frozenset(programs(topology))
        self._connections: dict[str, _Connection] = {}
        self._down: set[PortRef] = set()
        self._changed: set[str] = set()  # switches told of link changes that are not announced yet
        self._ready = False
        self._announced_dead: frozenset[Link] = frozenset()

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    @guarded
    def on_features(self, event: Any) -> None:
        """A switch has connected: empty it, put its base in, and ask for the state of its ports."""
        datapath = event.msg.datapath
        name = self._names.get(datapath.id)
        if name is None:
            _log.warning("switch with unknown dpid %#x refused", datapath.id)
            announce("error", detail=f"a switch with dpid {datapath.id:#x}, which is not in the topology, connected")
            return
        _log.info("%s connected (dpid %#x)", name, datapath.id)
        connection = self._connections[name] = _Connection(name, datapath)
        full = programs(self._topology)[name] if name in self._expected else EMPTY
        self._send(connection, (*openflow.wipe(datapath), *openflow.base(datapath, full)))
        datapath.send_msg(openflow.describe_ports(datapath))

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_port_descriptions(self, event: Any) -> None:
        """The state of every port of a switch that has just connected, maybe in several parts."""
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
        """A switch has done what came before the barrier."""
        connection = self._connection_of(event.msg.datapath)
        if connection is not None:
            connection.awaiting.discard(event.msg.xid)
            self._announce_progress()

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_error(self, event: Any) -> None:
        """A switch refused a message."""
        name = self._names.get(event.msg.datapath.id, "a switch")
        text = openflow.error_text(event.msg)
        _log.error("%s refused a message: %s", name, text)
        announce("error", detail=f"{name} refused a message: {text}")

    @set_ev_cls(ofp_event.EventOFPStateChange, DEAD_DISPATCHER)
    @guarded
    def on_disconnect(self, event: Any) -> None:
        """A switch is gone; it forwards as it last was told, and is emptied and programmed anew when it is back."""
        connection = self._connection_of(event.datapath)
        if connection is not None:
            _log.warning("%s disconnected", connection.name)
            del self._connections[connection.name]

    def _connection_of(self, datapath: openflow.Datapath) -> _Connection | None:
        """The state of a datapath, unless the switch has connected anew since, or is unknown."""
        connection = self._connections.get(self._names.get(datapath.id, ""))
        return connection if connection is not None and connection.datapath is datapath else None

    def _note_port(self, connection: _Connection, port: Any, *, deleted: bool) -> None:
        if port.port_no >= _OFPP_MAX:
            return
        reference = PortRef(connection.name, port.port_no)
        if deleted or openflow.port_is_down(connection.datapath, port):
            if reference not in self._down:
                _log.info("port %s is down", reference)
            self._down.add(reference)
        else:
            if reference in self._down:
                _log.info("port %s is up", reference)
            self._down.discard(reference)

    def _dead_links(self) -> frozenset[Link]:
        return frozenset(link for link in self._topology.links if link.a in self._down or link.b in self._down)

    def _update(self) -> None:
        """Bring every connected switch to the program for the links that are alive now."""
        wanted = programs(self._topology, self._dead_links())
        for connection in self._connections.values():
            if not connection.ports_known or connection.name not in wanted:
                continue
            steps = difference(connection.program, wanted[connection.name])
            connection.program = wanted[connection.name]
            if steps:
                self._changed.add(connection.name)
                self._send(connection, openflow.change(connection.datapath, steps))
        self._announce_progress()

    def _send(self, connection: _Connection, messages: Iterable[openflow.Message]) -> None:
        """Send messages and a barrier whose answer settles the switch."""
        datapath = connection.datapath
        for message in messages:
            datapath.send_msg(message)
        last = openflow.barrier(datapath)
        datapath.set_xid(last)
        connection.awaiting.add(last.xid)
        datapath.send_msg(last)

    def _announce_progress(self) -> None:
        """Announce readiness once, and link changes once the switches that they concern have confirmed."""
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

    def _announce_links(self) -> None:
        dead = self._dead_links()
        if dead != self._announced_dead:
            self._announced_dead = dead
            _log.info("dead links %s; changed switches: %s", _ends(dead), ", ".join(sorted(self._changed)) or "none")
            announce("links", dead=_ends(dead), switches=sorted(self._changed))
        self._changed.clear()


def _ends(links: Iterable[Link]) -> list[tuple[str, str]]:
    return sorted((str(link.a), str(link.b)) for link in links)


def serve(topology: Topology, port: int) -> None:
    """Start os-ken's listener and the app for `topology`; returns at once, threads of os-ken go on.

    Raises OSError when the port is taken: os-ken's own listener thread would die unseen.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LISTEN_ADDRESS, port))
    cfg.CONF(
        args=["--ofp-tcp-listen-port", str(port), "--ofp-listen-host", LISTEN_ADDRESS], project="paralet", version=""
    )
    manager = AppManager.get_instance()
    manager.load_apps(["os_ken.controller.ofp_handler"])
    # instantiate_apps starts all apps in this order, ours before the listener, so that no switch finds it deaf.
    manager.instantiate(FabricApp, topology=topology)
    manager.instantiate_apps(**manager.create_contexts())


def _await_listener(port: int) -> None:
    """Return when os-ken's listener thread listens. Raises OSError when it does not in time.

    Looked up in the kernel's table: a trial connection would be taken for a switch.
    """
    deadline = time.monotonic() + _LISTEN_TIMEOUT_S
    listening = re.compile(rf"^ *\d+: 0100007F:{port:04X} \S+ 0A ", re.MULTILINE)
    while not listening.search(Path("/proc/net/tcp").read_text()):
        if time.monotonic() > deadline:
            raise OSError(f"nothing listens on {LISTEN_ADDRESS}:{port} after {_LISTEN_TIMEOUT_S:.0f} s")
        time.sleep(0.01)


def _thread_died(arguments: threading.ExceptHookArgs) -> None:
    """An exception nobody caught in a thread of os-ken: a connection's thread may end so, and must not unseen."""
    _log.error("thread %s died", arguments.thread, exc_info=arguments.exc_value)
    announce("error", detail=f"a controller thread died: {arguments.exc_value!r}")


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m sdn.app", description="Program the switches of a topology.")
    parser.add_argument("--topology", required=True, help="topology file (YAML)")
    parser.add_argument("--port", required=True, type=int, help=f"TCP port to listen on, at {LISTEN_ADDRESS}")
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_LOG_FORMAT, datefmt="%H:%M:%S")
    threading.excepthook = _thread_died
    # Blocked before any thread starts, so that every thread inherits it and only sigwait below sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        topology = load_topology(arguments.topology)
        if not 1 <= arguments.port <= 65535:
            raise ValueError(f"port {arguments.port} is not in 1..65535")
        serve(topology, arguments.port)
        _await_listener(arguments.port)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"sdn.app: {error}\n")
        return 2
    _log.info("listening on %s:%d for %d switches", LISTEN_ADDRESS, arguments.port, len(topology.switches))
    announce("listening", port=arguments.port)
    received = signal.sigwait({signal.SIGTERM, signal.SIGINT})
    _log.info("%s received, stopping", signal.Signals(received).name)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # os-ken's listener and datapath threads are not daemons and would keep the process alive
