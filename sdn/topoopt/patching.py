# SPDX-License-Identifier: Apache-2.0
"""From layers between numbered servers to circuits of the optical switches of a direct-connect fabric. Pure."""

from collections.abc import Sequence

from netmodel import Circuits, PortRef, Topology, TopologyError, duplex, panel_of
from sdn.topoopt.finder import Layer


def patch(
    topology: Topology, hosts: Sequence[str], layers: Sequence[Layer], bank: int = 0, nics: Sequence[int] | None = None
) -> Circuits:
    """The circuits for one job: server i is `hosts[i]`, and layer j uses the optical switch of NIC `nics[j]`.

    By default that is NIC j. With look-ahead, `bank` is the bank of patch panels, of two. Jobs that share no host, or
    no NIC of one, share no port, so `netmodel.joined` can combine their circuits (sharding, appendix C).

    Raises TopologyError when there are more layers than NICs, a server without a host, or a port used twice.
    """
    chosen = range(len(layers)) if nics is None else nics
    for host in hosts:
        have = len(topology.host(host).nics)
        if len(layers) > len(chosen) or max(chosen, default=0) >= have:
            raise TopologyError(f"a degree of {len(layers)} is impossible: host {host!r} has {have} NICs")
    circuits: dict[str, dict[int, int]] = {}
    for nic, layer in zip(chosen, layers, strict=False):
        for source, destination in layer:
            if not (0 <= source < len(hosts) and 0 <= destination < len(hosts)):
                raise TopologyError(f"circuit {source} to {destination} needs more than the {len(hosts)} hosts given")
            entry = panel_of(topology, hosts[source], nic, bank)
            leaving = panel_of(topology, hosts[destination], nic, bank)
            panel = circuits.setdefault(entry.node, {})
            if entry.port in panel or leaving.port in panel.values():
                busy = entry if entry.port in panel else leaving
                raise TopologyError(f"optical port {busy.port} of {busy.node!r} is used twice, by layer {nic}")
            panel[entry.port] = leaving.port
    return circuits


def flip(topology: Topology, hosts: Sequence[str], bank: int) -> Circuits:
    """The circuits that set the 1x2 switches of all NICs of these hosts to one bank of a fabric with look-ahead.

    Raises ValueError for a fabric without look-ahead, and for an unknown bank.
    """
    circuits: dict[str, dict[int, int]] = {}
    for host in hosts:
        for nic in range(len(topology.host(host).nics)):
            near = topology.peer(PortRef(host, nic + 1))
            panel = panel_of(topology, host, nic, bank)
            if panel == near:
                raise ValueError(f"topology {topology.name!r} has no look-ahead switches to turn")
            circuits.setdefault(near.node, {}).update(duplex([(near.port, topology.peer(panel).port)]))
    return circuits
