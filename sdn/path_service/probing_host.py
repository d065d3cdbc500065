# SPDX-License-Identifier: Apache-2.0
"""A host that probes: what it is asked, and what its answers say. Pure."""

from collections import deque
from collections.abc import Container, Iterable, Set
from dataclasses import dataclass, field, replace

from netmodel.flow import Address
from sdn.measured.discovery import Ask
from sdn.path_service.messages import Answer
from sdn.path_service.parties import Client


@dataclass(slots=True)
class ProbingHost:
    """A connection of a host that probes."""

    client: Client
    searches: bool = False
    """It knows `Probe.once` and `Probe.until`."""
    open: dict[int, Ask] = field(default_factory=dict)
    """Its asks by number."""
    waiting: deque[Ask] = field(default_factory=deque)
    """Asks that wait until fewer are open."""


def parts(ask: Ask, *, searches: bool) -> list[Ask]:
    """What to ask a host for. It tells what came of a port when it knows of all that were asked for together.

    At a further hop one router answers for all of them, and so for the last ones late. A host that does not know
    searches gets none: it may have taken the place of one that does.
    """
    if not searches:
        ask = replace(ask, once=False, until=())
    if ask.until:
        return [ask]
    return [replace(ask, ports=(port,)) for port in ask.ports] if ask.urgent or ask.once or ask.told else [ask]


def answered(answers: Iterable[Answer], ports: Container[int]) -> dict[int, Address]:
    """The routers that answered for these ports."""
    found = {answer.port: answer.address for answer in answers if answer.port in ports}
    return {port: address for port, address in found.items() if address is not None}


def left_out(answers: Iterable[Answer], ask: Ask) -> Set[int]:
    """The ports of an ask that the host has not probed, as it was to probe some until it finds what is sought.

    It has to probe all ports of any other ask: one that it does not name counts as not answered.
    """
    return set(ask.ports).difference(answer.port for answer in answers) if ask.until else set()
