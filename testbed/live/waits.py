# SPDX-License-Identifier: Apache-2.0
"""Why messages do not move: who waits for whom, and where the chain of waits ends. Pure: dumps in, sentences out.

Both ends of a connection publish its names (`hostlib.stats.ConnectionSnapshot`), which join them. Processes are the
nodes of a graph with an edge to whom each waits for. A path that loses packets and a disagreement about tags are nodes
too. A chain ends at a node that waits for nobody, or in a cycle: that is the cause.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.stats import ConnectionSnapshot, DeviceSnapshot, LaneSnapshot, Process
from testbed.live.nccl_operations import RankOperations, states

if TYPE_CHECKING:
    import networkx as nx

AFTER_S = 5.0
"""A message that has not moved for this time is stuck."""

_STOPPED = ("T", "t")
_PORTS_NAMED = 8


@dataclass(frozen=True, slots=True)
class Dump:
    """What `paralet stat --json` prints on one host. `clock_s` is the monotonic clock of that host at the time."""

    host: str
    clock_s: float
    processes: tuple[Process, ...]
    operations: tuple[RankOperations, ...] = ()
    """NCCL's, of processes that publish them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One process waits for one peer for one reason, on `connections` connections, at most for `seconds`."""

    waiter: str
    peer: str
    cause: str
    """``no-receive``, ``no-send``, ``tags``, ``advertisement``, ``lane-silent``, ``peer-silent``, ``held``,
    ``connecting`` or ``closing``."""
    connections: int
    seconds: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Cause:
    """Where chains of waits end. `waiting` processes wait for it, directly or not."""

    kind: str
    """``application``, ``stopped``, ``path``, ``silent``, ``tags``, ``held``, ``replaced``, ``unknown``, ``cycle``."""
    waiting: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All waits, the longest first, and their causes, that with the most waiting processes first."""

    waits: tuple[Wait, ...]
    causes: tuple[Cause, ...]
    moving: int
    """Connections with something under way that moved within the time."""
    notes: tuple[str, ...]
    """What limits the diagnosis, a sentence each."""
    operations: tuple[str, ...] = ()
    """Operations of NCCL that are late, a sentence each: they tell why connections are stuck, not that they are."""

    @property
    def stuck(self) -> bool:
        """Whether any process waits for longer than the limit."""
        return bool(self.causes)


@dataclass(frozen=True, slots=True)
class _Place:
    """A device in a dump."""

    dump: Dump
    process: Process
    device: DeviceSnapshot

    @property
    def key(self) -> Hashable:
        return "process", self.dump.host, self.process.pid

    @property
    def name(self) -> str:
        port = "" if self.device.udp_port == 4791 else f":{self.device.udp_port}"
        return f"{self.device.address}{port} (process {self.process.pid} on {self.dump.host})"

    @property
    def stopped(self) -> bool:
        return self.process.state in _STOPPED

    def age_s(self, since_s: float) -> float:
        return self.dump.clock_s - since_s


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why one connection waits. `on` is the node of the graph that it waits for."""

    place: _Place
    connection: ConnectionSnapshot
    cause: str
    on: Hashable
    text: str


@dataclass(frozen=True, slots=True)
class _Path:
    """A node of the graph: lanes from a device to a peer are silent. `proof`: why it is not the peer."""

    source: str
    target: str
    ports: tuple[int, ...]
    proof: str


@dataclass(frozen=True, slots=True)
class _Silent:
    """A node: a peer without a dump that answers nothing."""

    guid: str
    name: str


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A node: a peer without a dump."""

    guid: str
    name: str


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A node: a peer whose address another device has now."""

    guid: str
    name: str
    now: str


@dataclass(frozen=True, slots=True)
class _Tags:
    """A node: the oldest send and the oldest receive of a connection have different tags."""

    sender: str
    receiver: str
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class _Held:
    """A node: the device itself does not send."""

    name: str
    policy: str


def diagnose(dumps: Sequence[Dump], after_s: float = AFTER_S) -> Diagnosis:
    """Find what has not moved for `after_s` seconds, and why."""
    return _Diagnosing(dumps, after_s).diagnosis()


class _Diagnosing:
    def __init__(self, dumps: Sequence[Dump], after_s: float) -> None:
        self._after_s, self._dumps = after_s, dumps
        self._places = _latest(
            [
                _Place(dump, process, device)
                for dump in dumps
                for process in dump.processes
                for device in process.devices
            ]
        )
        self._ends = {
            (guid, connection.id): connection
            for guid, place in self._places.items()
            for connection in place.device.under_way
        }
        self._at = {(place.device.address, place.device.udp_port): place for place in self._places.values()}
        self._names = {place.key: place.name for place in self._places.values()}

    def diagnosis(self) -> Diagnosis:
        import networkx as nx  # here and below, because only `paralet stat --why` needs it

        reasons: list[_Reason] = []
        moving = 0
        graph: nx.DiGraph[Hashable] = nx.DiGraph()
        for place in self._places.values():
            for connection in place.device.under_way:
                if place.stopped:
                    graph.add_node(place.key)
                    continue
                if place.age_s(connection.progressed_s) < self._after_s:
                    moving += 1
                    continue
                found = list(self._reasons(place, connection))
                moving += not found
                reasons += found
        graph.add_edges_from((reason.place.key, reason.on) for reason in reasons)
        return Diagnosis(
            self._waits(reasons), self._causes(graph, reasons), moving, tuple(self._notes()), self._operations()
        )

    def _operations(self) -> tuple[str, ...]:
        ranks = [rank for dump in self._dumps for rank in dump.operations]
        return tuple(state.sentence for state in states(ranks, self._after_s) if state.late)

    # -- one connection --------------------------------------------------------------------------------------------

    def _reasons(self, place: _Place, connection: ConnectionSnapshot) -> Iterator[_Reason]:
        """Why a connection that has not moved waits; nothing if it is only slow."""
        peer = self._peer_name(connection)
        silent, others = self._lanes(place, connection)

        def because(cause: str, text: str, on: Hashable | None = None) -> _Reason:
            return _Reason(place, connection, cause, self._peer_node(connection) if on is None else on, text)

        if connection.state == "connecting":
            yield because("connecting", "the peer has not answered the handshake")
            return
        heard = connection.heard_s > 0 and place.age_s(connection.heard_s) < self._after_s
        alone = bool(connection.sends) and not connection.in_flight and not connection.receives
        if silent and not (alone and (others or heard)):
            yield because(*self._silence(place, connection, silent, others, heard))
            return
        if connection.in_flight and not others:
            text = f"{_some(connection.unposted, 'flowlet')} may be sent, but no lane takes them"
            yield because("held", text, _Held(place.name, place.device.policy))
        if connection.state == "closing":
            if not connection.in_flight:
                yield because("closing", "the peer has not answered the end of the connection")
            return
        far = self._ends.get((connection.peer_guid, connection.remote_id))
        if connection.sends:
            yield because(*self._unmatched(place, connection, far, peer))
        if connection.receives:
            receives = f"{_some(connection.receives, 'receive')}, the oldest with tag {connection.receive_tag},"
            if far is not None and far.sends and far.advertisements and not far.in_flight:
                tags = _Tags(peer, place.name, far.send_tag, connection.receive_tag)
                yield because("tags", f"{receives} found no send: the peer's oldest has tag {far.send_tag}", tags)
            elif far is not None and (far.in_flight or far.sends):
                yield because("no-send", f"the sends for {receives} do not arrive")
            else:
                yield because("no-send", f"the peer has sent nothing for {receives[:-1]}")

    def _unmatched(
        self, place: _Place, connection: ConnectionSnapshot, far: ConnectionSnapshot | None, peer: str
    ) -> tuple[str, str, Hashable | None]:
        """Cause, text and node of sends that were matched with no receive."""
        sends = f"{_some(connection.sends, 'send')}, the oldest with tag {connection.send_tag},"
        if connection.advertisements:
            tags = _Tags(place.name, peer, connection.send_tag, connection.advertised_tag)
            return "tags", f"{sends} found no receive: the peer's oldest has tag {connection.advertised_tag}", tags
        if connection.early or (far is not None and far.receives and self._old(connection, far)):
            text = f"{sends} found no receive: the peer has posted one, but its advertisement did not arrive"
            if self._stopped(connection):
                return "advertisement", text, None
            proof = "receives were posted there, and their advertisements do not arrive"
            return "advertisement", text, _Path(peer, place.name, self._silent_ports(connection), proof)
        return "no-receive", f"{sends} found no receive: the peer has posted none", None

    def _lanes(self, place: _Place, connection: ConnectionSnapshot) -> tuple[list[LaneSnapshot], list[LaneSnapshot]]:
        """The lanes to the peer with posted work: those that are silent, and those that go on."""
        busy = [lane for lane in place.device.lanes if lane.peer == connection.peer and lane.waiting_since_s]
        silent = [lane for lane in busy if place.age_s(lane.waiting_since_s) >= self._after_s]
        return silent, [lane for lane in busy if lane not in silent]

    def _silence(
        self,
        place: _Place,
        connection: ConnectionSnapshot,
        silent: list[LaneSnapshot],
        others: list[LaneSnapshot],
        heard: bool,
    ) -> tuple[str, str, Hashable]:
        """Cause, text and node of lanes on which nothing is acknowledged."""
        ports = tuple(sorted(lane.port for lane in silent))
        what = f"{_some(connection.posted, 'flowlet')} on" if connection.posted else "what was sent on"
        text = f"{what} {_some(len(silent), 'lane')} ({_ports(ports)}) got no acknowledgement"
        if others:
            text += f", while {_go_on(len(others))}"
        if connection.unposted:
            text += f", and {_some(connection.unposted, 'flowlet')} more wait because the lanes' windows are full"
        node = self._peer_node(connection)
        known = connection.peer_guid in self._places
        if others:
            proof = _go_on(len(others))
        elif heard:
            proof = "the peer's packets arrive"
        else:
            proof = "the process there runs, so the network or a packet filter drops them"
        if others or heard or (known and not self._stopped(connection)):
            node = _Path(place.name, self._peer_name(connection), ports, proof)
        elif isinstance(node, _Unknown):
            node = _Silent(node.guid, node.name)
        return "lane-silent" if others or heard else "peer-silent", text, node

    def _old(self, connection: ConnectionSnapshot, far: ConnectionSnapshot) -> bool:
        """Whether the far end, too, has not moved. Dumps are not taken at the same moment."""
        return self._places[connection.peer_guid].age_s(far.progressed_s) >= self._after_s

    def _stopped(self, connection: ConnectionSnapshot) -> bool:
        place = self._places.get(connection.peer_guid)
        return place is not None and place.stopped

    def _silent_ports(self, connection: ConnectionSnapshot) -> tuple[int, ...]:
        """Ports of the peer's lanes towards this end that are silent."""
        place = self._places.get(connection.peer_guid)
        back = None if place is None else self._ends.get((connection.peer_guid, connection.remote_id))
        if place is None or back is None:
            return ()
        return tuple(sorted(lane.port for lane in self._lanes(place, back)[0]))

    def _peer_node(self, connection: ConnectionSnapshot) -> Hashable:
        place = self._places.get(connection.peer_guid)
        if place is not None:
            return place.key
        name = self._peer_name(connection)
        instead = self._at.get((connection.peer, connection.peer_port))
        return (
            _Unknown(connection.peer_guid, name)
            if instead is None
            else _Replaced(connection.peer_guid, name, instead.name)
        )

    def _peer_name(self, connection: ConnectionSnapshot) -> str:
        place = self._places.get(connection.peer_guid)
        if place is not None:
            return place.name
        return f"{connection.peer}{f':{connection.peer_port}' if connection.peer_port not in (0, 4791) else ''}"

    # -- all together ----------------------------------------------------------------------------------------------

    def _waits(self, reasons: Sequence[_Reason]) -> tuple[Wait, ...]:
        """Reasons of one process, peer and kind together; the longest speaks for all."""
        groups: dict[Hashable, list[_Reason]] = {}
        for reason in reasons:
            key = reason.place.key, reason.connection.peer_guid, reason.connection.peer, reason.cause
            groups.setdefault(key, []).append(reason)
        waits = []
        for group in groups.values():
            oldest = min(group, key=lambda reason: reason.connection.progressed_s)
            seconds = oldest.place.age_s(oldest.connection.progressed_s)
            waiter, peer = oldest.place.name, self._peer_name(oldest.connection)
            on = f" on {len(group)} connections" if len(group) > 1 else ""
            sentence = f"{waiter} waits for {peer}{on}, {seconds:,.0f} s: {oldest.text}."
            waits.append(Wait(waiter, peer, oldest.cause, len(group), seconds, sentence))
        return tuple(sorted(waits, key=lambda wait: -wait.seconds))

    def _causes(self, graph: "nx.DiGraph[Hashable]", reasons: Sequence[_Reason]) -> tuple[Cause, ...]:
        """The nodes, and cycles of nodes, where chains end."""
        import networkx as nx

        causes = []
        for members in nx.strongly_connected_components(graph):
            node = next(iter(members))
            if any(successor not in members for member in members for successor in graph.successors(member)):
                continue
            behind = nx.ancestors(graph, node) | (members if len(members) > 1 or graph.has_edge(node, node) else set())
            waiting = sum(ancestor in self._names for ancestor in behind - ({node} if len(members) == 1 else set()))
            if len(members) > 1 or graph.has_edge(node, node):
                causes.append(self._cycle(members, waiting, reasons))
            else:
                causes.append(self._cause(node, waiting))
        return tuple(sorted(causes, key=lambda cause: -cause.waiting))

    def _cause(self, node: Hashable, waiting: int) -> Cause:
        who = _some(waiting, "process", "processes")
        wait = f"{who} {'waits' if waiting == 1 else 'wait'} for"
        match node:
            case _Path(source, target, ports, proof):
                which = f"the path of {_ports(ports)}" if ports else "a path"
                return Cause("path", waiting, f"{which} from {source} to {target} loses packets: {proof}")
            case _Silent(_, name):
                text = (
                    f"{name} answers nothing on any lane: its process is stopped or gone, or all paths to it are down"
                )
                return Cause("silent", waiting, f"{text}; run `paralet stat --json` there")
            case _Unknown(_, name):
                text = f"{wait} {name}, of which there is no dump: run `paralet stat --json` on its host too"
                return Cause("unknown", waiting, text)
            case _Replaced(_, name, now):
                return Cause("replaced", waiting, f"{wait} a process at {name} that is gone: {now} has its address")
            case _Tags(sender, receiver, sent, received):
                text = f"{sender} sends tag {sent} while {receiver} receives tag {received}: tags must agree"
                return Cause("tags", waiting, text)
            case _Held(name, policy):
                by = (
                    "waits for ports of the path service"
                    if policy == "controller"
                    else "is held back by its own pacing"
                )
                return Cause("held", waiting, f"{name} {by}")
        place = next(place for place in self._places.values() if place.key == node)
        pid = place.process.pid
        if place.stopped:
            text = f"{place.name} is stopped by a signal or a debugger, and {wait} it: try `kill -CONT {pid}`"
            return Cause("stopped", waiting, text)
        text = f"{place.name} waits for nobody, and {wait} it: its application does not send or receive what they need"
        return Cause("application", waiting, f"{text}; see where it is, for example by `py-spy dump --pid {pid}`")

    def _cycle(self, members: set[Hashable], waiting: int, reasons: Sequence[_Reason]) -> Cause:
        inside = [reason for reason in reasons if reason.place.key in members and reason.on in members]
        oldest = max(inside, key=lambda reason: reason.place.age_s(reason.connection.progressed_s))
        names = sorted({reason.place.name for reason in inside})
        if len(members) == 1:
            text = f"{names[0]} waits for itself"
        else:
            text = f"{len(members)} processes wait for each other: {', '.join(names[:_PORTS_NAMED])}"
            text += " and more" if len(names) > _PORTS_NAMED else ""
        text += f"; {oldest.place.name} has waited longest"
        return Cause("cycle", waiting, text)

    def _notes(self) -> Iterator[str]:
        for place in self._places.values():
            if omitted := place.device.under_way_omitted:
                yield f"{place.name} has {omitted} more connections under way, which have waited less"


def _latest(places: Sequence[_Place]) -> dict[str, _Place]:
    """By GUID. A device that is in several dumps counts as in the latest."""
    found: dict[str, _Place] = {}
    for place in places:
        before = found.get(place.device.guid)
        if before is None or before.dump.clock_s < place.dump.clock_s:
            found[place.device.guid] = place
    return found


def _some(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _ports(ports: Sequence[int]) -> str:
    shown = ", ".join(str(port) for port in ports[:_PORTS_NAMED])
    more = f" and {len(ports) - _PORTS_NAMED} more" if len(ports) > _PORTS_NAMED else ""
    return f"UDP source port{'' if len(ports) == 1 else 's'} {shown}{more}"


def _go_on(lanes: int) -> str:
    return "another lane to the peer goes on" if lanes == 1 else f"{lanes} other lanes to the peer go on"
