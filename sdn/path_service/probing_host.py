# SPDX-License-Identifier: Apache-2.0
"""A host that probes: what it is asked and watches, and what its answers say. Pure."""

from collections import Counter, deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from netmodel.flow import Address
from sdn.measured.discovery import Ask, PairKey
from sdn.path_service.messages import Answer, Watch
from sdn.path_service.parties import Client


@dataclass(slots=True)
class ProbingHost:
    """A connection of a host that probes."""

    client: Client
    open: dict[int, Ask] = field(default_factory=dict)
    """Its asks by number."""
    waiting: deque[Ask] = field(default_factory=deque)
    """Asks that wait until fewer are open."""
    watched: dict[PairKey, Watch] = field(default_factory=dict)
    """What it was told to watch."""
    routers: Counter[str] = field(default_factory=Counter)
    """By router: the watched ports for which it answers."""
    period_s: float = 0.0
    watch_per_s: float = 0.0
    """Probes of its watched ports."""


def parts(ask: Ask) -> list[Ask]:
    """What to ask a host for. It tells what came of a port when it knows of all that were asked for together.

    At a further hop one router answers for all of them, and so for the last ones late.
    """
    return [replace(ask, ports=(port,)) for port in ask.ports] if ask.urgent or ask.told else [ask]


def answered(answers: Iterable[Answer], ports: Container[int]) -> dict[int, Address]:
    """The routers that answered for these ports."""
    found = {answer.port: answer.address for answer in answers if answer.port in ports}
    return {port: address for port, address in found.items() if address is not None}
