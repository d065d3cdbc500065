# SPDX-License-Identifier: Apache-2.0
"""Section 3.1: how often flows between two servers meet, by the hash of the switch and the fields that it hashes."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

import numpy as np

from netmodel import ENTROPY_PORTS, ROCE_PORT, FlowFields
from netmodel.flow import IPPROTO_UDP
from netmodel.hashes import CrcHash, EcmpHash, LinuxL4Hash, OvsHash, XorHash

MODES: Mapping[str, EcmpHash] = MappingProxyType(
    {
        "CRC-16": CrcHash("crc16"),
        "CRC-32": CrcHash("crc32"),
        "XOR": XorHash(),
        "Open vSwitch": OvsHash(),
        "Linux": LinuxL4Hash(),
    }
)
"""The hash modes of this project. Those of the paper's switch are not public."""
FACTORS = ("addresses", "source port", "5-tuple")
"""What is hashed: other fields are 0, except the protocol."""

GPUS_PER_SERVER, FLOWS, TASKS = 8, 4, 20_000
"""A task has flows between four random GPUs of either server. The paper has 20 tasks; more give a surer mean."""

PORTS = 3
"""Equal ports, which the paper does not print: those of 2, 3 and 4 with which its numbers follow."""
_SEED = 1 << 40 | 3


@dataclass(frozen=True, slots=True)
class Meetings:
    """Parts of all tasks or pairs of their flows."""

    pairs: float
    """Two flows of a task that leave by one port."""
    some: float
    """Tasks of which two or more flows leave by one port."""
    everything: float
    """Tasks all of whose flows leave by one port."""


def meetings(mode: str, factor: str, ports: int) -> Meetings:
    """How often flows meet on one of so many equal ports."""
    random = np.random.default_rng(1)
    # GPU g of server s has a NIC with the address 10.0.s.g.
    chosen = random.random((TASKS, 2, GPUS_PER_SERVER)).argsort(axis=2)[:, :, :FLOWS]
    src, dst = ((10 << 24 | server << 8) + 1 + chosen[:, server - 1].ravel() for server in (1, 2))
    sport = random.integers(ENTROPY_PORTS.start, ENTROPY_PORTS.stop, src.size).astype(np.uint16)
    addresses, ports_too = factor != "source port", factor != "addresses"
    fields = FlowFields(
        src=(src * addresses).astype(np.uint32),
        dst=(dst * addresses).astype(np.uint32),
        sport=sport * np.uint16(ports_too),
        dport=np.array([ROCE_PORT * (factor == "5-tuple")], dtype=np.uint16),
        proto=np.array([IPPROTO_UDP], dtype=np.uint8),
    )
    leaving = MODES[mode].select(fields, _SEED, ports).reshape(TASKS, FLOWS)
    alike = np.array([leaving[:, a] == leaving[:, b] for a in range(FLOWS) for b in range(a)])
    return Meetings(float(alike.mean()), float(alike.any(axis=0).mean()), float(alike.all(axis=0).mean()))


def best(ports: int) -> Meetings:
    """Of the combination of a mode and a factor by which fewest pairs of flows meet, as the paper chose its own."""
    return min((meetings(mode, factor, ports) for mode, factor in product(MODES, FACTORS)), key=lambda one: one.pairs)
