# SPDX-License-Identifier: Apache-2.0
"""Recovery from a fibre's failure: other ways, and circuits of another NIC (TopoOpt, section 7). Pure.

"When a fiber fails, TopoOpt can temporarily use a link dedicated to MP traffic to recover an AllReduce ring. In case of
permanent failures, TopoOpt reconfigures to swap ports and recover the failed connection."
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush

from netmodel import Circuits, Link, PortRef, Topology, light_path, panel_of
from sdn.topoopt.relays import Way

Ends = tuple[PortRef, PortRef]
"""The NICs whose addresses packets have: the sender's and the receiver's."""


def arrivals(topology: Topology, circuits: Circuits, dead: Collection[Link] = ()) -> dict[PortRef, PortRef]:
    """By NIC of a host: the NIC at which its light arrives, where it does over cables that are not `dead`."""
    found = {}
    for host in topology.hosts:
        for number in range(1, len(host.nics) + 1):
            ports, far = light_path(topology, circuits, PortRef(host.name, number))
            cables = {topology.link_at(port) for port in ports}
            if far is not None and topology.has_host(far.node) and cables.isdisjoint(dead):
                found[PortRef(host.name, number)] = far
    return found


def loads_of(ways: Mapping[Ends, Way], sent: Mapping[Ends, float]) -> Counter[PortRef]:
    """By NIC: the bytes on its circuit, where `sent` has those of each pair of NICs."""
    loads: Counter[PortRef] = Counter()
    for ends, size in sent.items():
        if ends in ways:
            loads.update(dict.fromkeys(ways[ends].ports, size))
    return loads


def around(
    ways: Mapping[Ends, Way], far: Mapping[PortRef, PortRef], sent: Mapping[Ends, float] | None = None
) -> dict[Ends, Way]:
    """The ways over the circuits of `far`, as `arrivals` has them. Pairs of NICs without a way are left out.

    A way is kept if all of its circuits are there. Another one may leave and arrive by other NICs than those at its
    ends: the kernels of both hosts pass on what these send and receive. It is the way on whose circuits the
    squares of the bytes add up to least, where `sent` has the bytes of pairs; so it takes circuits that carry little,
    such as those for model parallelism. Pairs that send most choose first. Of equal ways the one with the fewest
    circuits is taken.
    """
    sizes = sent or {}
    found = {ends: way for ends, way in ways.items() if _leads(way, far)}
    loads = loads_of(found, sizes)
    lit: dict[str, list[PortRef]] = {}
    for port in sorted(far):
        lit.setdefault(port.node, []).append(port)
    broken = sorted(ways.keys() - found.keys(), key=lambda ends: (-sizes.get(ends, 0.0), ends))
    trees: dict[str, dict[str, Way]] = {}
    for ends in broken:
        (source, target), size = (end.node for end in ends), sizes.get(ends, 0.0)
        if size or source not in trees:
            trees[source] = _ways_from(source, lit, far, loads, size)
        if target not in trees[source]:
            continue
        found[ends] = trees[source][target]
        loads.update(dict.fromkeys(found[ends].ports, size))
    return {ends: found[ends] for ends in ways if ends in found}


def swapped(
    topology: Topology,
    circuits: Circuits,
    nic: PortRef,
    dead: Collection[Link] = (),
    loads: Mapping[PortRef, float] | None = None,
) -> dict[str, dict[int, int]]:
    """The circuits after another NIC of the host has taken the place of `nic` between its neighbours.

    It is the NIC with live cables whose circuit carries least of `loads`, the last of equal ones, since rings take the
    first NICs. On its optical switch the neighbours' NICs of the same number are joined with it. What their light and
    the light to it lost is joined instead, as far as it does not lead from a host to itself (a 2-edge replacement).
    Raises ValueError where no NIC can take the place.
    """
    made = {name: dict(pairs) for name, pairs in circuits.items()}
    far = arrivals(topology, circuits)
    before = next((port for port, arrival in far.items() if arrival == nic), None)
    after = far.get(nic)
    spare = [
        index
        for index in range(len(topology.host(nic.node).nics))
        if index != nic.port - 1 and not {*_cables(topology, nic.node, index)} & {*dead}
    ]
    if not spare or (before is None and after is None):
        raise ValueError(f"{nic.node} has no other NIC that could take the place of NIC {nic.port}")
    index = min(spare, key=lambda index: ((loads or {}).get(PortRef(nic.node, index + 1), 0.0), -index))
    if before is not None:
        _join(topology, made, index, before.node, nic.node)
    if after is not None:
        _join(topology, made, index, nic.node, after.node)
    return made


def _cables(topology: Topology, host: str, nic: int) -> Iterable[Link]:
    """The first and the last cable between a NIC and its optical switch: one, without look-ahead."""
    return topology.link_at(PortRef(host, nic + 1)), topology.link_at(panel_of(topology, host, nic))


def _join(topology: Topology, circuits: dict[str, dict[int, int]], nic: int, source: str, target: str) -> None:
    """Join two hosts on the optical switch of their NICs of this index, and join what that has parted."""
    entry, leaving = (panel_of(topology, host, nic) for host in (source, target))
    pairs = circuits.setdefault(entry.node, {})
    lost = pairs.get(entry.port)
    other = next((port for port, to in pairs.items() if to == leaving.port), None)
    if other == entry.port:
        return
    pairs[entry.port] = leaving.port
    if other is None:
        return
    if lost is None or lost == other:
        del pairs[other]
    else:
        pairs[other] = lost


def _leads(way: Way, far: Mapping[PortRef, PortRef]) -> bool:
    """Whether every circuit of a way is there."""
    after = [port.node for port in way.ports[1:]]
    there = [far.get(port) for port in way.ports]
    on_way = all(at is not None and at.node == host for at, host in zip(there, after, strict=False))
    return on_way and there[-1] == way.arrival


def _ways_from(
    source: str,
    lit: Mapping[str, list[PortRef]],
    far: Mapping[PortRef, PortRef],
    loads: Mapping[PortRef, float],
    size: float,
) -> dict[str, Way]:
    """The ways from a host to all hosts that it reaches, for `size` more bytes, as `around` chooses them."""
    found: dict[str, Way] = {}
    queue: list[tuple[float, int, str, tuple[PortRef, ...]]] = [(0.0, 0, source, ())]
    while queue:
        cost, hops, host, ports = heappop(queue)
        if host in found:
            continue
        found[host] = Way(ports, far[ports[-1]]) if ports else Way((), PortRef(source, 0))
        for port in lit.get(host, ()):
            if far[port].node not in found:
                heappush(queue, (cost + (loads.get(port, 0.0) + size) ** 2, hops + 1, far[port].node, (*ports, port)))
    del found[source]
    return found
