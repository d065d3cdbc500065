# SPDX-License-Identifier: Apache-2.0
"""Interoperability with an independent RoCEv2 implementation, the kernel's, in both directions.

Every test drives `soft` in one network namespace and a pyverbs program on rxe in another. PSNs, sizes and losses are
chosen; nothing is random but queue pair numbers.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from tests.softroce.interop.conftest import PROPERTY
from tests.softroce.interop.network import PLAIN_ADDRESS, RXE_ADDRESS, Wire, in_namespace

if TYPE_CHECKING:
    from tests.softroce.interop.pair import Pair

Connect = Callable[..., "Pair"]
Record = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(600)

TO_KERNEL, TO_SOFT = "soft to kernel", "kernel to soft"
directions = pytest.mark.parametrize("direction", [TO_KERNEL, TO_SOFT])
verbs = pytest.mark.parametrize("verb", ["WRITE", "WRITE_WITH_IMM", "SEND"])

SIZES = (0, 1, 3, 255, 256, 257, 4095, 4096, 4097, 20_001)
LARGEST = 4 << 20
NEAR_WRAP = 20  # PSNs left before 2^24
ALL_PSNS = 1 << 24
ROUNDS = 5  # on a slow machine a lost packet may have none behind it that would show the gap


def data_of(length: int) -> bytes:
    from tests.softroce.interop.pair import pattern

    return pattern(length)


@verbs
@directions
@pytest.mark.parametrize("path_mtu", [256, 512, 1024, 2048, 4096])
def test_messages_of_many_sizes(
    pair: Connect, record_property: Record, path_mtu: int, direction: str, verb: str
) -> None:
    record_property(PROPERTY, (f"{verb}, 0 B to 20 kB", direction, f"MTU {path_mtu}"))
    connected = pair(path_mtu=path_mtu)
    for size in SIZES:
        connected.carry(verb, direction, data_of(size))


@verbs
@directions
def test_a_large_message(pair: Connect, record_property: Record, direction: str, verb: str) -> None:
    record_property(PROPERTY, (f"{verb}, 4 MiB", direction, "MTU 4096"))
    pair(path_mtu=4096).carry(verb, direction, data_of(LARGEST))


@directions
def test_psns_wrap_around(pair: Connect, record_property: Record, direction: str) -> None:
    record_property(PROPERTY, ("PSN wrap-around", direction, "20 PSNs before, 200 after"))
    connected = pair(path_mtu=256, soft_wraps_within=NEAR_WRAP, kernel_psn=ALL_PSNS - NEAR_WRAP)
    assert ALL_PSNS - connected.first_psn <= NEAR_WRAP
    for verb in ("WRITE_WITH_IMM", "SEND"):
        connected.carry(verb, direction, data_of(110 * 256))


def test_the_kernel_retransmits_packets_that_soft_lost(pair: Connect, record_property: Record) -> None:
    record_property(PROPERTY, ("retransmission by the kernel", TO_SOFT, "a tenth of its packets lost"))
    connected = pair(path_mtu=1024, drop=0.1)
    for verb in ("WRITE", "WRITE_WITH_IMM", "SEND"):
        connected.carry(verb, TO_SOFT, data_of(100_000))
    statistics = connected.nic.statistics(connected.qpn)
    assert statistics["injected"] > 0
    assert statistics["out_of_order"] > 0  # it saw a gap and said so


def test_soft_retransmits_packets_that_the_kernel_lost(pair: Connect, wire: Wire, record_property: Record) -> None:
    record_property(PROPERTY, ("retransmission by soft", TO_KERNEL, "every 10th of its packets lost"))
    connected = pair(path_mtu=1024)
    wire.drop_every(10)
    for _ in range(ROUNDS):
        for verb in ("WRITE", "WRITE_WITH_IMM", "SEND"):
            connected.carry(verb, TO_KERNEL, data_of(100_000))
        statistics = connected.nic.statistics(connected.qpn)
        if statistics["naks"] > 0:
            break
    assert statistics["retransmits"] > 0
    assert statistics["naks"] > 0  # the kernel saw a gap and said so


@directions
def test_probes_of_the_path_of_a_qp_are_dropped(pair: Connect, record_property: Record, direction: str) -> None:
    """They have the addresses and the QPN of its packets, and come between its messages."""
    from hostlib.probing import ProbeLimits, Prober, Target
    from tests.softroce.interop.pair import ROCE_PORT, SOURCE_PORT

    record_property(PROPERTY, ("probes of its path between its messages: dropped", direction, ""))
    connected = pair()
    to_kernel = direction == TO_KERNEL
    ends = (PLAIN_ADDRESS, RXE_ADDRESS) if to_kernel else (RXE_ADDRESS, PLAIN_ADDRESS)
    target = Target(*ends, destination_port=ROCE_PORT, qpn=connected.peer.qpn if to_kernel else connected.qpn)
    prober = Prober(ProbeLimits(rate=0, router_rate=0, timeout_s=0.02, attempts=1))
    before = connected.nic.statistics(connected.qpn)
    for verb in ("WRITE", "WRITE_WITH_IMM", "SEND") * ROUNDS:
        prober.ask(target, 64, [SOURCE_PORT])
        with in_namespace() if to_kernel else nullcontext():
            assert prober.run(10)
        connected.carry(verb, direction, data_of(20_001))
    assert prober.counters()["sent"] == 3 * ROUNDS, prober.take_failures()
    assert {seen.answer for seen in prober.take_observations()} == {"none"}
    after = connected.nic.statistics(connected.qpn)
    assert [after[what] - before[what] for what in ("naks", "out_of_order")] == [0, 0]


@pytest.mark.parametrize("wrong", ["rkey", "range"])
def test_soft_refuses_a_wrong_write(pair: Connect, record_property: Record, wrong: str) -> None:
    from pyverbs.enums import IBV_WC_REM_ACCESS_ERR

    record_property(PROPERTY, ("wrong rkey or range: NAK remote access error", TO_SOFT, wrong))
    connected = pair()
    memory = bytearray(1000)
    rkey = connected.nic.register_memory(memory)
    if wrong == "rkey":
        connected.peer.write(b"x" * 10, 0, rkey ^ 1)
    else:
        connected.peer.write(b"x" * 10, 991, rkey)
    assert connected.take_kernel().status == IBV_WC_REM_ACCESS_ERR
    assert memory == bytes(1000)


@pytest.mark.parametrize("wrong", ["rkey", "range"])
def test_the_kernel_refuses_a_wrong_write(pair: Connect, record_property: Record, wrong: str) -> None:
    record_property(PROPERTY, ("wrong rkey or range: NAK remote access error", TO_KERNEL, wrong))
    connected = pair()
    incoming = connected.peer.incoming
    if wrong == "rkey":
        connected.nic.write(connected.qpn, b"x" * 10, incoming.buf, incoming.rkey ^ 0x100)
    else:
        connected.nic.write(connected.qpn, b"x" * 10, incoming.buf + incoming.length - 9, incoming.rkey)
    assert connected.take_soft("sent")["status"] == "the peer refused access to its memory (rkey or range)"


def test_soft_refuses_a_read(pair: Connect, record_property: Record) -> None:
    from pyverbs.enums import IBV_WC_REM_INV_REQ_ERR

    record_property(PROPERTY, ("READ (unsupported): NAK invalid request", TO_SOFT, ""))
    connected = pair()
    rkey = connected.nic.register_memory(bytearray(1000))
    connected.peer.read(100, 0, rkey)
    assert connected.take_kernel().status == IBV_WC_REM_INV_REQ_ERR


def test_soft_waits_for_a_receive_of_the_kernel(pair: Connect, record_property: Record) -> None:
    record_property(PROPERTY, ("RNR NAK, then a receive", TO_KERNEL, ""))
    connected = pair()
    connected.nic.send(connected.qpn, data_of(3000))
    connected.until(lambda: connected.nic.statistics(connected.qpn)["rnr"] > 0, "RNR NAK")
    connected.peer.post_receive()
    assert connected.take_soft("sent")["status"] == "success"
    assert connected.take_kernel().status == 0
    assert connected.peer.received(3000) == data_of(3000)


def test_the_kernel_waits_for_a_receive_of_soft(pair: Connect, record_property: Record) -> None:
    record_property(PROPERTY, ("RNR NAK, then a receive", TO_SOFT, ""))
    connected = pair()
    connected.peer.send(data_of(3000))
    # The kernel retransmits after an RNR NAK. `soft` still expects that packet.
    connected.until(lambda: connected.nic.statistics(connected.qpn)["rx_packets"] > 0, "packet of the kernel")
    assert not connected.kernel_done
    memory = bytearray(3000)
    connected.nic.post_receive(memory)
    assert connected.take_kernel().status == 0
    assert connected.take_soft("send")["byte_length"] == 3000
    assert memory == data_of(3000)


@pytest.mark.parametrize("label", [0x123, 0x2ABC, 0x4001, 0x3FFF])
def test_the_flow_label_sets_the_kernels_source_port(pair: Connect, record_property: Record, label: int) -> None:
    """The port is where rdma-core's ibv_flow_label_to_udp_sport says."""
    record_property(PROPERTY, ("UDP source port from the flow label", TO_SOFT, f"{label:#x}"))
    with in_namespace():
        sniffer = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    with sniffer:
        connected = pair(flow_label=label)
        connected.kernel_writes(data_of(100))
        packet, (source, _) = sniffer.recvfrom(2048)
    assert (source, PLAIN_ADDRESS) == (RXE_ADDRESS, socket.inet_ntoa(packet[16:20]))
    (port,) = struct.unpack_from("!H", packet, 20)
    assert port == ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | 0xC000
