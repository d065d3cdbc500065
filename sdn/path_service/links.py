# SPDX-License-Identifier: Apache-2.0
"""Links between switches by name."""

from itertools import chain

from netmodel import Link, Topology


def links_named(topology: Topology, name: str) -> tuple[Link, ...]:
    """The links between switches that `name` stands for, in the topology's order.

    A port of either end ("leaf1:5"), two switches ("leaf1-spine2": all links between them), or one switch ("spine2":
    all its links to others). Raises KeyError, with a sentence, when there are none.
    """
    switches = {switch.name for switch in topology.switches}
    fabric = [link for link in topology.links if {link.a.node, link.b.node} <= switches]
    halves = (name[:i] for i, letter in enumerate(name) if letter == "-")
    pairs = [{half, name[len(half) + 1 :]} for half in halves]
    found = tuple(
        link
        for link in fabric
        if name in chain.from_iterable((str(end), end.node) for end in (link.a, link.b))
        or {link.a.node, link.b.node} in pairs
    )
    if not found:
        example = f"{fabric[0].a} or {fabric[0].a.node}-{fabric[0].b.node}" if fabric else "none: there is one switch"
        raise KeyError(f"{name!r} is not a link between two switches of {topology.name}; such a link is {example}")
    return found
