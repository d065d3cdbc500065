# SPDX-License-Identifier: Apache-2.0
"""Devices whose lanes are TCP connections."""

import re

import pytest

from hostlib import Device, DeviceError, Faults, TransportError

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
        sentence = "give both sides the same back end"
        with pytest.raises(TransportError, match=sentence):
            one.connect(two.listen().handle)


def test_a_congestion_control_that_the_kernel_lacks_is_named() -> None:
    sentence = "this kernel has no TCP congestion control 'nonesuch', or does not allow it; it has: "
    with pytest.raises(DeviceError, match=f"^{re.escape(sentence)}.*reno"):
        Device(A, backend="tcp", tcp_congestion="nonesuch")
