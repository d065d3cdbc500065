# SPDX-License-Identifier: Apache-2.0
"""Neighbouring ranks of a job: their connections will carry data. Pure.

Gloo connects all ranks with each other when a program starts, and sends data around the ring of ranks. Nothing tells
the connections of the ring from the others before data flow, and then it is too late: they cannot move. So the ranks
themselves say who they are (`Hello.rank`), and paths are planned for the ring before its connections begin.
"""

from collections.abc import Iterable
from typing import NamedTuple

from sdn.path_service.parties import Client, Pair, Parties


class _Job:
    """The ranks of a job that are there, each with its clients."""

    def __init__(self) -> None:
        self.ranks: dict[int, dict[Client, None]] = {}
        self.pairs: dict[int, Pair] = {}
        """By rank: that from it to the next one, for which a path is planned."""
        self.was_whole = False
        """Whether all ranks have been there: then each that comes back is planned at once."""


class Changed(NamedTuple):
    """What the coming or going of a client changes."""

    ended: list[Pair]
    """Their connections are expected no more."""
    expected: list[Pair]
    """Their connections will carry data."""


class Neighbours:
    """The ranks of all jobs, each of which is a client whose connections cannot move."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self._jobs: dict[tuple[str, int], _Job] = {}  # by name and number of ranks

    def join(self, client: Client) -> Changed:
        """A client has said hello. Pairs are expected once all ranks are there.

        The paths of a ring are planned together. Ranks on one NIC need none. Nor has a rank of several NICs any: nobody
        tells which one it uses.
        """
        if client.rank is None or client.rank >= client.ranks or not client.fixed or not client.job:
            return Changed([], [])
        job = self._jobs.setdefault((client.job, client.ranks), _Job())
        job.ranks.setdefault(client.rank, {})[client] = None
        if not job.was_whole:
            if len(job.ranks) < client.ranks:
                return Changed([], [])
            job.was_whole = True
            return self._changed(job, range(client.ranks), client.ranks)
        return self._around(job, client)

    def leave(self, client: Client) -> Changed:
        """A client has left. Another client of its rank, which may have come before, takes its place in the ring."""
        job = self._jobs.get((client.job, client.ranks))
        if job is None or client.rank is None or client not in job.ranks.get(client.rank, {}):
            return Changed([], [])
        del job.ranks[client.rank][client]
        if not job.ranks[client.rank]:
            del job.ranks[client.rank]
        if not job.ranks:
            del self._jobs[client.job, client.ranks]
        return self._around(job, client)

    def expects(self, pair: Pair) -> bool:
        """Whether connections of this pair are expected still."""
        client = pair.client
        job = self._jobs.get((client.job, client.ranks))
        return job is not None and client.rank is not None and job.pairs.get(client.rank) is pair

    def _around(self, job: _Job, client: Client) -> Changed:
        """What changes at the rank of a client and at the one before it."""
        assert client.rank is not None  # it has joined
        return self._changed(job, dict.fromkeys(((client.rank - 1) % client.ranks, client.rank)), client.ranks)

    def _changed(self, job: _Job, ranks: Iterable[int], count: int) -> Changed:
        changed = Changed([], [])
        for rank in ranks if job.was_whole else ():
            own, following = job.ranks.get(rank, {}), job.ranks.get((rank + 1) % count, {})
            pair = job.pairs.get(rank)
            if pair is not None:
                if pair.client in own and any(one.endpoint is pair.peer for one in following):
                    continue
                changed.ended.append(job.pairs.pop(rank))
            pair = self._pair(own, following)
            if pair is not None:
                job.pairs[rank] = pair
                changed.expected.append(pair)
        return changed

    def _pair(self, own: dict[Client, None], following: dict[Client, None]) -> Pair | None:
        """The pair of a rank and the one after it, if each has one NIC."""
        if not len({one.nic for one in own}) == 1 == len({one.nic for one in following}):
            return None
        return self._parties.pair(next(iter(own)), next(iter(following)).endpoint.at)
