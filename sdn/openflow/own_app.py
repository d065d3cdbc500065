# SPDX-License-Identifier: Apache-2.0
"""An os-ken app of the user's in place of ours, as a process with the events of `sdn.openflow.app`.

    python -m sdn.openflow.own_app FILE --topology FILE --port N

The app is loaded as `osken-manager FILE` loads it. It finds the name of the topology's file in the environment variable
PARALET_TOPOLOGY. What it prints goes to the log, like its standard error. Events are those of `sdn.openflow.app`
without "steered"; "ready", "dead" and "links" come from a watcher, a second app beside the user's.

**When the watcher says that switches are ready, or have followed a link.** The user's app does not say when it has done
its work, so the watcher asks it and the switches. It sends a barrier to each switch: when that is answered, the event
that the watcher has seen is in the queue of the user's app, too. Then it puts an event of its own into that queue: when
that one's turn comes, the app has handled everything before it, and its messages are on their way. Then a second
barrier to each switch confirms those messages. Work that an app puts off, in a thread of its own or after a reply of a
switch that it asks for itself, is not waited for.
"""

import argparse
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from os_ken.base.app_manager import OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.event import EventBase
from os_ken.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls

from netmodel import Link, PortRef, Topology, load_topology
from netmodel.printable import printable
from sdn.openflow import runtime
from sdn.openflow.messages import Datapath, barrier, error_text, port_is_down
from sdn.openflow.runtime import announce, guarded, reported

TOPOLOGY_VARIABLE = "PARALET_TOPOLOGY"
"""The environment variable that has the name of the topology's file for the user's app."""

_log = logging.getLogger("sdn")

_Phase: TypeAlias = Literal["idle", "seeing", "handling", "carrying out"]
"""What a round waits for: switches that answer the first barriers, the user's app, switches that answer the second."""


class EventHandled(EventBase):
    """All events before this one have been handled by the user's app."""


class Watcher(OSKenApp):
    """Announces when all switches are ready, and when links die or return. It changes nothing at the switches.

    Only os-ken's event thread of the watcher changes the state.
    """

    def __init__(self, *args: Any, topology: Topology, watched: OSKenApp, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._topology = topology
        self._watched = watched
        self._names = {switch.dpid: switch.name for switch in topology.switches if switch.role != "ocs"}
        self._switches: dict[str, Datapath] = {}
        self._down: set[PortRef] = set()
        self._phase: _Phase = "idle"
        self._awaiting: set[tuple[str, int]] = set()  # switches and their barriers
        self._again = False  # something has happened since the round began
        self._announced: frozenset[Link] | None = None  # dead links; None: not ready yet
        watched.register_handler(EventHandled, self._handled)

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    @guarded
    def on_features(self, event: Any) -> None:
        """A switch has connected: request the state of its ports."""
        datapath, dpid = event.msg.datapath, event.msg.datapath_id  # os-ken may set datapath.id after this event
        if (name := self._names.get(dpid)) is None:
            announce("error", detail=f"a switch with dpid {dpid:#x}, which is not in the topology, connected")
            return
        _log.info("%s connected (dpid %#x)", printable(name), dpid)
        self._switches[name] = datapath
        datapath.send_msg(datapath.ofproto_parser.OFPPortDescStatsRequest(datapath, 0))

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_port_descriptions(self, event: Any) -> None:
        """The state of a switch's ports, whoever asked for it."""
        for port in event.msg.body:
            self._note(event.msg.datapath, port, deleted=False)
        self._begin()

    @set_ev_cls(ofp_event.EventOFPPortStatus, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_port_status(self, event: Any) -> None:
        """A port went down, came up, appeared or vanished."""
        datapath = event.msg.datapath
        self._note(datapath, event.msg.desc, deleted=event.msg.reason == datapath.ofproto.OFPPR_DELETE)
        if self._announced is not None and self._dead != self._announced:
            announce("dead", dead=_ends(self._dead))
        self._begin()

    @set_ev_cls(ofp_event.EventOFPBarrierReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_barrier(self, event: Any) -> None:
        """A switch has carried out the messages before a barrier, which may be one of the user's app."""
        self._awaiting.discard((self._names.get(event.msg.datapath.id, ""), event.msg.xid))
        self._go_on()

    @set_ev_cls(EventHandled)
    @guarded
    def on_handled(self, _: EventHandled) -> None:
        """The user's app has handled all that the switches said before the first barriers."""
        self._ask("carrying out")

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    @guarded
    def on_error(self, event: Any) -> None:
        """Handle a switch's refusal of a message."""
        said = f"{self._names.get(event.msg.datapath.id, 'a switch')} refused a message: {error_text(event.msg)}"
        _log.error("%s", printable(said))
        announce("error", detail=said)

    @set_ev_cls(ofp_event.EventOFPStateChange, DEAD_DISPATCHER)
    @guarded
    def on_disconnect(self, event: Any) -> None:
        """A switch has disconnected. It answers no barrier; when it connects again a round begins."""
        name = self._names.get(event.datapath.id, "")
        if self._switches.get(name) is event.datapath:
            _log.warning("%s disconnected", printable(name))
            del self._switches[name]
            self._again = True
            self._awaiting = {awaited for awaited in self._awaiting if awaited[0] != name}
            self._go_on()

    @property
    def _dead(self) -> frozenset[Link]:
        return frozenset(link for link in self._topology.links if link.a in self._down or link.b in self._down)

    def _note(self, datapath: Datapath, port: Any, *, deleted: bool) -> None:
        name = self._names.get(datapath.id)
        if name is None or port.port_no > datapath.ofproto.OFPP_MAX:
            return
        reference = PortRef(name, port.port_no)
        down = deleted or port_is_down(datapath, port)
        (self._down.add if down else self._down.discard)(reference)

    def _begin(self) -> None:
        """Begin a round when all switches are there, or have one follow the current one."""
        if self._phase != "idle":
            self._again = True
        elif self._switches.keys() == set(self._names.values()):
            self._ask("seeing")

    def _ask(self, phase: _Phase) -> None:
        """Send a barrier to every switch."""
        self._phase = phase if self._switches else "idle"
        for name, datapath in self._switches.items():
            request = barrier(datapath)
            datapath.set_xid(request)
            self._awaiting.add((name, request.xid))
            datapath.send_msg(request)

    def _go_on(self) -> None:
        """Begin the next phase of the round when the barriers of this one are answered."""
        if self._awaiting:
            return
        if self._phase == "seeing":
            self._phase = "handling"
            self._watched.send_event(self._watched.name, EventHandled())
        elif self._phase == "carrying out":
            self._phase = "idle"
            if self._again:
                self._again = False
                self._begin()
            else:
                self._settled()

    def _settled(self) -> None:
        """The switches have carried out what the user's app has answered to all that happened."""
        dead = self._dead
        if self._announced is None:
            announce("ready", switches=len(self._switches), dead=_ends(dead))
        elif dead != self._announced:
            announce("links", dead=_ends(dead), switches=[])
        self._announced = dead

    def _handled(self, _: EventBase) -> None:
        """The turn of `EventHandled` in the thread of the user's app."""
        self.send_event(self.name, EventHandled())


def _ends(links: Iterable[Link]) -> list[tuple[str, str]]:
    return sorted((str(link.a), str(link.b)) for link in links)


def _announced(handler: Callable[[Any], None]) -> Callable[[Any], None]:
    """A handler of the user's app, whose exceptions would end os-ken's thread in silence."""

    @functools.wraps(handler)  # os-ken looks at its attributes
    def wrapper(event: Any) -> None:
        with reported(handler.__name__):
            handler(event)

    return wrapper


def serve(file: Path, topology_file: Path, port: int) -> None:
    """Start the user's app, the watcher and os-ken's listener; their threads continue.

    Raises ValueError for a file without an app, and as `load_topology` and `runtime.configure`.
    """
    topology = load_topology(topology_file)
    os.environ[TOPOLOGY_VARIABLE] = str(topology_file.absolute())
    manager = runtime.configure(port)
    try:
        manager.load_apps([str(file), "os_ken.controller.ofp_handler"])
    except Exception as error:  # whatever the user's code raises
        _log.exception("%s cannot be loaded", printable(file))
        raise ValueError(f"{file} cannot be loaded: {error!r}") from error
    if str(file) not in manager.applications_cls:
        raise ValueError(f"{file} has no os-ken app, that is no class derived from os_ken.base.app_manager.OSKenApp")
    contexts = manager.create_contexts()
    # The watcher starts before the listener, so that it sees the first switch that connects.
    watched = manager.instantiate(manager.applications_cls.pop(str(file)), **contexts)
    for event, handlers in watched.event_handlers.items():
        watched.event_handlers[event] = [_announced(handler) for handler in handlers]
    manager.instantiate(Watcher, topology=topology, watched=watched)
    manager.instantiate_apps(**contexts)


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m sdn.openflow.own_app", description="Run an os-ken app of your own."
    )
    parser.add_argument("app", type=Path, help="Python file with an os-ken app")
    parser.add_argument("--topology", required=True, type=Path, help="topology file (YAML)")
    parser.add_argument("--port", required=True, type=int, help=f"TCP port to listen on, at {runtime.LISTEN_ADDRESS}")
    arguments = parser.parse_args()
    sys.stdout = sys.stderr  # what the user's app prints is no event

    def start() -> int:
        serve(arguments.app, arguments.topology, arguments.port)
        return int(arguments.port)

    return runtime.run(
        "sdn.openflow.own_app", start, lambda _: announce("error", detail=f"{arguments.app} takes no steering")
    )


if __name__ == "__main__":
    runtime.leave(main())
