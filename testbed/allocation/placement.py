# SPDX-License-Identifier: Apache-2.0
"""The host that each rank runs on. Placement strongly affects the load that a collective puts on a fabric."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from netmodel import PortRef, Topology
from sdn.isolation import optical_clos, virtual_clos
from sdn.isolation.optical_clos import OpticalClos

Rule = Literal["cross_leaf", "in_order", "packed", "random"]


class PlacementError(ValueError):
    """The topology does not allow the placement. The text gives the reason in one sentence."""


def leaf_of(topology: Topology, host: str, nic: int = 0) -> str:
    """The switch that the host's NIC of index `nic` is plugged into."""
    return topology.peer(PortRef(host, nic + 1)).node


def hosts_by_leaf(topology: Topology) -> dict[str, list[str]]:
    """The hosts of every leaf, both in the topology's order."""
    leaves: dict[str, list[str]] = {}
    for host in topology.hosts:
        leaves.setdefault(leaf_of(topology, host.name), []).append(host.name)
    return leaves


def place(topology: Topology, rule: Rule, ranks: int, seed: int | Sequence[int] = 0) -> tuple[str, ...]:
    """The hosts of ranks 0 .. ranks - 1, each used once.

    `packed` fills leaf after leaf: a ring then hardly leaves its leaf. `cross_leaf` puts rank k on leaf k mod L, so
    that every hop of a ring crosses leaves. `in_order` takes the hosts as the topology lists them, domain by domain
    where there are domains. `random` draws the hosts by `seed`.

    Raises PlacementError when there are too few hosts or, for `cross_leaf`, when some hop would not cross.
    """
    leaves = hosts_by_leaf(topology)
    packed = [host for hosts in leaves.values() for host in hosts]
    if ranks > len(packed):
        raise PlacementError(f"{ranks} ranks need {ranks} hosts, and topology {topology.name} has {len(packed)}")
    match rule:
        case "packed":
            return tuple(packed[:ranks])
        case "in_order":
            return tuple(host.name for host in topology.hosts[:ranks])
        case "random":
            order = np.random.default_rng(seed).permutation(len(packed))
            return tuple(packed[index] for index in order[:ranks])
        case "cross_leaf":
            return _cross_leaf(list(leaves.items()), ranks)


def _cross_leaf(leaves: list[tuple[str, list[str]]], ranks: int) -> tuple[str, ...]:
    if len(leaves) < 2:
        raise PlacementError("placement cross_leaf needs two or more leaves with hosts")
    if ranks > 1 and ranks % len(leaves) == 1:
        raise PlacementError(
            f"placement cross_leaf cannot close a ring of {ranks} ranks over {len(leaves)} leaves: the last rank and "
            "rank 0 would share a leaf; take one rank more or fewer"
        )
    chosen = []
    for rank in range(ranks):
        row, index = divmod(rank, len(leaves))
        leaf, hosts = leaves[index]
        if row >= len(hosts):
            raise PlacementError(f"placement cross_leaf puts {row + 1} ranks on {leaf}, which has {len(hosts)} hosts")
        chosen.append(hosts[row])
    return tuple(chosen)


def isolated(topology: Topology, jobs: Mapping[str, int]) -> OpticalClos:
    """Hosts and links for jobs of these sizes in ranks: by vClos, or by OCS-vClos where cables end in optical switches.

    Raises PlacementError when a job does not fit.
    """
    try:
        if any(switch.role == "ocs" for switch in topology.switches):
            return optical_clos.placed(topology, jobs)
        return OpticalClos({}, virtual_clos.placed(topology, jobs))
    except ValueError as error:
        raise PlacementError(str(error)) from error
