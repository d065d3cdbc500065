# SPDX-License-Identifier: Apache-2.0
"""Another GPU in the place of one that has failed, on rails behind optical switches. Pure.

Rail-only (arXiv 2307.12169v5), section IV-C: "When a GPU fails, the optical switch reconfigures to bring a healthy,
idle GPU to replace the failed one." `netmodel.rail_only` with `spare_gpus` has these switches, one in each HB domain.
"""

from collections.abc import Collection, Iterator, Sequence

from netmodel import Circuits, PortRef, Topology, duplex


def circuits_of(topology: Topology, gpus: Sequence[str]) -> Circuits:
    """The circuits that bring these GPUs to the rails: in each HB domain the first of them to rail 1, and so on.

    Raises ValueError where a domain has more GPUs here than rails, and KeyError for a GPU without an optical switch.
    """
    circuits: dict[str, dict[int, int]] = {}
    places: dict[str, Iterator[int]] = {}
    for gpu in gpus:
        own = topology.peer(PortRef(gpu, 1))
        if topology.switch(own.node).role != "ocs":
            raise KeyError(f"{gpu} has no optical switch before its rail")
        rail = next(places.setdefault(own.node, iter(_to_rails(topology, own.node))), None)
        if rail is None:
            raise ValueError(f"domain of {gpu} has more GPUs than rails: leave one out")
        circuits.setdefault(own.node, {}).update(duplex([(own.port, rail)]))
    return circuits


def substituted(topology: Topology, gpus: Sequence[str], failed: str, dead: Collection[str] = ()) -> tuple[str, ...]:
    """The GPUs of a job, by rank, with an idle one in the place of `failed`: one of the same HB domain.

    Where the domain has none, its tasks move to the GPUs of an idle domain ("we migrate the tasks on the entire HB
    domain with the failed GPU to a new one"). Without optical switches each takes the GPU on its own rail, since no
    path leads from rail to rail. `dead` GPUs are never taken. Raises ValueError where there is neither.
    """
    domains: dict[str, list[str]] = {}
    for host in topology.hosts:
        domains.setdefault(_domain(topology, host.name), []).append(host.name)
    out = {failed, *dead}
    own = domains[_domain(topology, failed)]
    idle = [gpu for gpu in own if gpu not in gpus and gpu not in out]
    any_rail = topology.switch(topology.peer(PortRef(failed, 1)).node).role == "ocs"
    if idle and any_rail:
        return tuple(idle[0] if gpu == failed else gpu for gpu in gpus)
    moved = [gpu for gpu in gpus if gpu in own]
    for members in domains.values():
        places = members if any_rail else [members[own.index(gpu)] for gpu in moved]
        healthy = [gpu for gpu in places if gpu not in out]
        if not set(members) & set(gpus) and len(healthy) >= len(moved):
            onto = dict(zip(moved, healthy, strict=False))
            return tuple(onto.get(gpu, gpu) for gpu in gpus)
    lack = f"{len(moved)} idle GPUs{'' if any_rail else ' on the same rails'}"
    raise ValueError(f"no GPU of the HB domain of {failed} can take its place, and no other domain has {lack}")


def _domain(topology: Topology, gpu: str) -> str:
    return topology.peer(PortRef(gpu, 2)).node


def _to_rails(topology: Topology, optical: str) -> list[int]:
    """The ports of an optical switch whose cables lead to rails, in the order of rails."""
    return [
        port.port
        for port in sorted(topology.linked_ports())
        if port.node == optical and not topology.has_host(topology.peer(port).node)
    ]
