# SPDX-License-Identifier: Apache-2.0
"""The network that NCCL uses, according to its log.

At NCCL_DEBUG=INFO NCCL logs a line per connection (src/transport/*.cc), for example
`Channel 00/0 : 0[0] -> 1[0] [send] via NET/paralet/0`, or `... via SHM/direct/direct` where it does without a network.
"""

import re
from collections import Counter

_ROUTE = re.compile(r"Channel \S+ : (?P<src>\d+)\S* -> (?P<dst>\d+)\S*(?: \[(?:send|receive)\])? via (?P<via>\S+)")
_WARNING = re.compile(r"NCCL WARN (?P<text>.+)")


def routes(log: str) -> Counter[str]:
    """Number of connections by network, such as {"NET/paralet/0": 8}."""
    return Counter(match["via"] for match in _ROUTE.finditer(log))


def fault(log: str, transport: str) -> str | None:
    """Why the log does not show that all traffic used `transport`; None when it does.

    A network that NCCL was asked for by name and cannot take is an error in NCCL itself; this looks at what it did.
    """
    wanted = f"NET/{transport}"
    ways = list(_ROUTE.finditer(log))
    for match in ways:
        via = match["via"]
        if via != wanted and not via.startswith(f"{wanted}/"):
            return f"NCCL moves data from rank {match['src']} to rank {match['dst']} via {via}, not via {wanted}"
    if not ways:
        warning = last_warning(log)
        return f"NCCL's log has no line 'via {wanted}'" + (f"; its last warning is: {warning}" if warning else "")
    return None


def banner(log: str, transport: str) -> str | None:
    """The log line by which a plugin introduces itself, as `NET/paralet: paralet 0.1.0, ..`; None without one."""
    name = re.escape(transport)
    match = re.search(rf"NCCL INFO NET/{name}: ({name} .+)", log)
    return match[1].strip() if match else None


def interface(log: str, transport: str) -> str | None:
    """The version of the net plugin interface by which NCCL has loaded a plugin, such as "v12".

    None where `transport` is NCCL's own. NCCL 2.21 and 2.22 have v8 as their newest version, and name only older ones.
    """
    match = re.search(rf"Loaded net plugin {re.escape(transport)} \((v\d+)\)", log)
    if match:
        return match[1]
    return "v8" if banner(log, transport) and f"Using network {transport}" in log else None


def last_warning(log: str) -> str | None:
    """The text of the last line at level WARN."""
    found = _WARNING.findall(log)
    return found[-1].strip() if found else None
