# SPDX-License-Identifier: Apache-2.0
"""Which source port takes which path, measured: no switch has to tell its hash, and no privilege is needed.

A probe has the addresses and ports of a flow and a small time to live. The router at which that ends names itself (ICMP
time exceeded). The engine sends and matches (hostlib/native/src/prober).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from hostlib import _engine
from netmodel.probing.observations import Observation, Protocol

__all__ = ["Failure", "ProbeLimits", "Prober", "Target"]

ROCE_PORT = 4791
SOME_QPN = 0x00FFFE
"""A destination QPN, where the real one is not known."""


@dataclass(frozen=True, slots=True)
class Target:
    """A pair of addresses, and the port on which the far one receives.

    destination_port: switches hash it, so it must be that of the flows. For `soft` it is 4791 only for the first device
    on an address. qpn: of UDP, the destination QPN that probes carry, because some switches hash it.
    """

    source: str
    destination: str
    destination_port: int = ROCE_PORT
    protocol: Protocol = "udp"
    qpn: int = SOME_QPN


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """How fast to ask.

    rate: probes per second in all; 0 is unlimited. router_rate: answers per second that a router gives this host, 0 is
    unlimited, and router_burst, how many it gives at once: the defaults are those of Linux (icmp_ratelimit). timeout_s:
    how long an answer is waited for. attempts: packets for a probe that nobody answers.
    """

    rate: float = 1000.0
    router_rate: float = 1.0
    router_burst: float = 6.0
    timeout_s: float = 0.5
    attempts: int = 4
    window: int = 256
    """Probes under way at a time, each with a socket."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A probe that this host could not send, or that a router refused (`router` says which)."""

    target: Target
    source_port: int
    ttl: int
    error: int
    router: str | None

    @property
    def reason(self) -> str:
        """The error as the system says it."""
        return os.strerror(self.error)


class Prober:
    """Sends probes and takes their answers, while `run` runs. One object keeps to one set of limits of routers.

    Of a source port one probe is under way at a time, whatever its target.
    """

    def __init__(self, limits: ProbeLimits = ProbeLimits()) -> None:
        """Raises ValueError for limits that make no sense, and DeviceError when this process may open no more files."""
        self._native = _engine.Prober(
            rate=limits.rate,
            router_rate=limits.router_rate,
            router_burst=limits.router_burst,
            timeout_s=limits.timeout_s,
            attempts=limits.attempts,
            window=limits.window,
        )
        self._targets: list[Target] = []
        self._numbers: dict[Target, int] = {}

    def ask(self, target: Target, ttl: int, ports: Iterable[int]) -> None:
        """Queue a probe from each of these source ports, whose time to live ends at hop `ttl`.

        Raises ValueError for what is no address, and for a port or a time to live of 0.
        """
        if target not in self._numbers:
            self._numbers[target] = self._native.add_target(
                target.source,
                target.destination,
                destination_port=target.destination_port,
                tcp=target.protocol == "tcp",
                qpn=target.qpn,
            )
            self._targets.append(target)
        self._native.add(self._numbers[target], ttl, list(ports))

    def run(self, timeout_s: float) -> bool:
        """Send and receive until all probes are settled, or for `timeout_s` seconds. Whether all are."""
        return self._native.run(timeout_s)

    def drop_waiting(self) -> int:
        """Forget the probes that have not left. Returns how many there were."""
        return self._native.drop_waiting()

    def take_observations(self) -> list[Observation]:
        """What was observed since the last call, one for each packet. Times count from when the prober was made."""
        return [
            Observation(
                to.source, to.destination, to.protocol, port, to.destination_port, ttl, answer, router, rtt_s, at_s
            )
            for number, port, ttl, answer, router, rtt_s, at_s in self._native.observations()
            for to in [self._targets[number]]
        ]

    def take_failures(self) -> list[Failure]:
        """What could not be probed, since the last call."""
        return [
            Failure(self._targets[target], port, ttl, error, router)
            for target, port, ttl, error, router in self._native.failures()
        ]

    def counters(self) -> dict[str, int]:
        """Packets `sent` and `answered`; `mismatched` ICMP messages, which quote no probe that was under way; probes
        that were `limited`, because a router answers no faster."""
        return self._native.counters()
