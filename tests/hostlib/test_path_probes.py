# SPDX-License-Identifier: Apache-2.0
"""A device probes paths for the path service. Over the loopback interface no router answers, but a closed port does."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hostlib import Device
from tests.ports import free_ports

from .conftest import A, B, Pair, join
from .path_service import TOKEN, Message, PathService, eventually

OFFER: Message = {"probe": True, "router_rate": 0}
TTL = 4


@pytest.fixture
def service() -> Iterator[PathService]:
    with PathService() as service:
        service.welcome = OFFER
        yield service


def controlled(service: PathService, **options: Any) -> Device:
    common: dict[str, Any] = {"lanes": 4, "target_queue_s": 0.02, "min_timeout_s": 2.0, "probe_rate": 2000.0}
    return Device(A, policy="controller", path_service=service.address, token=TOKEN, **(common | options))


def free_port() -> int:
    return free_ports(1)[0]


def ask(number: int, ports: list[int], peer_port: int, **more: Any) -> Message:
    return {"type": "probe", "ask": number, "peer": B, "peer_port": peer_port, "ttl": TTL, "ports": ports, **more}


def answers(service: PathService, number: int) -> dict[int, list[Any]]:
    """The answers to an ask, by source port."""

    def found() -> list[Message]:
        return [message for message in service.of_type("probed") if message["ask"] == number]

    (message,) = eventually(found, f"ask {number} was never answered")
    return {row[0]: row[1:] for row in message["answers"]}


def lane_ports(pair: Pair) -> list[int]:
    return [lane["port"] for lane in pair.one.counters()["lanes"]]


def test_ports_that_carry_data_are_probed_and_the_data_arrive(service: PathService) -> None:
    with controlled(service) as one, Device(B, lanes=4) as two:
        assert service.received("probe")[0]["rate"] == 2000.0
        pair = join(one, two)
        closed = free_port()
        for number in range(8):
            service.push(ask(number, lane_ports(pair), closed))
            data = os.urandom(2**20)
            assert pair.exchange(data) == data
            found = answers(service, number)
            assert sorted(found) == sorted(lane_ports(pair))
            assert {tuple(row[:2]) for row in found.values()} == {("destination", B)}
            assert all(0 < row[2] < 60 for row in found.values())
        assert one.counters()["messages"]["failed"] == 0
        assert one.counters()["path_client"]["invalid"] == 0


def test_a_port_that_takes_probes_in_silence_is_none_and_its_device_drops_them(service: PathService) -> None:
    with controlled(service) as one, Device(B, lanes=4) as two:
        service.received("probe")
        pair = join(one, two)
        before = two.counters()["discards"]["malformed"]
        service.push(ask(1, lane_ports(pair)[:1], two.udp_port))
        assert list(answers(service, 1).values()) == [["none", None, None]]
        assert two.counters()["discards"]["malformed"] - before == 3  # its attempts
        assert pair.exchange(b"still here") == b"still here"


def test_lanes_over_tcp_are_probed_by_syns(service: PathService) -> None:
    with controlled(service, backend="tcp"):
        service.received("probe")
        with closing(socket.socket()) as listening:  # so that the port is closed, not free for others
            listening.bind((B, 0))
            service.push(ask(1, free_ports(2), listening.getsockname()[1]))
            assert [row[:2] for row in answers(service, 1).values()] == [["destination", B]] * 2


def test_a_change_of_a_watched_port_is_told_once(service: PathService) -> None:
    watched = {"type": "watch", "peer": B, "peer_port": free_port(), "ttl": TTL, "period_s": 0.1}
    moving, staying = free_ports(2)
    with controlled(service) as one:
        service.received("probe")
        service.push(watched | {"ports": [[moving, "172.16.0.1"], [staying, B]]})
        (moved,) = service.received("moved")
        assert (moved["peer"], moved["peer_port"]) == (B, watched["peer_port"])
        assert [row[:3] for row in moved["answers"]] == [[moving, "destination", B]]
        service.push(ask(1, [moving], watched["peer_port"]))
        answers(service, 1)
        time.sleep(0.3)
        assert len(service.of_type("moved")) == 1
        assert one.counters()["path_client"]["ports_moved"] == 1
        service.push(watched | {"ports": []})
        assert one.counters()["path_client"]["connected"]


def test_a_port_is_watched_at_several_hops(service: PathService) -> None:
    watched = {"type": "watch", "peer": B, "peer_port": free_port(), "period_s": 0.1}
    port = free_port()
    with controlled(service):
        (offer,) = service.received("probe")
        assert (offer["hops"], offer["until"]) == (True, True)
        for ttl in (TTL, TTL + 1):
            service.push(watched | {"ttl": ttl, "ports": [[port, "172.16.0.1"]]})
        assert {moved["ttl"] for moved in service.received("moved", 2)} == {TTL, TTL + 1}
        assert len(service.of_type("moved")) == 2


def test_a_device_whose_probes_are_turned_off_does_not_offer_them(service: PathService) -> None:
    with controlled(service, probe_rate=0) as one:
        eventually(lambda: one.counters()["path_client"]["connected"], "never connected")
        service.push(ask(1, [free_port()], free_port()))
        eventually(lambda: one.counters()["path_client"]["invalid"] == 1, "the ask was never counted")
        assert not service.of_type("probe")
        assert not service.of_type("probed")


def test_an_ask_whose_ports_cannot_be_probed_is_answered(service: PathService) -> None:
    with controlled(service), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as other:
        taken = free_port()
        other.bind((A, taken))
        service.received("probe")
        service.push(ask(1, [taken], free_port()), {**ask(2, [free_port()], 9), "peer": "fd00::1"})
        assert list(answers(service, 1).values()) == [["failed", None, None]]
        assert list(answers(service, 2).values()) == [["failed", None, None]]


def test_after_a_reconnection_probes_are_offered_again_and_old_asks_are_forgotten(service: PathService) -> None:
    port = free_port()
    with controlled(service, reconnect_s=(0.01, 0.02)), Device(B) as two:
        service.received("probe")
        service.push(ask(1, [port], two.udp_port))  # never answered by the peer
        service.stop()
        service.start()
        service.received("probe", 2)
        service.push(ask(2, [port], free_port()))
        assert answers(service, 2)[port][:2] == ["destination", B]
        assert {message["ask"] for message in service.of_type("probed")} == {2}


def test_a_device_closes_at_once_while_probes_are_under_way(service: PathService) -> None:
    with Device(B) as two:
        device = controlled(service)
        service.received("probe")
        takes_s = 5.0  # the longest time of an ask, and this one's rate makes it the least
        service.push(ask(1, free_ports(64), two.udp_port, rate=5.0))
        eventually(lambda: two.counters()["discards"]["malformed"] > 0, "no probe ever arrived")
        began = time.monotonic()
        device.close()
        assert time.monotonic() - began < takes_s
        assert not service.of_type("probed")
