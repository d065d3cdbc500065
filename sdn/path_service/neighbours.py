# SPDX-License-Identifier: Apache-2.0
"""Neighbouring ranks of a job: their connections will carry data. Pure.

Gloo connects all ranks with each other when a program starts, and sends data around the ring of ranks. Nothing tells
the connections of the ring from the others before data flow, and then it is too late: they cannot move. So the ranks
themselves say who they are (`Hello.rank`), and paths are planned for the ring before its connections begin.
"""

from sdn.path_service.parties import Client, Pair, Parties


class Neighbours:
    """The ranks of all jobs, each of which is a client whose connections cannot move."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self._jobs: dict[tuple[str, int], dict[int, dict[Client, None]]] = {}  # by name and number of ranks; rank

    def join(self, client: Client) -> list[Pair]:
        """A client has said hello. Returns the pairs whose connections will carry data, once all ranks are there.

        They are the same whichever rank came last, so that the paths of a ring are planned together. Ranks on one NIC
        need none. Nor has a rank of several NICs any: nobody tells which one it uses.
        """
        if client.rank is None or not client.fixed or not client.job:
            return []
        ranks = self._jobs.setdefault((client.job, client.ranks), {})
        ranks.setdefault(client.rank, {})[client] = None
        if len(ranks) < client.ranks:
            return []
        found = []
        for rank in sorted(ranks):
            own, following = ranks[rank], ranks[(rank + 1) % client.ranks]
            if len({one.nic for one in own}) == 1 == len({one.nic for one in following}):
                pair = self._parties.pair(next(iter(own)), next(iter(following)).endpoint.at)
                found += [] if pair is None or pair.commodity is not None else [pair]
        return found

    def leave(self, client: Client) -> list[Pair]:
        """A client has left. Returns the pairs of others towards it."""
        ranks = self._jobs.get((client.job, client.ranks), {})
        if client.rank is None or client not in ranks.get(client.rank, {}):
            return []
        del ranks[client.rank][client]
        if not ranks[client.rank]:
            del ranks[client.rank]
        if not ranks:
            del self._jobs[client.job, client.ranks]
        before = ranks.get((client.rank - 1) % client.ranks, {})
        pairs = (other.pairs.get(client.endpoint.at) for other in before)
        return [pair for pair in pairs if pair is not None and pair.commodity is not None and not pair.elephants]
