# SPDX-License-Identifier: Apache-2.0
"""Policy routing for hosts that share one network namespace but reach each other only over the fabric. Pure.

On most kernels rxe devices work in the first network namespace only, so the NICs of all hosts are in it. By default the
kernel delivers a packet from one of its addresses to another locally, without sending it. Here the table of local
addresses is consulted last: an outgoing packet leaves by the NIC that owns its source address, and only a packet that
arrives by a NIC is delivered locally. `Layout` has names, MTU, MACs and neighbours.
"""

from collections.abc import Iterator

from emul.layout import Layout, common_network
from netmodel import Nic

_FIRST_TABLE = 100
_OWN_PRIORITY = 100
_LOCAL_PRIORITY = 200


def sysctls(layout: Layout) -> list[str]:
    """NAME=VALUE for `sysctl -w`: accept local source addresses on arrival, and answer ARP per NIC."""
    names = ["all", *(name for name, _ in _nics(layout))]
    return [
        f"net.ipv4.conf.{name}.{key}={value}"
        for name in names
        for key, value in (("rp_filter", 0), ("accept_local", 1), ("arp_ignore", 1), ("arp_announce", 2))
    ]


def lines(layout: Layout) -> list[str]:
    """Lines for `ip -batch` in the shared namespace. The NICs must be up."""
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
    """Lines that remove the rules. The kernel removes the routes with the NICs."""
    return [
        "rule add pref 0 lookup local",
        f"rule del pref {_LOCAL_PRIORITY}",
        *(f"rule del pref {_OWN_PRIORITY}" for _ in _nics(layout)),
    ]


def _nics(layout: Layout) -> Iterator[tuple[str, Nic]]:
    for host in layout.topology.hosts:
        for port, name in layout.linked_nics(host):
            yield name, host.nics[port.port - 1]
