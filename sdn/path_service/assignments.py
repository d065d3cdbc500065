# SPDX-License-Identifier: Apache-2.0
"""Assignments to hosts: the ports of their lanes and the rates of their elephants. No I/O.

The lanes of a pair along a new path, and the lanes of the peer that carry acknowledgements back over the same links,
are assigned together. A host gets another assignment only when its ports change, or their paths, if it wants to know.
"""

from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from netmodel import Path
from sdn.path_service.messages import Assign, Error
from sdn.path_service.parties import Client, Pair, Parties
from sdn.path_service.pinning import Pinning, Sends
from sdn.path_service.ports import Peer

_BATCH = 16  # pairs whose ports are looked up in one event after a failure; each lookup may hash for a while
_encode = msgspec.json.Encoder().encode
_RATE_STEP = 0.01  # a rate is sent again when it has changed by more than this part


class Assignments:
    """Writes assignments for pairs, and remembers which pairs still wait for theirs.

    With `promises` native code may answer the next announcements of a pair by itself, until the answer changes.
    """

    def __init__(self, parties: Parties, pinning: Pinning, counts: Counter[str], promises: bool) -> None:
        self._promises = promises
        self._parties = parties
        self._pinning = pinning
        self._counts = counts
        self.pending: deque[Pair] = deque()
        """Pairs whose ports have to be looked up again; `send_pending` sends some of them theirs."""
        self._cut: set[Pair] = set()  # pairs whose path died and whose host has not been informed

    def answer(self, pair: Pair, number: int) -> Assign:
        """The answer to the announcement of an elephant, whether its ports have changed or not."""
        return self._assigned(pair, self._pinning.ports(pair), number, pair.rate_bps)

    def defer(self, pair: Pair) -> None:
        """The next `update` of a pair answers its newest elephant, whether its ports have changed or not."""
        pair.sent = None
        pair.end_promise()

    def answer_unknown(self, client: Client, peer: Peer, number: int, sends: Sends) -> None:
        """Answers the announcement of an elephant to a peer outside the fabric: it stays on ECMP."""
        client.generation += 1
        sends.append((client.conn, Assign(peer[0], [], client.generation, None, number, peer[1])))

    def refuse(self, client: Client, text: str, sends: Sends) -> None:
        """Refuses an announcement because of a limit; the connection stays open."""
        sends.append((client.conn, Error("busy", text)))

    def update(self, pairs: Iterable[Pair], sends: Sends) -> None:
        """Sends pairs their ports and those of the way back, unless both ends know them, and their paths.

        Connections that cannot move ask for theirs when they begin.
        """
        for pair in pairs:
            if pair.is_expected:
                continue
            ports = self._pinning.ports(pair)
            cut = pair in self._cut
            if cut or pair.sent is not ports or self._paths(pair, ports) not in ([], pair.told):
                self._cut.discard(pair)
                assigned = self._assigned(pair, ports, pair.elephant_id(), pair.rate_bps, cut)
                sends.append((pair.client.conn, assigned))
                self._counts["pushed"] += 1
            self.update_reverse(pair, sends)

    def update_reverse(self, pair: Pair, sends: Sends) -> None:
        """Sends the peer the ports of its acknowledgements, which return over the links of the data."""
        for back in pair.reverse or self._parties.reverse(pair):
            if back.commodity is not None:  # these lanes carry an elephant of the peer's
                continue
            ports = self._pinning.ports_back(back, pair)
            if back.sent is not ports:
                sends.append((back.client.conn, self._assigned(back, ports, None, None)))
                self._counts["pushed"] += 1

    def forget_cut(self, pair: Pair) -> None:
        """Forget that the path of a pair was cut: its commodity has ended, so none of its packets are lost there."""
        if self._cut:
            self._cut.discard(pair)

    def queue(self, cut: Iterable[Pair], others: Iterable[Pair]) -> None:
        """Queues pairs for new ports after a link change: first those whose path was cut, then others, then the rest.

        `others` has the pairs whose path moved, and pairs that keep their path but need other ports for it, because
        switches on the path now hash over other members.
        """
        cut = list(cut)
        self._cut.update(cut)
        self.pending = deque(dict.fromkeys((*cut, *others, *self.pending)))
        for pair in self.pending:
            pair.end_promise()

    def adopt(self, clients: Iterable[Client], with_rates: bool) -> None:
        """These clients of another service are here too, and know their ports. Queues the pairs whose ports differ.

        Elephants keep their rates only `with_rates`: otherwise hosts that have one are told that it is over.
        """
        for before in clients:
            client = self._parties.clients[before.conn]
            for at, told in before.pairs.items():
                pair = client.pairs.get(at) or self._parties.pair(client, at)
                if pair is None or told.sent is None:
                    continue
                pair.sent, pair.told = None, told.told
                if pair.commodity is not None:
                    ports = self._pinning.ports(pair)
                    pair.sent = ports if ports == told.sent else told.sent
                    if with_rates:
                        pair.rate_bps = told.rate_bps
                    elif told.rate_bps is not None:
                        pair.sent = None
        for before in clients:
            client = self._parties.clients[before.conn]
            self.append(pair for pair in client.pairs.values() if pair.commodity is not None)

    def append(self, pairs: Iterable[Pair]) -> None:
        """Queues pairs whose ports or those of the way back may have changed, after the others."""
        for pair in pairs:
            pair.end_promise()
            self.pending.append(pair)

    def send_pending(self, sends: Sends) -> None:
        """Sends some of the pairs that wait their ports."""
        for _ in range(min(_BATCH, len(self.pending))):
            pair = self.pending.popleft()
            if pair.commodity is not None:  # it may have ended
                self.update((pair,), sends)

    def update_rates(self, sends: Sends) -> None:
        """Sends every elephant its max-min fair rate, if that has changed."""
        for pair, rate_bps in self._pinning.rates_bps():
            if pair.elephants and abs((pair.rate_bps or 0) - rate_bps) > _RATE_STEP * rate_bps:
                pair.rate_bps = rate_bps
                assigned = self._assigned(pair, self._pinning.ports(pair), pair.elephant_id(), rate_bps)
                sends.append((pair.client.conn, assigned))
                self._counts["pushed"] += 1

    def _assigned(
        self, pair: Pair, ports: list[int], number: int | None, rate_bps: float | None, cut: bool = False
    ) -> Assign:
        """The next message to a pair's client, which then knows these ports."""
        pair.sent = ports
        client = pair.client
        client.generation += 1
        if self._promises and pair.commodity is not None and not (client.fixed or client.wants_paths):
            pair.promise(_encode(ports), _encode(rate_bps))
        pair.told = self._paths(pair, ports)
        told = [[str(port) for port in path] for path in pair.told]
        return Assign(pair.at[0], ports, client.generation, rate_bps, number, pair.at[1], cut, told)

    def _paths(self, pair: Pair, ports: list[int]) -> list[Path]:
        """What to tell a pair's client of the paths of these ports; none where it does not want to know."""
        wanted = pair.client.wants_paths and ports and pair.commodity is not None
        return self._pinning.known_paths(pair) if wanted else []
