# SPDX-License-Identifier: Apache-2.0
"""A management network beside the fabric: a link from each host to the sandbox, where the path service listens. Pure.

As in a data centre, it is separate from the fabric: messages to the path service do not wait behind data and do not
appear in the fabric's counters. Each host has a point-to-point veth into the sandbox's main namespace. There is no
bridge, and the main namespace does not forward, so hosts cannot reach each other by these links. Addresses are
link-local (RFC 3927); hosts of a topology should not use them.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address

from emul.layout import INTERFACE_GROUP

MANAGEMENT_ADDRESS = "169.254.0.1"
"""The address of the sandbox's main namespace on the management network."""

INTERFACE = "mgmt0"
"""Interface name of a host's end."""

_FIRST_HOST = IPv4Address("169.254.1.0")


def host_address(number: int) -> IPv4Address:
    """The management address of host `number` of the topology, from 0. Raises ValueError outside 0..64999."""
    if not 0 <= number < 65_000:
        raise ValueError(f"the management network has no address for host number {number}")
    return _FIRST_HOST + number


def main_lines(pids: Mapping[str, int]) -> list[str]:
    """Lines for `ip -batch` in the main namespace: its address, and a link to each host's namespace.

    pids: by host, the id of a process in its namespace.
    """
    lines = [f"address replace {MANAGEMENT_ADDRESS}/32 dev lo"]
    for number, pid in enumerate(pids.values()):
        end = f"mgmt-{number}"
        lines += [
            f"link add {end} group {INTERFACE_GROUP} type veth peer name {INTERFACE} netns {pid}",
            f"link set dev {end} up",
            f"route add {host_address(number)} dev {end} src {MANAGEMENT_ADDRESS}",
        ]
    return lines


def host_lines(number: int) -> list[str]:
    """Lines for `ip -batch` in the namespace of host `number`."""
    return [
        f"link set dev {INTERFACE} up",
        f"address add {host_address(number)}/32 dev {INTERFACE}",
        f"route add {MANAGEMENT_ADDRESS} dev {INTERFACE} src {host_address(number)}",
    ]
