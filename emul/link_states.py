# SPDX-License-Identifier: Apache-2.0
"""How the links of a fabric are now."""

import json
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from emul.layout import Layout, switch_end
from emul.link_faults import LinkFault
from emul.port_settings import PortSettings
from netmodel import Link, PortRef


@dataclass(frozen=True, slots=True)
class LinkState:
    """A link as it is now."""

    link: Link
    up: bool
    """Whether packets can cross it."""
    part: float
    """The part of its rate that it has."""
    faults: Mapping[PortRef, LinkFault]
    """The faults of its ends, beside its own delay; only ends with any."""


def live_interfaces(listed: str) -> set[str]:
    """The interfaces that are up and have a carrier, in what `ip -j link show` lists."""
    return {entry["ifname"] for entry in json.loads(listed) if entry["operstate"] == "UP"}


def link_states(layout: Layout, settings: PortSettings, live: Callable[[str], Set[str]]) -> list[LinkState]:
    """The state of every link. live: the live interfaces in the namespace of a switch.

    A port has a carrier only while the other end of its link is up, so one end at a switch tells about both.
    """
    states = []
    for link in layout.topology.links:
        end = switch_end(layout, link)
        faults = {port: fault for port in (link.a, link.b) if (fault := settings.faults(port)) != LinkFault()}
        states.append(LinkState(link, layout.interface(end) in live(end.node), settings.part(link), faults))
    return states
