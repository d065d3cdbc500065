# SPDX-License-Identifier: Apache-2.0
"""Which port of a topology an interface of a switch is, by the names that vendors give interfaces. Pure.

What tells it, in this order: the topology's own `interfaces`; the switch's neighbour there by LLDP, if only one link
leads to it; the numbers in the name. Where a name has several numbers, the same place in the names of all interfaces of
the switch has the port's: that with the most different ports of the topology; where that does not decide, the usual
form of vendors does. So ``Ethernet1/5/1`` (slot, port, lane), ``et-0/0/5:0``, ``ethernet1/1/5`` and ``swp5s0`` are all
port 5.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from netmodel import PortRef, Switch, Topology

_CHANNEL = re.compile(r"(?:(?<=\d)s|[:.])\d+$")
"""The end of a name that is a part of a port: ``s0`` of Cumulus, ``:0`` of Juniper and Dell."""
_NUMBER = re.compile(r"\d+")
_NO_PORT = re.compile(
    r"(?:mgmt|management|me|fxp|em|lo|loopback|null|cpu|vlan|irb|vxlan|ae|bond|lag|port-?channel|tunnel)[-\d/.]*",
    re.IGNORECASE,
)
_FORMS = (
    (re.compile(r"(?:Ethernet|Eth)\d+/\d+/\d+"), 1),  # Arista with modules, and Cisco's parts of a port: slot/port/lane
    (re.compile(r"(?:et|xe|ge|ethernet|eth)\D?\d+/\d+/\d+"), 2),  # Juniper: fpc/pic/port; Dell: node/slot/port
    (re.compile(r"\w+GigE\d+/\d+/\d+/\d+"), 3),  # Cisco IOS XR: rack/slot/module/port
)
"""Forms of names, and which of their numbers is the port's."""


class Interface(NamedTuple):
    """An interface as counters name it, with its LLDP neighbour where they tell."""

    switch: str
    name: str
    neighbour: str = ""
    """The neighbour's system name."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """Interfaces of switches and the ports that they are, and those of which it is not known, with the reason."""

    ports: Mapping[Interface, PortRef]
    unmapped: Mapping[Interface, str]
    """A few words each."""


def mapped(topology: Topology, interfaces: Iterable[Interface]) -> Mapped:
    """The ports of interfaces. A switch has the name that it has in the topology, or a longer one after a dot or colon.

    Ports on which the topology has no link are no ports of it.
    """
    by_switch: defaultdict[str, list[Interface]] = defaultdict(list)
    unmapped: dict[Interface, str] = {}
    names = {switch.name for switch in topology.switches}
    for interface in interfaces:
        switch = _switch(interface.switch, names)
        if switch is None:
            unmapped[interface] = "its switch is not in the topology"
        else:
            by_switch[switch].append(interface)
    linked: defaultdict[str, dict[int, str]] = defaultdict(dict)  # by switch and port: the node at the other end
    for port in topology.linked_ports():
        linked[port.node][port.port] = topology.peer(port).node
    ports: dict[Interface, PortRef] = {}
    for name, every in by_switch.items():
        own, wrong = _of_switch(topology.switch(name), linked[name], every)
        ports |= own
        unmapped |= wrong
    return Mapped(ports, unmapped)


def _switch(name: str, names: set[str]) -> str | None:
    """The switch of the topology: ``leaf1`` is also ``leaf1:9339`` and ``leaf1.example.com``."""
    candidates = (name, name.partition(":")[0], name.partition(":")[0].partition(".")[0])
    return next((candidate for candidate in candidates if candidate in names), None)


def _of_switch(
    switch: Switch, linked: Mapping[int, str], interfaces: list[Interface]
) -> tuple[dict[Interface, PortRef], dict[Interface, str]]:
    named = switch.interfaces
    found: dict[Interface, int] = {}
    unmapped: dict[Interface, str] = {}
    rest = []
    for interface in interfaces:
        told = [port for port, name in named if name == interface.name]
        to_neighbour = [port for port, node in linked.items() if _is(interface.neighbour, node)]
        if told:
            found[interface] = told[0]
        elif len(to_neighbour) == 1:
            found[interface] = to_neighbour[0]
        elif _NO_PORT.fullmatch(interface.name):
            unmapped[interface] = "it is no port with a cable"
        else:
            rest.append(interface)
    taken = {port for port, _ in named} | set(found.values())
    by_form: defaultdict[str, list[Interface]] = defaultdict(list)
    for interface in rest:
        by_form[_NUMBER.sub("#", _CHANNEL.sub("", interface.name))].append(interface)
    for same in sorted(by_form.values(), key=len, reverse=True):  # a lone console is not in the way of the ports
        own, wrong = _by_numbers(same, set(linked), set(linked) - taken)
        taken |= set(own.values())
        found |= own
        unmapped |= wrong
    return _one_each(switch.name, found, unmapped)


def _is(neighbour: str, node: str) -> bool:
    return neighbour != "" and _switch(neighbour, {node}) is not None


def _by_numbers(
    interfaces: list[Interface], linked: set[int], free: set[int]
) -> tuple[dict[Interface, int], dict[Interface, str]]:
    """The ports of interfaces whose names differ in numbers only. `free`: those of `linked` that are not known yet."""
    rows = {each: [int(n) for n in _NUMBER.findall(_CHANNEL.sub("", each.name))] for each in interfaces}
    places = list(zip(*rows.values(), strict=True))
    known = [len(set(column) & linked) for column in places]
    if not any(known):
        return {}, dict.fromkeys(interfaces, "the topology has no link at such a port")
    best = [place for place, count in enumerate(known) if count == max(known)]
    chosen = best[0]
    if any(places[place] != places[chosen] for place in best):
        plain = _CHANNEL.sub("", interfaces[0].name)
        usual = next((place for form, place in _FORMS if form.fullmatch(plain)), None)
        if usual is None:
            return {}, dict.fromkeys(interfaces, "several numbers in its name may be the port's")
        chosen = usual
    ports = {each: row[chosen] for each, row in rows.items()}
    return (
        {each: port for each, port in ports.items() if port in free},
        {each: "the topology has no link at such a port" for each, port in ports.items() if port not in free},
    )


def _one_each(
    switch: str, found: Mapping[Interface, int], unmapped: dict[Interface, str]
) -> tuple[dict[Interface, PortRef], dict[Interface, str]]:
    """Without interfaces that would be the same port: the parts of a port that is split."""
    users: defaultdict[int, list[Interface]] = defaultdict(list)
    for interface, port in found.items():
        users[port].append(interface)
    for port, several in users.items():
        if len(several) > 1:
            unmapped |= dict.fromkeys(several, f"{len(several)} interfaces would be port {port}")
    return {
        each: PortRef(switch, port) for port, several in users.items() for each in several if len(several) == 1
    }, unmapped
