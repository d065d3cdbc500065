# SPDX-License-Identifier: Apache-2.0
"""nftables rules of links with faults, and the program of the virtual queue that marks."""

from __future__ import annotations

import struct

import pytest

from emul import virtual_queue
from emul.commands import FabricError
from emul.link_faults import LinkFault, port_rules

START = [
    "add table netdev paralet_faults",
    "add counter netdev paralet_faults lost_3",
    "add counter netdev paralet_faults corrupted_3",
    'add chain netdev paralet_faults port_3 { type filter hook egress device "leaf1-eth5" priority 0; policy accept; }',
    "flush chain netdev paralet_faults port_3",
    "add rule netdev paralet_faults port_3 meta mark 0x70617261 accept",
]


@pytest.mark.parametrize(
    ("fault", "rules"),
    [
        (LinkFault(), []),
        (LinkFault(mark_above_bytes=40_000), []),
        (LinkFault(loss=1.0), ['counter name lost_3 fwd to "fault-sink"']),
        (LinkFault(reorder=0.1, late_by_s=1e-3), ['fwd to "delay-3"']),
        (
            LinkFault(loss=0.01, corruption=0.001, delay_s=50e-6),
            [
                'numgen random mod 1000000000 < 10000000 counter name lost_3 fwd to "fault-sink"',
                "ip protocol udp numgen random mod 1000000000 < 1000000 @th,80,16 set 0x0 counter name corrupted_3",
                'fwd to "delay-3"',
            ],
        ),
    ],
)
def test_the_rules_of_a_port_replace_earlier_ones_and_keep_its_counters(fault: LinkFault, rules: list[str]) -> None:
    assert port_rules(3, "leaf1-eth5", fault) == [
        *START,
        *(f"add rule netdev paralet_faults port_3 {rule}" for rule in rules),
    ]


@pytest.mark.parametrize(
    ("fault", "first", "then"),
    [
        (LinkFault(), [], []),
        (LinkFault(mark_above_bytes=0), ['fwd to "cut-3"'], ['meta mark set 0x70617261 fwd to "nic0"']),
        (
            LinkFault(loss=1.0),
            ['fwd to "cut-3"'],
            [
                'counter name lost_3 fwd to "fault-sink"',
                'meta mark set 0x70617261 fwd to "nic0"',
            ],
        ),
        (LinkFault(delay_s=1e-3), ['fwd to "cut-3"'], ['fwd to "delay-3"']),
    ],
)
def test_what_a_host_sends_meets_the_rules_behind_the_veth_that_cuts_it(
    fault: LinkFault, first: list[str], then: list[str]
) -> None:
    assert port_rules(3, "nic0", fault, cut=True) == [
        *(line.replace("leaf1-eth5", "nic0") for line in START),
        *(f"add rule netdev paralet_faults port_3 {rule}" for rule in first),
        "add chain netdev paralet_faults cut_3 "
        '{ type filter hook ingress device "cut-3-end" priority 0; policy accept; }',
        "flush chain netdev paralet_faults cut_3",
        *(f"add rule netdev paralet_faults cut_3 {rule}" for rule in then),
    ]


@pytest.mark.parametrize("part", [-0.1, 1.1, float("nan")])
def test_a_part_that_is_no_probability_is_refused(part: float) -> None:
    with pytest.raises(ValueError, match="is not a probability"):
        LinkFault(corruption=part)


@pytest.mark.parametrize("fault", [{"delay_s": -1.0}, {"late_by_s": float("nan")}, {"mark_above_bytes": -1}])
def test_a_negative_delay_or_length_is_refused(fault: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is below 0"):
        LinkFault(**fault)  # type: ignore[arg-type]


class Queue:
    """Executes the program of a virtual queue, instruction by instruction, on packets that are capable of ECN."""

    def __init__(self, rate_bps: int, mark_above_bytes: int, longest_bytes: int) -> None:
        code = b"".join(virtual_queue.program(5, rate_bps, mark_above_bytes, longest_bytes))
        self._code = [struct.unpack_from("<BBhi", code, at) for at in range(0, len(code), 8)]
        self.words = {0: 0, 8: 0}
        """The map's value by offset."""

    def marks(self, now_ns: int, packet_bytes: int, capable: bool = True) -> bool:
        registers, at, marked, pulled = [0] * 11, 0, False, 0
        while True:
            opcode, pair, offset, immediate = self._code[at]
            to, source, at = pair & 15, pair >> 4, at + 1
            match opcode:
                case 0xB7:
                    registers[to] = immediate
                case 0xBF:
                    registers[to] = registers[source]
                case 0x0F:
                    registers[to] += registers[source]
                case 0x1F:
                    registers[to] -= registers[source]
                case 0x27:
                    registers[to] *= immediate
                case 0x77:
                    registers[to] >>= immediate
                case 0x18:
                    registers[to] = 0 if source else (immediate & 0xFFFFFFFF) | self._code[at][3] << 32
                    at += 1
                case 0x61:
                    registers[to] = packet_bytes
                case 0x79:
                    registers[to] = self.words[offset]
                case 0x7B:
                    self.words[offset] = registers[source]
                case 0xDB:
                    self.words[offset] += registers[source]
                case 0x3D:
                    at += offset * (registers[to] >= registers[source])
                case 0xBD:
                    at += offset * (registers[to] <= registers[source])
                case 0x15:
                    at += offset * (registers[to] == immediate)
                case 0x85 if immediate == 5:
                    registers[0] = now_ns
                case 0x85 if immediate == 39:
                    pulled = registers[2]
                case 0x85 if immediate == 97:
                    assert pulled == 54  # bytes: of Ethernet's header and IPv6's
                    registers[0], marked = int(capable), capable
                case 0x95:
                    assert registers[0] == 0
                    return marked
                case _:
                    raise AssertionError(f"instruction {opcode:#x}")


def test_packets_are_marked_while_the_virtual_queue_is_longer_than_the_threshold() -> None:
    queue = Queue(rate_bps=8_000_000, mark_above_bytes=3000, longest_bytes=6000)  # 1 us for each byte
    begin = 10**15
    assert [queue.marks(begin, 1000) for _ in range(8)] == 3 * [False] + 5 * [True]
    assert not queue.marks(begin, 1000, capable=False)
    assert queue.words[8] == 5
    assert queue.words[0] == begin + 6_000_000  # what exceeds the bound was dropped by the real queue
    assert queue.marks(begin + 3_000_000, 1000)  # 3,000 bytes wait, and this packet
    assert not queue.marks(begin + 5_000_000, 1000)
    assert not queue.marks(begin + 60_000_000, 3000)  # the queue was empty
    assert queue.words[0] == begin + 63_000_000


@pytest.mark.parametrize("rate_bps", [100_000, 10**9, 400 * 10**9])
def test_the_virtual_queue_drains_at_the_rate_of_the_link(rate_bps: int) -> None:
    queue = Queue(rate_bps, 0, 10**9)
    for _ in range(1000):
        assert queue.marks(7, 4096)
    assert (queue.words[0] - 7) / 1e9 == pytest.approx(1000 * 4096 * 8 / rate_bps, rel=0.02)


def test_a_rate_that_the_virtual_queue_cannot_express_is_refused() -> None:
    with pytest.raises(FabricError, match="at least 100000 bit/s"):
        virtual_queue.program(5, 99_999, 0, 0)
