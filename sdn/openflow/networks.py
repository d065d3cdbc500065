# SPDX-License-Identifier: Apache-2.0
"""Networks that rules match: addresses of one family with a common prefix. Pure."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses
from typing import TypeAlias

from netmodel.flow import Address

Network: TypeAlias = IPv4Network | IPv6Network


def networks_of(addresses: Iterable[Address]) -> list[Network]:
    """The fewest networks that contain exactly these addresses."""
    listed = list(addresses)
    return [
        *collapse_addresses(IPv4Network(address) for address in listed if isinstance(address, IPv4Address)),
        *collapse_addresses(IPv6Network(address) for address in listed if isinstance(address, IPv6Address)),
    ]
