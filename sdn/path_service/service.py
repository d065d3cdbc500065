# SPDX-License-Identifier: Apache-2.0
"""The path service without a clock or a socket: events in, messages out.

Every event comes with its time in seconds, which never decreases. The same events give the same messages, so the event
log (`sdn.path_service.journal`) can be replayed. `sdn.path_service.server` connects this to hosts.

The caller numbers connections; messages come back as (connection, message). A commodity is what one device sends to one
peer; all its lanes use one path, by source ports that the switches' hash sends there.

`PathService` handles events and leaves decisions to other modules: `parties` (which devices are connected),
`elephants` (which elephants are open), `pinning` (their paths and ports), `expected` (forecasts), `assignments` (ports
for hosts), `views` (output for operators).
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from netmodel import EcmpHash, Link, OvsHash, Path, Topology
from netmodel.flow import address_at
from sdn import _native
from sdn.measured.pace import Pace
from sdn.measured.pinning import Lanes, MeasuredPinning
from sdn.measured.router_names import RouterNames, fabric_with
from sdn.path_service import views
from sdn.path_service.assignments import Assignments
from sdn.path_service.constraints import Constraints
from sdn.path_service.elephants import Elephants
from sdn.path_service.expected import Expectations
from sdn.path_service.measured import Measured as MeasuredPaths
from sdn.path_service.messages import (
    Announce,
    CanProbe,
    Hello,
    HostMessage,
    Measured,
    Moved,
    Ping,
    Pong,
    Probed,
    Release,
    Report,
    Voted,
)
from sdn.path_service.neighbours import Changed, Neighbours
from sdn.path_service.next_hops import NextHops, unused_links
from sdn.path_service.parties import Client, Pair, Parties
from sdn.path_service.pinning import Pinning, Preview, Rerouted, Sends
from sdn.path_service.predicted import Predicted
from sdn.path_service.work import Work
from sdn.planners import DEFAULT_PLANNER, PLANNERS
from sdn.planners.planner import AnyCabling

_LEAVING = 64  # pairs of clients that have left, removed in one event
_COMING = 16  # pairs of neighbouring ranks, planned in one event


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a path service's decisions. Raises ValueError for an unknown planner."""

    planner: str = DEFAULT_PLANNER
    forecast: bool = False
    """Learn which elephants repeat, and assign their paths before they are announced."""
    rates: bool = False
    """Limit every elephant to its max-min fair rate."""
    lanes: Lanes = "distinct"
    """With measured paths: whether the lanes of a host towards a peer take several planned paths, or one."""
    router_answers: float = 1.0
    """With measured paths: answers per second that a router gives one host; 0: without limit. Linux gives one."""

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise ValueError(f"planner {self.planner!r} is none of {', '.join(PLANNERS)}")


class PathService:
    """One fabric, its hosts and their elephants. Not for several threads at once.

    `ecmp_hash` is the hash of the switches, by default that of Open vSwitch. With `routers` hosts measure which ports
    take which paths; a hash then serves hosts that do not probe. Raises ValueError for a topology that the planner does
    not serve, which is neither a two-level leaf-spine nor a Clos of three tiers, and as `fabric_with` does.
    """

    def __init__(
        self,
        topology: Topology,
        options: Options | None = None,
        ecmp_hash: EcmpHash | None = None,
        routers: RouterNames | None = None,
    ) -> None:
        self.topology = topology
        self.options = options or Options()
        self.counts: Counter[str] = Counter()
        self.cables = PLANNERS[self.options.planner].cabling(topology)
        self.constraints = Constraints()
        self._parties = Parties(
            {str(address_at(self.cables.addresses, nic)): nic for nic in range(len(self.cables.nics))}
        )
        self._neighbours = Neighbours(self._parties)
        self._elephants = Elephants(self.counts)
        self._pinning: Pinning = _pinning(self.cables, self.options, ecmp_hash, routers, self.counts)
        self._measures = self._pinning.offers_probes
        self.renews = not (self._measures or self.options.forecast)
        """Whether the elephants of clients may be renewed by native code: no decision depends on how often they are."""
        self._assignments = Assignments(self._parties, self._pinning, self.counts, promises=self.renews)
        self._expected = Expectations(self._parties) if self.options.forecast else None
        self._leaving: deque[tuple[Client, list[Pair]]] = deque()  # clients that have left, and their remaining pairs
        self._coming: deque[Pair] = deque()  # of neighbouring ranks, to be planned
        self._rates_changed = False

    # -- events --------------------------------------------------------------------------------------------------------

    def knows(self, device: str) -> bool:
        """Whether the topology has a NIC with this address."""
        return self._parties.knows(device)

    def connect(self, now_s: float, conn: int, hello: Hello) -> tuple[Sends, int | None]:
        """Handle the hello of a device that `knows` accepts.

        Returns messages, and the connection that this one replaces, which the caller closes.
        """
        old = self._parties.instance(hello)
        sends: Sends = [] if old is None else self.disconnect(now_s, old.conn)
        client = self._parties.join(conn, hello)
        self._assignments.append(pair for pair in client.endpoint.senders if pair.commodity is not None)
        self._expect(now_s, self._neighbours.join(client), sends)
        self._assignments.send_pending(sends)
        self.counts["hellos"] += 1
        return sends, None if old is None else old.conn

    def disconnect(self, now_s: float, conn: int) -> Sends:
        """A connection has ended, and its elephants with it: its device is back on ECMP.

        `tick` removes the rest of many commodities.
        """
        client = self._parties.leave(conn)
        sends: Sends = []
        if client is not None:
            self._leaving.append((client, list(client.pairs.values())))
            self._expect(now_s, self._neighbours.leave(client), sends)
            self._update(self._pinning.leave(now_s, client), sends)
            self._remove_leaving(now_s, sends)
        return sends

    def handle(self, now_s: float, conn: int, messages: Iterable[HostMessage]) -> Sends:
        """Handles messages, other than hello, that have arrived together on a connection that has said hello.

        Raises ValueError for a hello.
        """
        client = self._parties.clients[conn]
        sends: Sends = []
        for message in messages:
            if type(message) is Announce:  # nearly all messages are of these two types
                self._announce(now_s, client, message, sends)
            elif type(message) is Release:
                self._elephants.close(client, message.id)
            else:
                self._handle_other(now_s, client, message, sends)
        if self._elephants.idle:
            self._remove_ended(now_s, sends)
        if self._measures:
            self._ask(now_s, sends)
        return sends

    def link(self, now_s: float, links: Iterable[Link], up: bool) -> Sends:
        """Links between switches have gone down, or have come back. Raises KeyError for any other link."""
        dead = self.constraints.dead
        return self.constrain(now_s, replace(self.constraints, dead=dead - set(links) if up else dead | set(links)))

    def constrain(self, now_s: float, constraints: Constraints) -> Sends:
        """These constraints hold from now on. Raises KeyError for a link that is not between two switches."""
        return self._rerouted(constraints, self._pinning.constrain(now_s, constraints))

    def next_hops(self, now_s: float, next_hops: NextHops) -> Sends:
        """Switches were read, and have these groups. Links that no route uses in one direction count as dead."""
        self.counts["next hops read"] += 1
        constraints = replace(self.constraints, dead=unused_links(self.topology, next_hops))
        return self._rerouted(constraints, self._pinning.next_hops(now_s, constraints, next_hops))

    def _rerouted(self, constraints: Constraints, rerouted: Rerouted) -> Sends:
        """The constraints are these now, which has changed the ports of some pairs."""
        self.counts["elephants cut"] += len(rerouted.cut)
        self.counts["links changed"] += len(constraints.dead ^ self.constraints.dead)
        self.constraints = constraints
        self._rates_changed = True
        self._assignments.queue(*rerouted)
        sends: Sends = []
        self._assignments.send_pending(sends)
        return sends

    def continue_from(self, old: "PathService") -> Sends:
        """The clients and elephants of an old service are here too: keeps their paths, and what hosts were told.

        Returns the ports that have changed; `tick` sends the rest of many.
        """
        for client in old.clients:
            self._parties.clients[client.conn].generation += client.generation
            for at, before in client.pairs.items():
                pair = self._parties.clients[client.conn].pairs.get(at)
                if pair is not None and pair.commodity is not None:
                    pair.since_s, pair.measured_bps = before.since_s, before.measured_bps
                    if client.fixed and before.ports:  # it has told its port, and counts where that leads now
                        continue
                    for path in old._pinning.paths(before):
                        self._pinning.keep(pair, path)
        self._assignments.adopt(old.clients, self.options.rates)
        sends: Sends = []
        self._assignments.send_pending(sends)
        return sends

    def tick(self, now_s: float) -> Sends:
        """Does the work that is due at this time. `busy` is whether to call again at once."""
        sends: Sends = []
        self._remove_leaving(now_s, sends)
        self._plan_neighbours(now_s, sends)
        self._assignments.send_pending(sends)
        if self._measures:
            self._ask(now_s, sends)
        if self._expected is not None:
            self._plan_expected(self._expected, now_s, sends)
        if self.options.rates and self._rates_changed and not self.busy:
            self._rates_changed = False
            self._assignments.update_rates(sends)
        return sends

    @property
    def clients(self) -> list[Client]:
        """The devices that are connected, in the order in which they came."""
        return list(self._parties.clients.values())

    def elephants_of(self, conn: int) -> "_native.Elephants[Pair] | None":
        """The open elephants of a client, if native code may renew them."""
        client = self._parties.clients.get(conn) if self.renews else None
        return None if client is None else client.open

    @property
    def offers_probes(self) -> bool:
        """Whether hosts are asked to probe."""
        return self._measures

    @property
    def needs_ticks(self) -> bool:
        """Whether `tick` has to be called all the time, and not only while `busy`."""
        return self.options.forecast or self.options.rates or self.offers_probes

    @property
    def busy(self) -> bool:
        """Whether `tick` has work that should not wait."""
        return bool(self._assignments.pending or self._leaving or self._coming)

    def prepare(self) -> bool:
        """Does one step of the work ahead of failures, for moments without events. False, with nothing done, when there
        is none left.

        A replay has to repeat these calls: a plan made ahead may differ from one made when the failure comes.
        """
        return not self.busy and self._pinning.prepare()

    # -- for operators -------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> int:
        """Devices that are connected."""
        return len(self._parties.clients)

    @property
    def elephants(self) -> int:
        """Open elephants."""
        return sum(len(client.open) for client in self._parties.clients.values())

    @property
    def fixed_elephants(self) -> int:
        """Those of connections that cannot move, such as the TCP connections of `paralet pin`."""
        return sum(len(client.open) for client in self._parties.clients.values() if client.fixed)

    @property
    def commodities(self) -> int:
        """Pairs of devices that have a path."""
        return len(self._pinning.pairs)

    @property
    def dead(self) -> frozenset[Link]:
        """Links between switches that are down."""
        return self.constraints.dead

    def ways(self) -> Iterator[tuple[list[Path], float | None]]:
        """The paths of each commodity, and its measured rate in bit/s. Events may come between two commodities.

        One that has ended meanwhile is left out.
        """
        for pair in list(self._pinning.pairs.values()):
            if pair.commodity is not None:
                yield self._pinning.paths(pair), pair.measured_bps

    def status(self) -> dict[str, Any]:
        """Figures of the whole service, as JSON has them."""
        hits = None if self._expected is None else self._expected.hit_rate
        cut, ready = self.counts["elephants cut"], self.counts["elephants cut, path ready"]
        return {
            "topology": self.topology.name,
            "options": asdict(self.options),
            "hosts": self.hosts,
            "elephants": self.elephants,
            "commodities": self.commodities,
            **self._pinning.status(),
            "dead_links": sorted(f"{link.a} {link.b}" for link in self.constraints.dead),
            "drained_links": sorted(f"{link.a} {link.b}" for link in self.constraints.drained),
            "forecast": None if hits is None else {**asdict(hits), "rate": hits.rate},
            "failover": {"cut": cut, "ready": ready, "rate": ready / cut if cut else None},
            "counts": dict(sorted(self.counts.items())),
        }

    def flows(self, most: int) -> Iterator[dict[str, Any]]:
        """The `most` oldest commodities, as JSON has them. Events may come between two of them."""
        return views.flows(self._pinning, most)

    def paths(self) -> Iterator[dict[str, Any]]:
        """Every link between two switches with its load in commodities, as JSON has them."""
        return views.paths(self._pinning, self.cables, self.constraints)

    def load_of(self, links: Iterable[Link]) -> tuple[float, int]:
        """The commodities on these links, each way, and the commodities on random ports, which may be on any."""
        loads = self._pinning.loads()
        numbers = list({self.cables.link_number(link) for link in links})
        pairs = self._pinning.pairs.values()
        random = sum(not (pair.is_expected or self._pinning.ports(pair)) for pair in pairs)
        return float(loads[:, numbers].sum()), random

    def preview(self, constraints: Constraints) -> Work[Preview]:
        """What `constrain` would do at the first step. Nothing changes. Raises as it does."""
        return self._pinning.preview(constraints)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _announce(self, now_s: float, client: Client, message: Announce, sends: Sends) -> None:
        elephants, expected = self._elephants, self._expected
        self.counts["announced"] += 1
        peer, number = (message.peer, message.peer_port, client.protocol), message.id
        is_new = not elephants.is_open(client, number, peer)
        if expected is not None and is_new:
            expected.observe(now_s, client, message)
        if elephants.is_full(client, number):
            self.counts["refused"] += 1
            text = f"{client.most_open} elephants are open: release some before announcing more"
            self._assignments.refuse(client, text, sends)
            return
        pair = elephants.pair_to_open(client, peer) or self._parties.pair(client, peer)
        if pair is None:
            self.counts["unknown peers"] += 1
            self._assignments.answer_unknown(client, peer, number, sends)
            return
        arrives = pair.commodity is None
        if arrives:
            if elephants.idle:  # commodities that have ended make room
                self._remove_ended(now_s, sends)
            self._add(now_s, pair, sends)
        elif not pair.elephants:
            pair.since_s, pair.measured_bps = now_s, None
            if expected is not None:
                expected.discard(pair)
        elephants.open(pair, message, is_new)
        if client.fixed:
            self._update(self._pinning.has_sent(now_s, pair, message.bytes, message.port), sends)
        if self._pinning.is_settled(pair):
            sends.append((client.conn, self._assignments.answer(pair, number)))
        else:
            self._assignments.defer(pair)
        if arrives:
            self._assignments.update_reverse(pair, sends)

    def _handle_other(self, now_s: float, client: Client, message: HostMessage, sends: Sends) -> None:
        match message:
            case Measured():
                for flow in message.flows:
                    elephant = client.open.get(flow.id)
                    if elephant is not None and flow.seconds > 0:
                        elephant[0].measured_bps = 8 * flow.bytes / flow.seconds
            case Report():
                self.counts[f"left by {message.reason}"] += 1
                self._update(self._pinning.heard(now_s, client, message), sends)
            case Voted():
                pass  # it is for `Server.guard`
            case Ping():
                sends.append((client.conn, Pong(message.nonce)))
            case CanProbe() | Probed() | Moved():
                self._rates_changed = True
                self._update(self._pinning.heard(now_s, client, message), sends)
            case _:
                raise ValueError("hello comes once, and first")

    def _ask(self, now_s: float, sends: Sends) -> None:
        """Asks hosts for what has to be measured now."""
        asks, changed = self._pinning.due(now_s)
        sends += asks
        if changed:
            self._rates_changed = True
            self._update(changed, sends)

    def _update(self, pairs: Iterable[Pair], sends: Sends) -> None:
        """Sends those of these pairs that have commodities their ports, if they have changed and need not wait."""
        ready = (pair for pair in pairs if pair.commodity is not None and self._pinning.is_settled(pair))
        self._assignments.update(ready, sends)

    # -- commodities ---------------------------------------------------------------------------------------------------

    def _add(self, now_s: float, pair: Pair, sends: Sends) -> None:
        """Plans the commodity of a pair that has none."""
        moved = self._pinning.arrive(now_s, pair)
        self._rates_changed = True
        if moved:
            self._update(moved, sends)

    def _remove(self, now_s: float, pair: Pair, commodity: int, sends: Sends) -> None:
        """Removes the commodity of a pair whose elephants have ended."""
        pair.commodity = pair.rate_bps = pair.measured_bps = None
        if self._expected is not None:
            self._expected.discard(pair)
        self._assignments.forget_cut(pair)
        moved = self._pinning.depart(now_s, commodity)
        self._rates_changed = True
        if moved:
            self._update(moved, sends)
        # The pair's lanes now carry acknowledgements of what the peer sends.
        for back in pair.reverse or self._parties.reverse(pair):
            if back.commodity is not None:
                self._assignments.update_reverse(back, sends)

    def _remove_leaving(self, now_s: float, sends: Sends) -> None:
        """Removes some pairs of clients that have left."""
        left = _LEAVING
        while self._leaving and left:
            client, pairs = self._leaving[0]
            while pairs and left:
                pair = pairs.pop()
                left -= 1
                if pair.commodity is not None:
                    self._remove(now_s, pair, pair.commodity, sends)
            if not pairs:
                self._leaving.popleft()
                self._parties.forget(client)

    def _expect(self, now_s: float, changed: Changed, sends: Sends) -> None:
        """Other connections between neighbouring ranks are expected now."""
        for pair in changed.ended:
            if pair.commodity is not None and not pair.elephants:
                self._remove(now_s, pair, pair.commodity, sends)
        self._coming.extend(changed.expected)
        self._plan_neighbours(now_s, sends)

    def _plan_neighbours(self, now_s: float, sends: Sends) -> None:
        """Plans some pairs of neighbouring ranks."""
        for _ in range(min(_COMING, len(self._coming))):
            pair = self._coming.popleft()
            if pair.commodity is None and self._neighbours.expects(pair):
                self._rates_changed = True
                self._update(self._pinning.expect(now_s, pair), sends)

    def _remove_ended(self, now_s: float, sends: Sends) -> None:
        for pair in self._elephants.take_idle():
            if not pair.elephants and pair.commodity is not None:
                self._remove(now_s, pair, pair.commodity, sends)

    def _plan_expected(self, expected: Expectations, now_s: float, sends: Sends) -> None:
        """Removes commodities whose elephants have not come, and plans those of elephants that are due soon."""
        for pair in expected.expired(now_s):
            if pair.commodity is not None:
                self._remove(now_s, pair, pair.commodity, sends)
        for pair, latest_s in expected.due(now_s):
            self._add(now_s, pair, sends)
            expected.add(pair, latest_s)
            self.counts["given ahead"] += 1
            self._assignments.update((pair,), sends)


def _pinning(
    cables: AnyCabling,
    options: Options,
    ecmp_hash: EcmpHash | None,
    routers: RouterNames | None,
    counts: Counter[str],
) -> Pinning:
    """Measured where the addresses of routers are given, predicted elsewhere."""
    if routers is None:
        return Predicted(cables, options.planner, ecmp_hash or OvsHash(), counts)
    planned = Predicted(cables, options.planner, ecmp_hash, counts)
    fabric = fabric_with(cables.topology, routers)
    pace = Pace.for_answers(options.router_answers)
    pinning = MeasuredPinning(fabric, lanes=options.lanes, pace=pace)
    return MeasuredPaths(cables, fabric, pinning, planned, counts, pace, is_predicted=ecmp_hash is not None)
