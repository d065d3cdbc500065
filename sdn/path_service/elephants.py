# SPDX-License-Identifier: Apache-2.0
"""Which elephants are open. Pure.

A pair's commodity ends with its last elephant, but not before all messages that arrived together have been handled: a
host of a ring releases an elephant and announces the next one to the same peer at once, and that one keeps the path.
"""

from collections import Counter

from sdn.path_service.messages import Announce
from sdn.path_service.parties import Client, Pair
from sdn.path_service.ports import Peer


class Elephants:
    """Opens and closes elephants of clients; `counts` has how many were released."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.idle: list[Pair] = []
        """Pairs whose last elephant was released by the messages being handled; later ones may announce another."""

    def is_open(self, client: Client, number: int, peer: Peer) -> bool:
        """Whether the client has an elephant of this id towards this peer.

        An elephant of the same id towards another peer is closed: its release was lost.
        """
        known = client.open.get(number)
        if known is None:
            return False
        if known[0].at == peer:
            return True
        self.close(client, number)
        return False

    def is_full(self, client: Client, number: int) -> bool:
        """Whether the client has too many open elephants for one more of this id."""
        return len(client.open) >= client.most_open and number not in client.open

    def pair_to_open(self, client: Client, peer: Peer) -> Pair | None:
        """The pair of a client and a peer if there is one, which gets an elephant now.

        Most announcements follow a release to the same peer.
        """
        if self.idle and self.idle[-1].at == peer:
            return self.idle.pop()
        return client.pairs.get(peer)

    def open(self, pair: Pair, message: Announce, is_new: bool) -> None:
        """Records an announced elephant of a pair."""
        if is_new:
            pair.elephants += 1
        pair.client.open.put(message.id, pair, message.bytes)
        pair.newest_id = message.id
        pair.job = message.job

    def close(self, client: Client, number: int) -> None:
        """Closes an elephant. One that was refused, or announced before a reconnection, is not open: it is counted."""
        elephant = client.open.pop(number)
        if elephant is None:
            self._counts["unknown releases"] += 1
            return
        pair = elephant[0]
        pair.elephants -= 1
        if number == pair.newest_id:
            pair.newest_id = None
        self._counts["released"] += 1
        if not pair.elephants:
            self.idle.append(pair)

    def take_idle(self) -> list[Pair]:
        """Empties `idle`. Returns its pairs, maybe several times each, some of which may have elephants again."""
        idle, self.idle = self.idle, []
        return idle
