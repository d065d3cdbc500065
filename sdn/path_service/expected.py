# SPDX-License-Identifier: Apache-2.0
"""Elephants that are expected: what repeats is learned, and its paths are assigned before it is announced. Pure."""

from collections.abc import Iterator

from netmodel import IPPROTO_TCP, IPPROTO_UDP, ROCE_PORT
from sdn.forecast import Announced, Forecast, HitRate
from sdn.path_service.messages import Announce
from sdn.path_service.parties import Client, Pair, Parties

AHEAD_S = 0.1
"""The time in seconds from the assignment of a path to the elephant's expected start."""


class Expectations:
    """Forecasts elephants, and keeps the pairs whose commodity was planned for an elephant not announced yet."""

    def __init__(self, parties: Parties) -> None:
        self.pairs: dict[Pair, None] = {}
        self._parties = parties
        self._forecast = Forecast()

    @property
    def hit_rate(self) -> HitRate:
        return self._forecast.hit_rate

    def observe(self, now_s: float, client: Client, message: Announce) -> None:
        """Learns from an elephant that a client announces."""
        event = (message.job, client.key[0], message.peer, message.bytes, message.repeat_s)
        self._forecast.observe(Announced(now_s, *event))

    def expired(self, now_s: float) -> list[Pair]:
        """Pairs whose expected elephant has not come in time."""
        return [pair for pair in self.pairs if pair.expires_s < now_s]

    def due(self, now_s: float) -> Iterator[tuple[Pair, float]]:
        """Pairs without a commodity whose next elephant is due soon, each with the latest time at which it may come.

        The caller gives each pair a commodity, and adds it, before it asks for the next.
        """
        for coming in self._forecast.expected(now_s, AHEAD_S):
            if coming.at_s <= now_s:
                continue
            for protocol in (IPPROTO_UDP, IPPROTO_TCP):  # a host's devices may be of both
                sender = self._parties.receiver((coming.src, ROCE_PORT, protocol))
                pair = None if sender is None else self._parties.pair(sender, (coming.dst, ROCE_PORT, protocol))
                if pair is not None and pair.commodity is None:
                    yield pair, coming.latest_s

    def add(self, pair: Pair, expires_s: float) -> None:
        """Remember that a commodity was planned for an elephant that is expected until `expires_s`."""
        pair.expires_s = expires_s
        self.pairs[pair] = None

    def discard(self, pair: Pair) -> None:
        """Forget a pair whose elephant has come, or whose commodity has been removed."""
        if self.pairs:
            self.pairs.pop(pair, None)
