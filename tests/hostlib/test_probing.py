# SPDX-License-Identifier: Apache-2.0
"""Probes from Python, over the loopback interface, where only the destination can answer."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from hostlib.probing import ProbeLimits, Prober, Target
from netmodel.probing.observations import Observation

FAST = ProbeLimits(rate=0, router_rate=0, timeout_s=0.05, attempts=2)
HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A UDP socket that takes what comes, and says nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind((THERE, 0))
        yield bound


def closed_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as briefly:
        briefly.bind((THERE, 0))
        return int(briefly.getsockname()[1])


@pytest.mark.parametrize(("protocol", "kind"), [("udp", socket.SOCK_DGRAM), ("tcp", socket.SOCK_STREAM)])
def test_an_observation_is_what_files_of_probes_hold(protocol: str, kind: socket.SocketKind) -> None:
    prober = Prober(FAST)
    port = closed_port(kind)
    target = Target(HERE, THERE, port, "tcp" if protocol == "tcp" else "udp")
    prober.ask(target, 3, range(50000, 50010))
    assert prober.run(10)
    seen = prober.take_observations()
    assert len(seen) + len(prober.take_failures()) == 10
    one = seen[0]
    assert isinstance(one, Observation)
    assert (one.source, one.destination, one.protocol, one.destination_port) == (HERE, THERE, protocol, port)
    assert (one.ttl, one.answer, one.router) == (3, "destination", THERE)
    assert one.rtt_s is not None
    assert one.rtt_s > 0
    assert one.at_s >= 0
    assert prober.take_observations() == []


def test_a_silent_destination_is_asked_again_and_each_packet_told(taken: socket.socket) -> None:
    prober = Prober(FAST)
    prober.ask(Target(HERE, THERE, taken.getsockname()[1]), 1, [closed_port(socket.SOCK_DGRAM)])
    assert prober.run(10)
    assert [one.answer for one in prober.take_observations()] == ["none", "none"]
    assert prober.counters() == {"sent": 2, "answered": 0, "mismatched": 0, "limited": 0}


def test_a_run_ends_in_time_and_what_waits_can_be_forgotten(taken: socket.socket) -> None:
    prober = Prober(ProbeLimits(rate=0, router_rate=0.001, router_burst=1, timeout_s=0.05, attempts=1))
    prober.ask(Target(HERE, THERE, taken.getsockname()[1]), 1, range(50000, 50020))
    assert not prober.run(0.2)
    assert prober.drop_waiting() >= 18
    assert prober.run(10)


def test_a_port_of_another_program_is_a_failure_with_its_reason(taken: socket.socket) -> None:
    prober = Prober(FAST)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HERE, 0))
        prober.ask(Target(HERE, THERE, taken.getsockname()[1]), 1, [other.getsockname()[1]])
        assert prober.run(10)
    (failure,) = prober.take_failures()
    assert failure.error == errno.EADDRINUSE
    assert failure.reason == "Address already in use"


def test_what_makes_no_sense_is_refused() -> None:
    prober = Prober(FAST)
    with pytest.raises(ValueError, match="one IP version"):
        prober.ask(Target(HERE, "::1"), 1, [50000])
    with pytest.raises(ValueError, match="no-address"):
        prober.ask(Target(HERE, "no-address"), 1, [50000])
    with pytest.raises(ValueError, match="source port"):
        prober.ask(Target(HERE, THERE), 1, [0])
    with pytest.raises(ValueError, match="time to live"):
        prober.ask(Target(HERE, THERE), 0, [50000])
    with pytest.raises(ValueError, match="rate"):
        Prober(ProbeLimits(rate=-1))
    with pytest.raises(ValueError, match="timeout_s"):
        Prober(ProbeLimits(timeout_s=0))
