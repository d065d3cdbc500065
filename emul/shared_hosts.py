# SPDX-License-Identifier: Apache-2.0
"""Hosts that share one network namespace, and yet reach one another by the wire alone: policy routing. Pure.

rxe devices of most kernels work in the first network namespace only, so there all hosts' NICs lie side by side. Left to
itself the kernel would hand a packet from one of its addresses to another without sending it. So the table of local
addresses is asked last: a packet of our own leaves by the NIC whose address it bears, and only what comes in by a NIC
finds the address to be local. Names, MTU, MACs and neighbours are `Layout`'s.
"""

from collections.abc import Iterator

from emul.layout import Layout, common_network
from netmodel import Nic

_FIRST_TABLE = 100
_OWN_PRIORITY = 100
_LOCAL_PRIORITY = 200


def sysctls(layout: Layout) -> list[str]:
    """NAME=VALUE for `sysctl -w`: our own addresses are good sources of what comes in, and ARP keeps NICs apart."""
    names = ["all", *(name for name, _ in _nics(layout))]
    return [
        f"net.ipv4.conf.{name}.{key}={value}"
        for name in names
        for key, value in (("rp_filter", 0), ("accept_local", 1), ("arp_ignore", 1), ("arp_announce", 2))
    ]


def lines(layout: Layout) -> list[str]:
    """Lines for `ip -batch` in the namespace of all, when the NICs are up."""
    subnet = common_network([nic.address for _, nic in _nics(layout)])
    own = []
    for number, (name, nic) in enumerate(_nics(layout)):
        table = _FIRST_TABLE + number
        own += [
            f"route add {subnet} dev {name} src {nic.address} table {table}",
            f"rule add pref {_OWN_PRIORITY} iif lo from {nic.address} lookup {table}",
        ]
    return [*own, f"rule add pref {_LOCAL_PRIORITY} lookup local", "rule del pref 0"]


def undo_lines(layout: Layout) -> list[str]:
    """Lines that take the rules back; routes go with the NICs."""
    return [
        "rule add pref 0 lookup local",
        f"rule del pref {_LOCAL_PRIORITY}",
        *(f"rule del pref {_OWN_PRIORITY}" for _ in _nics(layout)),
    ]


def _nics(layout: Layout) -> Iterator[tuple[str, Nic]]:
    for host in layout.topology.hosts:
        for port, name in layout.linked_nics(host):
            yield name, host.nics[port.port - 1]
