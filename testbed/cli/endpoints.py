# SPDX-License-Identifier: Apache-2.0
"""Addresses to listen on, as users write them."""

from ipaddress import IPv4Address, ip_address

from testbed.errors import InputError


def address_and_port(option: str, text: str, example: str) -> tuple[str, int]:
    """An address and a port, written like `example`; an IPv6 address in brackets. Port 0 is any free one.

    Raises InputError.
    """
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address, number = ip_address(host[1:-1] if bracketed else host), int(port)
        valid = 0 <= number <= 0xFFFF and bracketed == (address.version == 6)
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f"{option} {text}: write an address and a port, as {example}")
    return str(address), number


def ipv4_and_port(option: str, text: str, example: str) -> tuple[str, int]:
    """The same, IPv4 only. Raises InputError."""
    host, _, port = text.rpartition(":")
    try:
        address, number = str(IPv4Address(host)), int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 0xFFFF:
        raise InputError(f"{option} {text}: write an IPv4 address and a port, as {example}")
    return address, number


def endpoint_text(address: str, port: int) -> str:
    """An address and a port as `address_and_port` reads them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
