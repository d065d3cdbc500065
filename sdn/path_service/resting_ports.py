# SPDX-License-Identifier: Apache-2.0
"""Ports that a kernel keeps for a while after a connection from them has ended (`TIME_WAIT`). Pure.

Nobody tells the service which these are. But an agent gives a connection the first of its clients that has none to the
same port of the peer, and passes over one whose port cannot be used yet. So where a client begins although one with
fewer lanes has no connection, the last port of that one rests.
"""

from collections import deque
from dataclasses import dataclass

from sdn.measured.discovery import PairKey

REST_S = 60.0
"""Linux's `TIME_WAIT`."""


@dataclass(slots=True)
class _Ended:
    key: PairKey
    lanes: int
    port: int
    until_s: float
    rests: bool = False


class RestingPorts:
    """The last port of each client to each port of a peer, for as long as it may rest."""

    def __init__(self) -> None:
        self._ended: dict[PairKey, dict[int, _Ended]] = {}  # by the lanes of the client
        self._all: deque[_Ended] = deque()  # the first one was the first to end

    def of(self, key: PairKey) -> list[int]:
        """The ports of a pair that rest."""
        return [each.port for each in self._ended.get(key, {}).values() if each.rests]

    def begin(self, now_s: float, key: PairKey, lanes: int, taken: set[int]) -> None:
        """A connection begins of the client with so many lanes. Those with `taken` lanes have one already."""
        while self._all and self._all[0].until_s <= now_s:
            self._forget(self._all.popleft())
        for each in list(self._ended.get(key, {}).values()):
            if each.lanes == lanes:  # its port may be used again
                self._forget(each)
            elif each.lanes < lanes and each.lanes not in taken:
                each.rests = True

    def end(self, now_s: float, key: PairKey, lanes: int, port: int) -> None:
        """The connection of a client has ended."""
        ended = _Ended(key, lanes, port, now_s + REST_S)
        self._ended.setdefault(key, {})[lanes] = ended
        self._all.append(ended)

    def _forget(self, ended: _Ended) -> None:
        own = self._ended.get(ended.key, {})
        if own.get(ended.lanes) is ended:
            del own[ended.lanes]
            if not own:
                del self._ended[ended.key]
