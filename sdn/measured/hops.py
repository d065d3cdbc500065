# SPDX-License-Identifier: Apache-2.0
"""Asks about one hop after another, where the answer of no single router tells the way of a probe. Pure."""

from collections.abc import Container, Mapping
from dataclasses import replace

from netmodel.flow import Address
from sdn.measured.discovery import Ask, Hop


def settled(
    ask: Ask, hops: tuple[Hop, ...], answers: Mapping[int, Address], left_out: Container[int] = ()
) -> tuple[dict[int, tuple[Address, ...]], Ask | None]:
    """What came of an `Ask` about one of these `hops`, or another that tells the way by itself, and the one about the
    next hop that follows from it.

    For each port of which all is told that will be: the addresses that have answered, one for each hop; none for a port
    that was not answered. The other ports are those of the next `Ask`, or were `left_out`: they were not probed.
    """
    told = {port: (*ask.told.get(port, ()), answers[port]) for port in ask.ports if port in answers}
    silent: dict[int, tuple[Address, ...]] = {
        port: () for port in ask.ports if port not in told and port not in left_out
    }
    place = next((place for place, hop in enumerate(hops, start=1) if hop.ttl == ask.ttl), len(hops))
    if place == len(hops):
        return silent | told, None
    if not told:
        return silent, None
    # Each of these ports has cost an answer: it is to be answered here, too.
    return silent, replace(ask, ttl=hops[place].ttl, ports=tuple(told), once=False, until=(), told=told)
