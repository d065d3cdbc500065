# SPDX-License-Identifier: Apache-2.0
"""Answers that this host's own kernel drops, because its route to their source leaves by another interface."""

from collections.abc import Iterator
from pathlib import Path

NETSTAT = Path("/proc/self/net/netstat")


def dropped(netstat: Path = NETSTAT) -> int:
    """The IPv4 packets that `rp_filter` has dropped so far in this network namespace; 0 if the kernel does not say."""
    try:
        lines = netstat.read_text().splitlines()
    except OSError:
        return 0
    for names, counts in zip(lines[::2], lines[1::2], strict=False):  # one line of names, one of counts
        for name, count in zip(names.split(), counts.split(), strict=False):
            if name == "IPReversePathFilter":
                return int(count)
    return 0


def remarks_on(packets: int) -> Iterator[str]:
    """What to know where so many packets were dropped during the probing, in one sentence."""
    if packets > 0:
        yield (
            f"this host dropped {packets} packets meanwhile because its route to their source leaves by another "
            "interface; answers of routers may be among them, and net.ipv4.conf.INTERFACE.rp_filter=2 lets them in"
        )
