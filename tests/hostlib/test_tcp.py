# SPDX-License-Identifier: Apache-2.0
"""Devices whose lanes are TCP connections."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hostlib import Device, DeviceError, Faults, TransportError, local_interfaces, stats
from hostlib.stats import DeviceSnapshot
from tests.ports import free_ports

from . import crossing_process

A = "127.0.0.1"
B = "127.0.0.2"


def test_messages_pass_over_tcp_both_ways_though_connections_are_cut() -> None:
    faults = Faults(cut=0.05, seed=1)
    with Device(A, backend="tcp", faults=faults) as one, Device(B, backend="tcp", faults=faults) as two:
        listener = two.listen()
        there = one.connect(listener.handle)
        back = listener.accept(timeout_s=10)
        for size in (0, 8, 100_000, 3_000_000):
            data = bytes(i % 251 for i in range(size))
            for sender, receiver in ((there, back), (back, there)):
                into = bytearray(size)
                receiving = receiver.recv(into)
                sender.send(data).wait(10)
                receiving.wait(10)
                assert into == data


def test_a_peer_with_another_back_end_is_refused_with_the_reason() -> None:
    with Device(A, backend="tcp") as one, Device(B) as two:
        sentence = (
            f"{B} refused: the lanes of {B} are RoCEv2 (back end soft or verbs), those of {A} TCP connections "
            "(back end tcp): name one back end for both, with PARALET_BACKEND"
        )
        with pytest.raises(TransportError, match=f"^{re.escape(sentence)}$"):
            one.connect(two.listen().handle)


def test_a_congestion_control_that_the_kernel_lacks_is_named() -> None:
    sentence = "this kernel has no TCP congestion control 'nonesuch', or does not allow it; it has: "
    with pytest.raises(DeviceError, match=f"^{re.escape(sentence)}.*reno"):
        Device(A, backend="tcp", tcp_congestion="nonesuch")


def test_counters_and_live_counters_of_lanes_over_tcp_say_what_was_sent() -> None:
    size = 400_000
    with (
        Device(A, backend="tcp", lanes=4, flowlet_bytes=50_000) as one,
        Device(B, backend="tcp", lanes=4) as two,
    ):
        listener = two.listen()
        there = one.connect(listener.handle)
        back = listener.accept(timeout_s=10)
        receiving = back.recv(bytearray(size))
        there.send(bytes(size)).wait(10)
        receiving.wait(10)
        sent, received = one.counters()["lanes"], two.counters()["lanes"]
        assert sum(lane["flowlets"] for lane in sent) == 8
        assert sum(lane["tx_bytes"] for lane in sent) >= size  # and messages of the engine
        assert sum(lane["rx_bytes"] for lane in received) == sum(lane["tx_bytes"] for lane in sent)
        assert sum(lane["tx_bytes"] for lane in received) < size
        assert {lane["port_method"] for lane in sent} == {"socket"}
        assert all(lane["rtt_s"] > 0 for lane in sent if lane["flowlets"] > 0)

        def snapshots() -> dict[str, DeviceSnapshot]:
            (process,) = stats.survey([os.getpid()]).processes
            return {device.address: device for device in process.devices if device.address in (A, B)}

        deadline = time.monotonic() + 10
        while sum(lane.tx_bytes for lane in snapshots()[A].lanes) < size:  # published now and then
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert {device.protocol for device in snapshots().values()} == {"tcp"}
        assert snapshots()[A].udp_port == one.udp_port


@pytest.mark.parametrize("policy", ["pinned", "ecmp"])
def test_the_side_that_connects_first_may_have_more_lanes_than_its_peer_has_pinned_ports(
    policy: str,
) -> None:
    larger: dict[str, Any] = {"ports": {B: free_ports(4)}} if policy == "pinned" else {}
    pinned = {A: free_ports(2)}
    with (
        Device(A, backend="tcp", lanes=4, policy=policy, **larger) as one,
        Device(B, backend="tcp", lanes=2, policy="pinned", ports=pinned) as two,
    ):
        listeners = one.listen(), two.listen()
        for device, listener in ((one, listeners[1]), (one, listeners[1]), (two, listeners[0])):
            there = device.connect(listener.handle)
            back = listener.accept(timeout_s=10)
            for sender, receiver in ((there, back), (back, there)):
                into = bytearray(500_000)
                receiving = receiver.recv(into)
                sender.send(b"x" * len(into)).wait(10)
                receiving.wait(10)
                assert into == b"x" * len(into)
        for device in (one, two):  # one set of lanes, for all connections
            assert device.counters()["peers"] == 1
            assert len(device.counters()["lanes"]) == 2
        assert {lane["port"] for lane in two.counters()["lanes"]} == set(pinned[A])


@pytest.mark.parametrize("addresses", [(A, B), ("::1", "::1")], ids=["ipv4", "ipv6"])
def test_processes_that_connect_to_each_other_at_once_can_both_pin_their_lanes(addresses: tuple[str, str]) -> None:
    if any(address not in {own for _, own, _ in local_interfaces()} for address in addresses if ":" in address):
        pytest.skip("the loopback interface has no address ::1")
    rounds = 20
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, crossing_process.__file__, own, peer, str(rounds)],
                    env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for own, peer in (addresses, addresses[::-1])
        ]
        for number in range(rounds):
            handles = [process.stdout.readline() for process in processes if process.stdout is not None]
            order = (0, 1) if number % 2 else (1, 0)
            for index in order:
                into = processes[index].stdin
                assert into is not None
                into.write(handles[1 - index])
                into.flush()
        assert [process.wait(60) for process in processes] == [0, 0]
