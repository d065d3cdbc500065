# SPDX-License-Identifier: Apache-2.0
"""Topology files of floodns (`topology.properties`): reads leaf-spines.

The format is that of the simulator floodns, `key=value` lines. In github.com/snkas/floodns nodes are `set(node,...)`
and edges `set(node-node,...)`. In github.com/ofircohen205/dcn-simulators nodes are `incl_range(first,last)` and edges
`incl_range(range-range,...)`, each node of the left range, `first` or `first:last`, with each of the right. Leaves are
`switches_which_are_tors`, spines the other switches. Host k here is server number k.
"""

import re
from collections.abc import Sequence
from decimal import Decimal

from netmodel.builders import leaf_spine
from netmodel.topology import Topology, TopologyError

_KEYS = ("num_nodes", "switches", "switches_which_are_tors", "servers", "undirected_edges", "link_data_rate_bit_per_ns")
_MOST = 1_000_000
_RATE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

Range = tuple[int, int]


def read_properties(text: str, file: str = "<text>") -> Topology:
    """The leaf-spine of a file; every server is a host of its ToR, in ascending order.

    Raises ValueError, one sentence with file and line, for a bad file and for any other topology.
    """
    found: dict[str, tuple[str, str]] = {}  # by key: place and value
    for number, line in enumerate(text.splitlines(), start=1):
        key, equals, value = line.partition("=")
        if not line.strip() or line.startswith("#"):
            continue
        if not equals or key.strip() in found:
            raise ValueError(f"{file}:{number}: must be a key, '=' and a value, and each key once")
        found[key.strip()] = f"{file}:{number}", value.strip()
    for key in _KEYS:
        if key not in found:
            raise ValueError(f"{file}:1: has no {key}")
    where, rate = found["link_data_rate_bit_per_ns"]
    nodes = _number(found["num_nodes"][1], found["num_nodes"][0])
    switches, tors, servers = (_nodes(*found[key], nodes) for key in ("switches", "switches_which_are_tors", "servers"))
    leaf_of, uplinks = _edges(*found["undirected_edges"], set(tors), set(servers), nodes)
    spines = sorted(set(switches) - set(tors))
    where_edges = found["undirected_edges"][0]
    if set(leaf_of) != set(servers) or not set(tors) <= set(switches):
        raise ValueError(f"{where_edges}: every server needs one edge, to a ToR, and every ToR must be a switch")
    if uplinks != {(tor, spine) for tor in tors for spine in spines}:
        raise ValueError(f"{where_edges}: every ToR needs one edge to each other switch, and no more")
    hosts, rest = divmod(len(servers), max(1, len(tors)))
    if rest or [leaf_of[server] for server in sorted(servers)] != [tor for tor in sorted(tors) for _ in range(hosts)]:
        raise ValueError(f"{where_edges}: every ToR needs as many servers, in the order of the ToRs")
    try:
        return leaf_spine(len(tors), len(spines), hosts, _rate(rate, where))
    except TopologyError as error:
        raise ValueError(f"{file}:1: {error}") from None


def _number(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{where}: {text[:40]!r} is not a whole number")
    return int(text)


def _rate(text: str, where: str) -> int:
    """Bits per second of a decimal number of bits per nanosecond, of at most nine digits before and after the point."""
    bps = int(Decimal(text) * 10**9) if _RATE.fullmatch(text) else 0
    if bps > 0:
        return bps
    raise ValueError(f"{where}: {text[:40]!r} is not one rate for all links, such as 100 or 0.1")


def _inner(where: str, value: str, *functions: str) -> list[str]:
    name, opening, rest = value.partition("(")
    if name not in functions or not opening or not rest.endswith(")"):
        raise ValueError(f"{where}: must be {' or '.join(f'{each}(...)' for each in functions)}, not {value[:40]!r}")
    inner = rest.removesuffix(")")
    return inner.split(",") if inner.strip() else []


def _node(text: str, where: str, nodes: int) -> int:
    """The one node of an element of a set, which must not be a range."""
    number = _number(text.strip(), where)
    return _range(str(number), where, nodes)[0]


def _range(text: str, where: str, nodes: int) -> Range:
    low, colon, high = text.strip().partition(":")
    first = _number(low, where)
    last = _number(high, where) if colon else first
    if not first <= last < nodes:
        raise ValueError(f"{where}: {text[:40]!r} are not nodes of 0 to {nodes - 1}")
    return first, last


def _nodes(where: str, value: str, nodes: int) -> Sequence[int]:
    if value.startswith("set("):
        return sorted({_node(node, where, nodes) for node in _inner(where, value, "set")})
    first, last = _range(":".join(_inner(where, value, "incl_range", "set")), where, nodes)
    if last - first >= _MOST:
        raise ValueError(f"{where}: lists more than {_MOST} nodes")
    return range(first, last + 1)


def _edges(
    where: str, value: str, tors: set[int], servers: set[int], nodes: int
) -> tuple[dict[int, int], set[tuple[int, int]]]:
    """The ToR of each server, and the edges from ToRs to other switches."""
    leaf_of: dict[int, int] = {}
    uplinks: set[tuple[int, int]] = set()
    for part in _inner(where, value, "incl_range", "set"):
        left, _, right = part.partition("-")
        lefts, rights = _range(left, where, nodes), _range(right, where, nodes)
        count = (lefts[1] - lefts[0] + 1) * (rights[1] - rights[0] + 1)
        if count + len(leaf_of) + len(uplinks) > _MOST:
            raise ValueError(f"{where}: lists more than {_MOST} edges")
        for a in range(lefts[0], lefts[1] + 1):
            for b in range(rights[0], rights[1] + 1):
                low, high = (a, b) if b in tors and a not in tors else (b, a)  # high is a ToR
                if high not in tors or low in leaf_of or (high, low) in uplinks:
                    raise ValueError(f"{where}: edge {a}-{b} is given twice, or has no ToR")
                if low in servers:
                    leaf_of[low] = high
                else:
                    uplinks.add((high, low))
    return leaf_of, uplinks
