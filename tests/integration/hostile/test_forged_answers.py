# SPDX-License-Identifier: Apache-2.0
"""ICMP messages that a host forges, and what a prober believes of them: only a raw socket can send such."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.packet import Raw

from hostlib.probing import ProbeLimits, Prober, Target
from netmodel.probing.observations import Observation

pytestmark = pytest.mark.sandboxed

PROBER, PEER, LIAR, NAMED = "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.99"
TIME_EXCEEDED, UNREACHABLE = 11, 3
SOURCE_PORT = 50000


@dataclass(frozen=True)
class Seen:
    """A probe, as one who reads on the path sees it."""

    source_port: int
    port: int
    payload: bytes


Forgery = Callable[[Seen], IP]


def quoting(seen: Seen, payload: bytes, *, by: str = NAMED, kind: int = TIME_EXCEEDED, code: int = 0, **udp: int) -> IP:
    """An ICMP message from `by` that quotes a probe with this payload."""
    ports = {"sport": seen.source_port, "dport": seen.port, "len": 8 + len(seen.payload)} | udp
    inner = IP(src=PROBER, dst=PEER, proto=17, len=28 + len(seen.payload)) / UDP(**ports, chksum=0) / Raw(payload)
    return IP(src=by, dst=PROBER) / ICMP(type=kind, code=code) / Raw(bytes(inner))


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    """Takes probes in silence."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind((PEER, 0))
        bound.settimeout(30)
        yield bound


def attacked(peer: socket.socket, forgery: Forgery, timeout_s: float = 30) -> tuple[list[Observation], Prober]:
    """What a prober observes of one port once it has taken this forgery, which answers its probe."""
    port = peer.getsockname()[1]
    prober = Prober(ProbeLimits(rate=0, router_rate=0, timeout_s=timeout_s, attempts=1))
    prober.ask(Target(PROBER, PEER, port), 9, [SOURCE_PORT])

    def forge() -> None:
        payload, (_, source_port) = peer.recvfrom(2048)
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            raw.sendto(bytes(forgery(Seen(source_port, port, payload))), (PROBER, 0))

    liar = threading.Thread(target=forge)
    liar.start()
    deadline = time.monotonic() + 60
    while not prober.run(0.01) and not prober.counters()["mismatched"] and time.monotonic() < deadline:
        pass
    liar.join()
    return prober.take_observations(), prober


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param(lambda seen: quoting(seen, os.urandom(len(seen.payload))), id="another payload"),
        pytest.param(
            lambda seen: quoting(seen, seen.payload[:-1] + bytes([seen.payload[-1] ^ 1])), id="a wrong last byte"
        ),
        pytest.param(lambda seen: quoting(seen, seen.payload[:8] + bytes(8)), id="the nonce unknown"),
        pytest.param(lambda seen: quoting(seen, seen.payload, dport=seen.port ^ 1), id="another destination port"),
        pytest.param(lambda seen: quoting(seen, seen.payload, kind=12), id="another ICMP type"),
    ],
)
def test_a_forged_answer_that_does_not_quote_the_probe_is_not_believed(peer: socket.socket, forgery: Forgery) -> None:
    seen, prober = attacked(peer, forgery)
    assert (prober.counters()["answered"], prober.counters()["mismatched"]) == (0, 1)
    assert not seen
    assert not prober.take_failures()


def test_an_answer_for_another_source_port_reaches_no_probe(peer: socket.socket) -> None:
    seen, prober = attacked(peer, lambda seen: quoting(seen, seen.payload, sport=SOURCE_PORT + 1), timeout_s=0.5)
    assert [one.answer for one in seen] == ["none"]
    assert prober.counters()["mismatched"] == 0


def test_who_reads_the_probe_can_name_any_router(peer: socket.socket) -> None:
    """So the service takes only routers that are on a path of the pair."""
    seen, _ = attacked(peer, lambda seen: quoting(seen, seen.payload))
    assert [(one.answer, one.router) for one in seen] == [("hop", NAMED)]


def test_a_quote_of_the_udp_header_alone_is_believed_since_routers_may_quote_no_more(peer: socket.socket) -> None:
    seen, _ = attacked(peer, lambda seen: quoting(seen, b""))
    assert [(one.answer, one.router) for one in seen] == [("hop", NAMED)]


def test_only_the_destination_can_say_that_a_probe_arrived(peer: socket.socket) -> None:
    def closed(seen: Seen) -> IP:
        return quoting(seen, seen.payload, by=LIAR, kind=UNREACHABLE, code=3)

    seen, prober = attacked(peer, closed)
    assert not seen
    assert [failure.router for failure in prober.take_failures()] == [LIAR]
