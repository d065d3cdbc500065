# SPDX-License-Identifier: Apache-2.0
"""QPNs, PSNs, rkeys and tokens are unpredictable. docs/notes/guesses.md computes how long guessing takes."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from scapy.contrib.roce import AETH, BTH
from scapy.packet import Raw

from hostlib import Device

from . import hostile_peer as hp
from .conftest import DEADLINE_S, NO_SPURIOUS_RETRANSMITS, A, B, Pair
from .hostile_peer import RETH, Attacker, HostilePeer, ImmDt
from .hostile_scene import wait_until

ROOT = Path(__file__).parents[2]
GUESSES = 2000
DEVICES = 8
LANES = 512
STDEVS = 5.0  # a larger deviation counts as predictable; by chance once in 1.7 million


def one_bits(numbers: Sequence[int], bits: int) -> list[float]:
    """Deviation of each bit's number of ones from one half, in standard deviations (monobit test, NIST SP 800-22)."""
    n = len(numbers)
    return [(sum(number >> bit & 1 for number in numbers) - n / 2) / math.sqrt(n / 4) for bit in range(bits)]


def spread(numbers: Iterable[int], bits: int) -> float:
    """Chi-square of the upper five bits over 32 classes, as a normal deviate (Wilson and Hilferty)."""
    counts = [0] * 32
    for number in numbers:
        counts[number >> (bits - 5)] += 1
    expected = sum(counts) / 32
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    return float(((chi_square / 31) ** (1 / 3) - (1 - 2 / (9 * 31))) / math.sqrt(2 / (9 * 31)))


def unpredictable(numbers: Sequence[int], bits: int) -> bool:
    """Whether tests cannot distinguish `numbers`, in the order they were drawn, from random ones.

    The differences are tested too: they reveal a counter or a linear generator with little noise.
    """
    steps = [(b - a) % 2**bits for a, b in itertools.pairwise(numbers)]
    return all(
        max(map(abs, one_bits(row, bits))) < STDEVS and abs(spread(row, bits)) < STDEVS for row in (numbers, steps)
    )


@pytest.fixture(scope="module")
def numbers() -> dict[str, list[int]]:
    """QPNs, first PSNs and rkeys of several devices, as a peer learns them."""
    out: dict[str, list[int]] = {"qpn": [], "psn": [], "rkey": []}
    for _ in range(DEVICES):
        # Repeated advertisements would arrive faster than the peer answers them on a slow machine.
        with Device(A, lanes=1, min_timeout_s=20.0, retry_time_s=60.0, line_rate_bps=10e9) as device:
            listener = device.listen()
            with HostilePeer(B, listener.handle, device.udp_port, LANES) as peer:
                connection = listener.accept(DEADLINE_S)
                out["qpn"] += [lane.victim_qpn for lane in peer.lanes]
                out["psn"] += [lane.victim_psn for lane in peer.lanes]
                receives = [connection.recv(bytearray(8)) for _ in range(LANES)]
                rkeys: list[int] = []
                while len(rkeys) < len(receives):
                    rkeys += [advertisement.rkey for advertisement in peer.advertisements()]
                out["rkey"] += rkeys
    return out


@pytest.mark.parametrize(("what", "bits"), [("qpn", 24), ("psn", 24), ("rkey", 32)])
def test_numbers_look_random(numbers: dict[str, list[int]], what: str, bits: int) -> None:
    drawn = numbers[what]
    assert len(drawn) == DEVICES * LANES
    assert unpredictable(drawn, bits)
    assert len(set(drawn)) > 0.99 * len(drawn)  # birthday paradox: one in 4096 repeats at 24 bits


@pytest.mark.parametrize(
    "predictable",
    [
        lambda i: (i * 97 + 12345) % 2**24,
        lambda i: random.Random(1).randrange(2**24),
        lambda i: random.Random(i).randrange(2**23),
        lambda i: random.Random(i).randrange(2**24) | 0x40,
        lambda i: (i * 0x10000 + random.Random(i).randrange(2**14)) % 2**24,
    ],
    ids=["counter", "constant", "short", "stuck-bit", "clock-with-noise"],
)
def test_predictable_numbers_are_recognized(predictable: Callable[[int], int]) -> None:
    assert not unpredictable([predictable(i) for i in range(DEVICES * LANES)], 24)


FORKED = """
import json, os, sys
from hostlib import Device

def drawn():
    with Device("127.0.0.1", lanes=16) as one, Device("127.0.0.2", lanes=16) as two:
        listener = two.listen()
        with one.connect(listener.handle) as to, listener.accept(30) as back:
            return [lane["qpn"] for device in (one, two) for lane in device.counters()["lanes"]], listener.handle.hex()

drawn()  # any state of a generator exists before the fork
for _ in range(3):
    sys.stdout.flush()
    if os.fork() == 0:
        print(json.dumps(drawn()), flush=True)
        os._exit(0)
    os.wait()
"""


def test_forked_children_draw_different_numbers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    children = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(children) == 3
    qpns = [qpn for each, _ in children for qpn in each]
    assert len(qpns) == 3 * 32
    assert len(set(qpns)) >= len(qpns) - 1  # two of 96 random 24-bit numbers are equal once in 3700 runs
    assert len({handle for _, handle in children}) == 3


def discarded(device: Device, packets: int) -> bool:
    return bool(device.counters()["discards"]["unknown_qp"] >= packets)


def test_guesses_from_the_peers_address_change_nothing(make_pair: Callable[..., Pair]) -> None:
    # The attacker uses the address and port of the victim's peer: it lacks only QPNs, PSNs and rkeys.
    pair = make_pair(lanes=8, **NO_SPURIOUS_RETRANSMITS)
    draw = random.Random(GUESSES)
    used = {lane["qpn"] for lane in pair.two.counters()["lanes"]}
    memory = bytearray(1000)
    receiving = pair.back.recv(memory, 7)
    with Attacker(A, B, pair.two.udp_port) as attacker:
        for i in range(GUESSES):
            qpn = next(qpn for qpn in iter(lambda: draw.randrange(2**24), None) if qpn not in used)
            psn = draw.randrange(2**24)
            if i % 2 == 0:
                packet = BTH(opcode=hp.ACKNOWLEDGE, dqpn=qpn, psn=psn) / AETH(syndrome=hp.NAK_ACCESS, msn=0)
            else:
                reth = RETH(va=0, rkey=draw.randrange(2**32), dmalen=100)
                packet = BTH(opcode=hp.WRITE_ONLY_IMM, dqpn=qpn, psn=psn) / reth / ImmDt(imm=1) / Raw(b"x" * 100)
            attacker.send(packet)
            if i % 100 == 99:
                wait_until(functools.partial(discarded, pair.two, i + 1), f"{i + 1} discarded")
                assert pair.exchange(b"honest") == b"honest"
    discards = pair.two.counters()["discards"]
    assert discards["unknown_qp"] == GUESSES == sum(discards.values())
    assert memory == bytes(1000)
    pair.to.send(b"y" * 1000, 7)
    assert receiving.wait(DEADLINE_S) == 1000
    lanes = pair.one.counters()["lanes"] + pair.two.counters()["lanes"]
    assert not any(lane[what] for lane in lanes for what in ("stale_acks", "out_of_order", "naks"))
