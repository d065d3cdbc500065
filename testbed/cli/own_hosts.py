# SPDX-License-Identifier: Apache-2.0
"""Which requests a server on a loopback address answers."""

from collections.abc import Callable
from ipaddress import IPv4Address


def is_for(address: str) -> Callable[[str], bool]:
    """Whether a request with this Host header is for a server on `address`.

    On a loopback address only requests that name a loopback host are, so that a page from elsewhere cannot read what is
    served under a name of its own (DNS rebinding). The port may be another, for example that of a tunnel.
    """
    hosts = {address, "localhost", "127.0.0.1"} if IPv4Address(address).is_loopback else None
    return lambda host: hosts is None or host.partition(":")[0] in hosts
