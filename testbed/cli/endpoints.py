# SPDX-License-Identifier: Apache-2.0
"""Addresses to listen on, as users write them."""

from ipaddress import IPv4Address

from testbed.errors import InputError


def ipv4_and_port(option: str, text: str, example: str) -> tuple[str, int]:
    """An IPv4 address and a port, written like `example`; port 0 is any free one. Raises InputError."""
    host, _, port = text.rpartition(":")
    try:
        address, number = str(IPv4Address(host)), int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 0xFFFF:
        raise InputError(f"{option} {text}: write an IPv4 address and a port, as {example}")
    return address, number
