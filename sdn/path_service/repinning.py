# SPDX-License-Identifier: Apache-2.0
"""How soon pairs had ports of their paths: at first, and again after routes had changed. No I/O."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sdn.measured.discovery import PairKey

_KEPT = 20


@dataclass(frozen=True, slots=True)
class Repinned:
    """From `at_s` on, for so many seconds, ports of so many pairs were in doubt. So many lanes changed their paths."""

    at_s: float
    seconds: float
    pairs: int
    lanes: int


class Repinning:
    """Follows the pairs whose ports in use are in doubt. Times are in seconds, and never decrease."""

    def __init__(self) -> None:
        self.past: deque[Repinned] = deque(maxlen=_KEPT)
        """The last times at which lanes had to change their paths; not those that were in doubt in vain."""
        self._open: dict[PairKey, None] = {}
        self._pairs: dict[PairKey, None] = {}  # those that were in doubt since `_since_s`
        self._since_s = 0.0
        self._moves = 0

    def doubt(self, now_s: float, pairs: Iterable[PairKey], moves: int) -> None:
        """The ports of these pairs are in doubt. moves: how often lanes have changed their paths or ports so far."""
        fresh = dict.fromkeys(pairs)
        if fresh and not self._open:
            self._since_s, self._moves, self._pairs = now_s, moves, {}
        self._open |= fresh
        self._pairs |= fresh

    def settle(self, now_s: float, in_doubt: Callable[[PairKey], bool], moves: Callable[[], int]) -> None:
        """Looks which pairs are in doubt no longer."""
        if not self._open:
            return
        self._open = {pair: None for pair in self._open if in_doubt(pair)}
        if not self._open and (lanes := moves() - self._moves) > 0:
            self.past.append(Repinned(self._since_s, now_s - self._since_s, len(self._pairs), lanes))


class FirstPorts:
    """Follows how long announced pairs wait for their first ports."""

    def __init__(self) -> None:
        self._count = 0
        self._total_s = 0.0
        self._longest_s = 0.0
        self._since_s: dict[PairKey, float] = {}

    def wait(self, now_s: float, pair: PairKey) -> None:
        """A pair without ports was announced."""
        self._since_s.setdefault(pair, now_s)

    def forget(self, pair: PairKey) -> None:
        """A pair is not announced any more."""
        self._since_s.pop(pair, None)

    def look(self, now_s: float, pairs: Iterable[PairKey], has_ports: Callable[[PairKey], bool]) -> None:
        """Some of these pairs may have ports now."""
        for pair in pairs:
            if pair in self._since_s and has_ports(pair):
                waited_s = now_s - self._since_s.pop(pair)
                self._count += 1
                self._total_s += waited_s
                self._longest_s = max(self._longest_s, waited_s)

    def status(self) -> dict[str, float]:
        """The pairs that have got their first ports, and how long they waited for them."""
        mean_s = self._total_s / max(1, self._count)
        return {"pairs": self._count, "mean_s": mean_s, "longest_s": self._longest_s}
