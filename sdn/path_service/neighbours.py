# SPDX-License-Identifier: Apache-2.0
"""Neighbouring ranks of a job: their connections will carry data. Pure.

Gloo connects all ranks with each other when a program starts, and sends data around the ring of ranks. Nothing tells
the connections of the ring from the others before data flow, and then it is too late: they cannot move. So the ranks
themselves say who they are (`Hello.rank`), and paths are planned for the ring before its connections begin.
"""

from collections.abc import Iterable

from sdn.path_service.parties import Client, Pair, Parties


class _Job:
    """The ranks of a job that are there, each with its clients."""

    def __init__(self) -> None:
        self.ranks: dict[int, dict[Client, None]] = {}
        self.was_whole = False
        """Whether all ranks have been there: then each that comes back is planned at once."""


class Neighbours:
    """The ranks of all jobs, each of which is a client whose connections cannot move."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self._jobs: dict[tuple[str, int], _Job] = {}  # by name and number of ranks

    def join(self, client: Client) -> list[Pair]:
        """A client has said hello. Returns the pairs whose connections will carry data, once all ranks are there.

        The paths of a ring are planned together. Ranks on one NIC need none. Nor has a rank of several NICs any: nobody
        tells which one it uses.
        """
        if client.rank is None or client.rank >= client.ranks or not client.fixed or not client.job:
            return []
        job = self._jobs.setdefault((client.job, client.ranks), _Job())
        job.ranks.setdefault(client.rank, {})[client] = None
        first: Iterable[int] = ((client.rank - 1) % client.ranks, client.rank)
        if not job.was_whole:
            if len(job.ranks) < client.ranks:
                return []
            job.was_whole, first = True, range(client.ranks)
        found = (self._pair(job.ranks.get(rank, {}), job.ranks.get((rank + 1) % client.ranks, {})) for rank in first)
        return [pair for pair in found if pair is not None and pair.commodity is None]

    def leave(self, client: Client) -> list[Pair]:
        """A client has left. Returns the pairs of others towards it."""
        job = self._jobs.get((client.job, client.ranks))
        if job is None or client.rank is None or client not in job.ranks.get(client.rank, {}):
            return []
        del job.ranks[client.rank][client]
        if not job.ranks[client.rank]:
            del job.ranks[client.rank]
        if not job.ranks:
            del self._jobs[client.job, client.ranks]
        before = job.ranks.get((client.rank - 1) % client.ranks, {})
        pairs = (other.pairs.get(client.endpoint.at) for other in before)
        return [pair for pair in pairs if pair is not None and pair.commodity is not None and not pair.elephants]

    def _pair(self, own: dict[Client, None], following: dict[Client, None]) -> Pair | None:
        """The pair of a rank and the one after it, if each has one NIC."""
        if not len({one.nic for one in own}) == 1 == len({one.nic for one in following}):
            return None
        return self._parties.pair(next(iter(own)), next(iter(following)).endpoint.at)
