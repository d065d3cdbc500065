# SPDX-License-Identifier: Apache-2.0
"""What routers need of a machine."""

import os
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = ("/usr/lib/frr", "/usr/libexec/frr", "/usr/sbin")
_SEED = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed")


@dataclass(frozen=True, slots=True)
class Lack:
    """What a machine lacks, and how to mend it."""

    what: str
    remedy: str


def program(name: str) -> str | None:
    """The path of one of FRR's daemons; None where FRR is not installed."""
    return next((path for folder in _FOLDERS if os.access(path := f"{folder}/{name}", os.X_OK)), None)


def lack() -> Lack | None:
    """What this machine lacks for routers, if anything.

    Without a seed all routers would choose alike, by a random key, and nobody could predict it.
    """
    if missing := [name for name in ("zebra", "bgpd") if program(name) is None]:
        return Lack(f"FRR's {' and '.join(missing)} are missing", "apt install frr")
    if not _SEED.exists():
        return Lack(
            f"Linux {os.uname().release} has no seed for its choice among equal paths",
            "take a kernel from 6.11 on, or fabric mininet",
        )
    return None
