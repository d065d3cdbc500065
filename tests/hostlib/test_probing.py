# SPDX-License-Identifier: Apache-2.0
"""Probes from Python, over the loopback interface, where only the destination can answer."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from hostlib.probing import ProbeLimits, Prober, Target
from netmodel.probing.observations import Observation
from tests.ports import free_ports

FAST = ProbeLimits(rate=0, router_rate=0, timeout_s=0.05, attempts=2)
HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A UDP socket that takes what comes, and says nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind((THERE, 0))
        yield bound


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_an_observation_is_what_files_of_probes_hold(protocol: str) -> None:
    prober = Prober(FAST)
    port, *sources = free_ports(11)
    target = Target(HERE, THERE, port, "tcp" if protocol == "tcp" else "udp")
    prober.ask(target, 3, sources)
    assert prober.run(10)
    seen = prober.take_observations()
    failures = prober.take_failures()  # other programs may have taken some of the ports since free_ports looked at them
    assert len(seen) + len(failures) == 10
    assert {failure.error for failure in failures} <= {errno.EADDRINUSE}
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
    prober.ask(Target(HERE, THERE, taken.getsockname()[1]), 1, free_ports(1))
    assert prober.run(10)
    assert [one.answer for one in prober.take_observations()] == ["none", "none"]
    assert prober.counters() == {"sent": 2, "answered": 0, "mismatched": 0, "limited": 0}


def test_a_run_ends_in_time_and_what_waits_can_be_forgotten(taken: socket.socket) -> None:
    prober = Prober(ProbeLimits(rate=0, router_rate=0.001, router_burst=1, timeout_s=0.05, attempts=1))
    prober.ask(Target(HERE, THERE, taken.getsockname()[1]), 1, free_ports(20))
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
