# SPDX-License-Identifier: Apache-2.0
"""The devices that are connected, and the pairs of them that send. Pure.

A `Client` is a connection that has said hello. A `Pair` is a client and a peer that it sends to. Several clients may
receive at one `Endpoint`, for a host may have several device objects.
"""

from collections.abc import Iterable

from netmodel import Path
from sdn import _native
from sdn.path_service.messages import Hello
from sdn.path_service.ports import Peer, PortTables
from sdn.planners import UNREACHABLE
from sdn.planners.links import Way

MOST_PAIRS = 16_384
"""Pairs that one client may have. Beyond this number, its pairs without a commodity are forgotten."""
MOST_OPEN = 4_096
"""Elephants that one client may have open."""
MOST_PORTS = 1 << 18
"""Ports that one client may have assigned: fewer pairs and elephants for a client with many lanes."""


class Endpoint:
    """An address and port of the fabric that packets of one IP protocol are sent to."""

    __slots__ = ("at", "nic", "receivers", "senders")

    def __init__(self, at: Peer, nic: int) -> None:
        self.at = at
        self.nic = nic
        self.receivers: dict[int, Client] = {}
        """Clients that receive here, by connection."""
        self.senders: dict[Pair, None] = {}
        """Pairs whose peer this is, in order of creation."""


class Client:
    """A connection that has said hello."""

    __slots__ = (
        "conn",
        "endpoint",
        "fixed",
        "job",
        "key",
        "lanes",
        "most_open",
        "most_pairs",
        "nic",
        "open",
        "pairs",
        "protocol",
        "rank",
        "ranks",
        "wants_paths",
    )

    def __init__(self, conn: int, hello: Hello, endpoint: Endpoint) -> None:
        self.conn = conn
        self.key = hello.device, hello.instance
        self.endpoint = endpoint
        """The address and port at which it receives."""
        self.nic = endpoint.nic
        self.protocol = hello.ip_protocol
        self.lanes = hello.lanes
        self.fixed = hello.fixed
        """Its elephants cannot change their ports."""
        self.job, self.rank, self.ranks = hello.job, hello.rank, hello.ranks
        self.wants_paths = hello.paths
        """It is told the paths of the ports that it is assigned."""
        self.most_pairs = min(MOST_PAIRS, MOST_PORTS // hello.lanes)
        self.most_open = min(MOST_OPEN, MOST_PORTS // hello.lanes)
        self.open: _native.Elephants[Pair] = _native.Elephants()
        """Its open elephants by id: the pair that each belongs to, and its size in bytes. Native code renews them."""
        self.pairs: dict[Peer, Pair] = {}
        """By peer."""

    @property
    def generation(self) -> int:
        """The generation of the last assignment sent to it."""
        return self.open.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self.open.generation = generation


class Pair(_native.Pair):
    """A client and a peer: the client's lanes towards the peer, and the commodity that they carry, if any.

    The commodity is the client's open elephants to this peer, or one that is expected. Without a commodity the lanes
    carry acknowledgements of the peer's data. A pair outlives its commodities, because the same hosts send to each
    other repeatedly.

    Native code has the fields that a renewal changes: the number of open elephants; the id of the one announced last,
    None when it has been released, and its job; since when there is one without a pause, and its measured rate.
    """

    __slots__ = (
        "at",
        "client",
        "commodity",
        "expires_s",
        "peer",
        "ports",
        "ports_table",
        "ports_way",
        "rate_bps",
        "reverse",
        "sent",
        "told",
        "way",
    )

    def __init__(self, client: Client, peer: Endpoint) -> None:
        super().__init__(*peer.at[:2])
        self.client = client
        self.peer = peer
        self.at = peer.at
        self.reverse: list[Pair] | None = None
        """Cached result of `Parties.reverse`; None after a client has come or gone, so that it is computed again."""
        self.sent: list[int] | None = None
        """The ports last sent to the client."""
        self.told: list[Path] = []
        """The paths last sent with ports, to a client that wants them."""
        self.ports: list[int] = []
        """The ports last looked up: along `ports_way`, in `ports_table`."""
        self.ports_way: Way | None = None
        self.ports_table: PortTables | None = None
        self.commodity: int | None = None
        """The number of its commodity in the plan. The fields below describe that commodity."""
        self.way: Way = (UNREACHABLE, -1, -1)
        self.expires_s = 0.0
        """When an expected commodity is removed if no elephant has been announced."""
        self.rate_bps: float | None = None

    def routed_alike(self, commodity: int, way: Way) -> "Pair":
        """Another pair of the same two with this commodity on this way, to try changes of routes on."""
        made = Pair(self.client, self.peer)
        made.commodity, made.way = commodity, way
        return made

    @property
    def is_expected(self) -> bool:
        """Whether its connections, which cannot move, have not begun: see `neighbours`. Of pairs with a commodity."""
        return self.client.fixed and not self.elephants

    def elephant_id(self) -> int | None:
        """The id that assignments carry: the newest open elephant's, or None without one."""
        if self.newest_id is None and self.elephants:
            self.newest_id = self.client.open.newest(self)
        return self.newest_id


class Parties:
    """All clients and pairs. `nic_at` gives the fabric's NICs by address."""

    def __init__(self, nic_at: dict[str, int]) -> None:
        self.clients: dict[int, Client] = {}
        """By connection."""
        self._nic_at = nic_at
        self._instances: dict[tuple[str, str], Client] = {}
        self._endpoints: dict[Peer, Endpoint] = {}  # those with a receiver or a sender

    def knows(self, device: str) -> bool:
        """Whether the fabric has a NIC with this address."""
        return device in self._nic_at

    def instance(self, hello: Hello) -> Client | None:
        """The client that has said hello for the same device object."""
        return self._instances.get((hello.device, hello.instance))

    def receiver(self, at: Peer) -> Client | None:
        """The first client that receives at an endpoint."""
        endpoint = self._endpoints.get(at)
        return None if endpoint is None else next(iter(endpoint.receivers.values()), None)

    def join(self, conn: int, hello: Hello) -> Client:
        """Adds a client whose device is known and whose device object no other client has."""
        at = hello.device, hello.udp_port, hello.ip_protocol
        client = Client(conn, hello, self._endpoint(at, self._nic_at[hello.device]))
        self.clients[conn] = self._instances[client.key] = client.endpoint.receivers[conn] = client
        _invalidate_reverse(client.endpoint.senders)
        return client

    def leave(self, conn: int) -> Client | None:
        """Removes a connection's client, which stays valid until `forget`. Returns it, or None when there is none."""
        client = self.clients.pop(conn, None)
        if client is not None:
            del self._instances[client.key]
            del client.endpoint.receivers[conn]
            _invalidate_reverse(client.endpoint.senders)
        return client

    def forget(self, client: Client) -> None:
        """Drops the pairs of a client that has left and has no commodities any more."""
        self._drop(client.pairs.values())
        self._close(client.endpoint)

    def pair(self, client: Client, peer: Peer) -> Pair | None:
        """The pair of a client and a peer, created when needed; None when the peer is not another NIC of the fabric."""
        pair = client.pairs.get(peer)
        if pair is None:
            nic = self._nic_at.get(peer[0])
            if nic is None or nic == client.nic:
                return None
            if len(client.pairs) >= client.most_pairs:
                self._drop_idle(client)
            pair = client.pairs[peer] = Pair(client, self._endpoint(peer, nic))
            pair.peer.senders[pair] = None
        return pair

    def reverse(self, pair: Pair) -> list[Pair]:
        """The pairs that carry acknowledgements back: one for each client that receives at the peer."""
        if pair.reverse is None:
            here = pair.client.endpoint.at
            found = [self.pair(receiver, here) for receiver in pair.peer.receivers.values()]
            pair.reverse = [back for back in found if back is not None]
        return pair.reverse

    def _endpoint(self, at: Peer, nic: int) -> Endpoint:
        endpoint = self._endpoints.get(at)
        if endpoint is None:
            endpoint = self._endpoints[at] = Endpoint(at, nic)
        return endpoint

    def _close(self, endpoint: Endpoint) -> None:
        if not endpoint.receivers and not endpoint.senders:
            del self._endpoints[endpoint.at]

    def _drop_idle(self, client: Client) -> None:
        idle = [pair for pair in client.pairs.values() if pair.commodity is None]
        self._drop(idle)
        for pair in idle:
            del client.pairs[pair.peer.at]
        _invalidate_reverse(client.endpoint.senders)

    def _drop(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            del pair.peer.senders[pair]
            self._close(pair.peer)


def _invalidate_reverse(pairs: Iterable[Pair]) -> None:
    for pair in pairs:
        pair.reverse = None
