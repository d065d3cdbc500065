# SPDX-License-Identifier: Apache-2.0
"""A management network beside the fabric: a link from each host to the sandbox, where the path service listens. Pure.

As in a data centre it is apart from the fabric, so that messages to the path service neither wait behind data nor show
in the fabric's counters. Each host has a veth of its own into the sandbox's main namespace, point to point: no
bridge, and no way from one host to another, for nothing there forwards. Link-local addresses (RFC 3927), which no
topology's hosts should have.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address

from emul.layout import INTERFACE_GROUP

MANAGEMENT_ADDRESS = "169.254.0.1"
"""Where the sandbox's main namespace is reached from every host."""

INTERFACE = "mgmt0"
"""The name of a host's end."""

_FIRST_HOST = IPv4Address("169.254.1.0")


def host_address(number: int) -> IPv4Address:
    """The management address of the host that is `number`, from 0, in the topology. Raises ValueError beyond 65,000."""
    if not 0 <= number < 65_000:
        raise ValueError(f"the management network has no address for host number {number}")
    return _FIRST_HOST + number


def main_lines(pids: Mapping[str, int]) -> list[str]:
    """Lines for `ip -batch` in the main namespace: its address, and a link to each host's, by a process in there."""
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
    """Lines for `ip -batch` in that host's namespace."""
    return [
        f"link set dev {INTERFACE} up",
        f"address add {host_address(number)}/32 dev {INTERFACE}",
        f"route add {MANAGEMENT_ADDRESS} dev {INTERFACE} src {host_address(number)}",
    ]
