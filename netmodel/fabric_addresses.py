# SPDX-License-Identifier: Apache-2.0
"""The addresses that builders of Clos fabrics give to hosts: a /24 for each leaf."""

from ipaddress import IPv4Address, IPv6Address

from netmodel.flow import Address

_FIRST_IPV4 = int(IPv4Address("10.0.0.0"))
_IPV6_PREFIX = int(IPv6Address("fd00::"))  # unique local addresses (RFC 4193)

LEAVES_MAX = 65536
"""One /24 of 10.0.0.0/8 each."""
HOSTS_PER_LEAF_MAX = 254
""".0 and .255 of each /24 stay free."""


def host_address(leaf: int, host: int, *, ipv6: bool = False) -> Address:
    """The address of the `host`-th host, from 1, of leaf number `leaf`, from 0: 10.<leaf // 256>.<leaf % 256>.<host>.

    With `ipv6` these four bytes are the last of an address that begins with fd00::.
    """
    number = _FIRST_IPV4 + 256 * leaf + host
    return IPv6Address(_IPV6_PREFIX + number) if ipv6 else IPv4Address(number)
