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
SIGINT end it with status 0; a wrong argument ends it with one sentence and status 2 (`sdn.openflow.runtime`).
"""

import argparse
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

from os_ken.base.app_manager import OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.event import EventBase
from os_ken.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.ofproto import ofproto_v1_5
from pydantic import ValidationError

from netmodel import Link, PortRef, Topology, links_with_circuits, load_topology, with_circuits
from netmodel.printable import printable
from sdn.openflow import messages as openflow
from sdn.openflow import runtime
from sdn.openflow.program import EMPTY, Program, difference, programs
from sdn.openflow.runtime import announce, guarded
from sdn.openflow.source_rules import Pinning
from sdn.openflow.steering import Steer

_OFPP_MAX = 0xFFFFFF00
_log = logging.getLogger("sdn")


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
        datapath, dpid = event.msg.datapath, event.msg.datapath_id  # os-ken may set datapath.id after this event
        name = self._names.get(dpid)
        if name is None:
            _log.warning("switch with unknown dpid %#x refused", dpid)
            announce("error", detail=f"a switch with dpid {dpid:#x}, which is not in the topology, connected")
            return
        _log.info("%s connected (dpid %#x)", printable(name), dpid)
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

    Raises ValueError where `pinning` does not serve the topology, and as `runtime.configure`.
    """
    manager = runtime.configure(port)
    programs(topology, pinning=pinning)  # a ValueError here, not in a thread of os-ken
    manager.load_apps(["os_ken.controller.ofp_handler"])
    # Apps start in this order: ours before the listener, so that it handles the first switch that connects.
    app: FabricApp = manager.instantiate(FabricApp, topology=topology, pinning=pinning)
    manager.instantiate_apps(**manager.create_contexts())
    return app


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m sdn.openflow.app", description="Program a topology's switches.")
    parser.add_argument("--topology", required=True, help="topology file (YAML)")
    parser.add_argument("--port", required=True, type=int, help=f"TCP port to listen on, at {runtime.LISTEN_ADDRESS}")
    parser.add_argument(
        "--pinning", choices=get_args(Pinning), default="hash", help="what source ports choose paths by (%(default)s)"
    )
    arguments = parser.parse_args()
    app: FabricApp

    def start() -> int:
        nonlocal app
        app = serve(load_topology(arguments.topology), arguments.port, arguments.pinning)
        return int(arguments.port)

    def take(line: bytes) -> None:
        try:
            request = Steer.model_validate_json(line)
        except ValidationError as error:
            announce("error", detail=f"a steering request is wrong: {error.errors()[0]['msg']}")
        else:
            app.send_event(app.name, EventSteer(request))

    return runtime.run("sdn.openflow.app", start, take)


if __name__ == "__main__":
    runtime.leave(main())
