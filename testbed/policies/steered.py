# SPDX-License-Identifier: Apache-2.0
"""Policies under which switches choose paths regardless of source ports."""

from collections.abc import Mapping
from typing import Any

from sdn.isolation.source_routing import SourceRouting, by_rank, in_order
from sdn.isolation.virtual_clos import sub_clos
from sdn.openflow.steering import Steering
from testbed.policies.base import Placed, PolicyKind


class SourceRouted(PolicyKind):
    """Each host port has a spine port: those of `uplinks`, or in order, or by rank."""

    def steering(self, placed: Placed, options: Mapping[str, Any]) -> Steering:
        """Raises ValueError for a leaf with too few uplinks."""
        uplinks = options.get("uplinks")
        if uplinks == "by_rank":
            return by_rank(placed.topology)
        return in_order(placed.topology) if uplinks is None else SourceRouting(uplinks)


class Isolated(PolicyKind):
    """Each job has links of its own: those that its placement has reserved, or those that are found for its hosts."""

    def steering(self, placed: Placed, options: Mapping[str, Any]) -> Steering:
        """Raises ValueError where there are too few links, or hosts use several NICs."""
        if placed.nic or placed.several_nics:
            raise ValueError("a virtual Clos has the first NIC of each host only; leave out nic and local_nic")
        return sub_clos(placed.topology, placed.jobs) if placed.isolation is None else placed.isolation
