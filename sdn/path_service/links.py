# SPDX-License-Identifier: Apache-2.0
"""Links between switches by name."""

from collections import defaultdict
from functools import lru_cache

from netmodel import Link, Topology


def links_named(topology: Topology, name: str) -> tuple[Link, ...]:
    """The links between switches that `name` stands for, in the topology's order.

    A port of either end ("leaf1:5"), two switches ("leaf1-spine2": all links between them), or one switch ("spine2":
    all its links to others). Raises KeyError, with a sentence, when there are none.
    """
    named = _by_name(topology)
    if name not in named:
        link = next(iter(named.values()), [None])[0]
        example = f"{link.a} or {link.a.node}-{link.b.node}" if link else "none: there is one switch"
        raise KeyError(f"{name!r} is not a link between two switches of {topology.name}; such a link is {example}")
    return tuple(named[name])


@lru_cache(maxsize=4)
def _by_name(topology: Topology) -> dict[str, list[Link]]:
    """The links between switches, by all their names."""
    switches = {switch.name for switch in topology.switches}
    named: defaultdict[str, list[Link]] = defaultdict(list)
    for link in topology.links:
        here, there = link.a.node, link.b.node
        if here in switches and there in switches:
            for name in {str(link.a), str(link.b), here, there, f"{here}-{there}", f"{there}-{here}"}:
                named[name].append(link)
    return dict(named)
