# SPDX-License-Identifier: Apache-2.0
"""Clients and pairs: pairs are created, looked up again after clients come or go, and forgotten."""

from __future__ import annotations

from typing import Literal

import pytest

from netmodel import IPPROTO_UDP
from sdn.path_service import parties as module
from sdn.path_service.messages import Hello
from sdn.path_service.parties import Client, Parties
from sdn.path_service.service import PathService
from tests.sdn.path_service.sample import Hosts, fabric

NICS = {f"10.0.0.{number}": number for number in range(6)}


def joined(
    parties: Parties,
    conn: int,
    nic: int,
    instance: int = 0,
    udp_port: int = 4791,
    protocol: Literal["udp", "tcp"] = "udp",
) -> Client:
    return parties.join(conn, Hello(1, "token", f"10.0.0.{nic}", f"{instance:016x}", 2, udp_port, protocol))


def test_the_reverse_of_a_pair_has_all_receivers_at_the_peer() -> None:
    parties = Parties(NICS)
    sender = joined(parties, 1, 0)
    there = ("10.0.0.1", 4791, IPPROTO_UDP)
    pair = parties.pair(sender, there)
    assert pair is not None
    assert parties.pair(sender, there) is pair
    assert parties.reverse(pair) == []
    first, second = joined(parties, 2, 1), joined(parties, 3, 1, instance=1)
    joined(parties, 4, 1, udp_port=5000)  # another endpoint
    joined(parties, 5, 1, protocol="tcp")  # and another
    backs = parties.reverse(pair)
    assert [back.client for back in backs] == [first, second]
    assert all(back.peer is sender.endpoint for back in backs)
    assert parties.leave(2) is first
    parties.forget(first)
    assert parties.reverse(pair) == backs[1:]
    assert parties.leave(2) is None


def test_there_is_no_pair_to_itself_or_outside_the_fabric() -> None:
    parties = Parties(NICS)
    sender = joined(parties, 1, 0)
    for address, port in (("10.0.0.0", 4791), ("10.0.0.0", 5000), ("10.9.9.9", 4791), ("", 1)):
        assert parties.pair(sender, (address, port, IPPROTO_UDP)) is None


def test_clients_that_left_are_forgotten_with_their_endpoints() -> None:
    parties = Parties(NICS)
    clients = [joined(parties, conn, conn) for conn in range(6)]
    for client in clients:
        for peer in NICS:
            parties.pair(client, (peer, 4791, IPPROTO_UDP))
    assert parties.receiver(("10.0.0.3", 4791, IPPROTO_UDP)) is clients[3]
    for conn, client in enumerate(clients):
        assert parties.leave(conn) is client
        parties.forget(client)
    assert not parties.clients
    assert parties.receiver(("10.0.0.3", 4791, IPPROTO_UDP)) is None
    assert joined(parties, 9, 3).endpoint is not clients[3].endpoint


def test_forgetting_idle_pairs_keeps_all_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAIRS", 2)
    hosts = Hosts(PathService(fabric()))
    for host in range(6):
        hosts.connect(host)
    for turn in range(4):
        for host in range(6):
            hosts.announce(host + 1, turn, (host + 1 + turn) % 6)
            hosts.check()
        for host in range(0, 6, 2):
            hosts.release(host + 1, turn)
            hosts.check()
    hosts.disconnect(1)
    hosts.check()


def test_idle_pairs_per_client_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAIRS", 2)
    parties = Parties(NICS)
    sender, receiver = joined(parties, 1, 0), joined(parties, 2, 1)
    kept = parties.pair(sender, ("10.0.0.1", 4791, IPPROTO_UDP))
    assert kept is not None
    kept.commodity = 0
    idle = parties.reverse(kept)
    for nic in (2, 3, 4):
        parties.pair(receiver, (f"10.0.0.{nic}", 4791, IPPROTO_UDP))
        parties.pair(sender, (f"10.0.0.{nic}", 4791, IPPROTO_UDP))
        assert max(len(sender.pairs), len(receiver.pairs)) <= 2
    assert sender.pairs[("10.0.0.1", 4791, IPPROTO_UDP)] is kept
    assert parties.reverse(kept) != idle
    assert [back.client for back in parties.reverse(kept)] == [receiver]
