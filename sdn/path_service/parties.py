# SPDX-License-Identifier: Apache-2.0
"""Who is connected, and who sends to whom: doors, clients and pairs. Pure, and knows nothing of plans."""

from collections.abc import Iterable

from sdn.path_service.messages import Hello
from sdn.path_service.ports import Peer, PortTables, Way
from sdn.planners import UNREACHABLE

MOST_PAIRS = 16_384
"""Of one client; beyond, those without a commodity are forgotten."""


class Door:
    """Where packets are received: an address and UDP port of the fabric, and who is there and sends there."""

    __slots__ = ("at", "nic", "pairs", "receivers")

    def __init__(self, at: Peer, nic: int) -> None:
        self.at = at
        self.nic = nic
        self.receivers: dict[int, Client] = {}
        """By connection."""
        self.pairs: dict[Pair, None] = {}
        """Of those who send here."""


class Client:
    """A connection that has said hello."""

    __slots__ = ("conn", "door", "generation", "key", "lanes", "nic", "open", "towards")

    def __init__(self, conn: int, hello: Hello, door: Door) -> None:
        self.conn = conn
        self.key = hello.device, hello.instance
        self.door = door
        self.nic = door.nic
        self.lanes = hello.lanes
        self.generation = 0
        self.open: dict[int, tuple[Pair, int]] = {}
        """Where each of its elephants goes and its bytes, by their ids."""
        self.towards: dict[Peer, Pair] = {}


class Pair:
    """A client and a peer: the lanes of the one towards the other, and the commodity that they carry, if any.

    That is the client's open elephants to this peer, or one that is expected. Without one, lanes carry the
    acknowledgements of what comes from there. A pair outlives its commodities, for the same hosts talk again and again.
    """

    __slots__ = (
        "backs",
        "client",
        "door",
        "elephants",
        "job",
        "measured_bps",
        "newest",
        "number",
        "ports",
        "ports_from",
        "ports_way",
        "rate_bps",
        "since_s",
        "told",
        "until_s",
        "way",
    )

    def __init__(self, client: Client, door: Door) -> None:
        self.client = client
        self.door = door
        """The peer's."""
        self.backs: list[Pair] | None = None
        """`Parties.backs`; None: not looked up since somebody came or went."""
        self.told: list[int] | None = None
        """The ports last told."""
        self.ports: list[int] = []
        """The ports last looked up, along `ports_way` in `ports_from`."""
        self.ports_way: Way | None = None
        self.ports_from: PortTables | None = None
        self.number: int | None = None
        """Of its commodity, as are the following."""
        self.way: Way = (UNREACHABLE, -1, -1)
        self.elephants = 0
        """How many of the client's are open towards the peer."""
        self.newest: int | None = None
        """The id of the one announced last; None when it has been released."""
        self.job = ""
        """The newest's."""
        self.since_s = 0.0
        self.until_s = 0.0
        """When an expected one that nobody announces is given up."""
        self.rate_bps: float | None = None
        self.measured_bps: float | None = None

    def named(self) -> int | None:
        """The id by which its client is told of it: its newest elephant's, or None where it has none."""
        if self.newest is None and self.elephants:
            self.newest = next(number for number, (pair, _) in reversed(self.client.open.items()) if pair is self)
        return self.newest


class Parties:
    """All of them. `nic_at` has the NICs of the fabric by address."""

    def __init__(self, nic_at: dict[str, int]) -> None:
        self.clients: dict[int, Client] = {}
        """By connection."""
        self._nic_at = nic_at
        self._instances: dict[tuple[str, str], Client] = {}
        self._doors: dict[Peer, Door] = {}  # those with a receiver, or a pair

    def knows(self, device: str) -> bool:
        """Whether the fabric has a NIC with this address."""
        return device in self._nic_at

    def instance(self, hello: Hello) -> Client | None:
        """The client that has said hello for the same device object."""
        return self._instances.get((hello.device, hello.instance))

    def sender(self, at: Peer) -> Client | None:
        """The client that was the first of those who receive there."""
        door = self._doors.get(at)
        return None if door is None else next(iter(door.receivers.values()), None)

    def join(self, conn: int, hello: Hello) -> Client:
        """A device that is known has said hello, and no other client is the same device object."""
        client = Client(conn, hello, self._door((hello.device, hello.udp_port), self._nic_at[hello.device]))
        self.clients[conn] = self._instances[client.key] = client.door.receivers[conn] = client
        _look_up_again(client.door.pairs)
        return client

    def leave(self, conn: int) -> Client | None:
        """A connection is gone. Its client is kept until it is to be forgotten; None where there was none."""
        client = self.clients.pop(conn, None)
        if client is not None:
            del self._instances[client.key]
            del client.door.receivers[conn]
            _look_up_again(client.door.pairs)
        return client

    def forget(self, client: Client) -> None:
        """A client that has left, and has no commodities any more."""
        self._drop(client.towards.values())
        self._close(client.door)

    def pair(self, client: Client, peer: Peer) -> Pair | None:
        """The pair of a client and a peer, made where there is none; None where the peer is no other NIC."""
        pair = client.towards.get(peer)
        if pair is None:
            nic = self._nic_at.get(peer[0])
            if nic is None or nic == client.nic:
                return None
            if len(client.towards) >= MOST_PAIRS:
                self._drop_idle(client)
            pair = client.towards[peer] = Pair(client, self._door(peer, nic))
            pair.door.pairs[pair] = None
        return pair

    def backs(self, pair: Pair) -> list[Pair]:
        """The peer's lanes to where the pair's client receives: one pair for each client that receives at the peer."""
        if pair.backs is None:
            here = pair.client.door.at
            backs = [self.pair(receiver, here) for receiver in pair.door.receivers.values()]
            pair.backs = [back for back in backs if back is not None]
        return pair.backs

    def _door(self, at: Peer, nic: int) -> Door:
        door = self._doors.get(at)
        if door is None:
            door = self._doors[at] = Door(at, nic)
        return door

    def _close(self, door: Door) -> None:
        if not door.receivers and not door.pairs:
            del self._doors[door.at]

    def _drop_idle(self, client: Client) -> None:
        idle = [pair for pair in client.towards.values() if pair.number is None]
        self._drop(idle)
        for pair in idle:
            del client.towards[pair.door.at]
        _look_up_again(client.door.pairs)

    def _drop(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            del pair.door.pairs[pair]
            self._close(pair.door)


def _look_up_again(pairs: Iterable[Pair]) -> None:
    for pair in pairs:
        pair.backs = None
