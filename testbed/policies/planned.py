# SPDX-License-Identifier: Apache-2.0
"""Policy `pinned`: paths that share no uplink, planned before a run."""

from collections.abc import Iterable, Mapping

from netmodel import Path
from sdn.planners.disjoint import check_served
from testbed.allocation.demands import Within, disjoint_paths
from testbed.allocation.placement import leaf_of
from testbed.allocation.routes import Pair
from testbed.policies.base import Placed, PolicyKind
from testbed.workloads import Transfer


class Pinned(PolicyKind):
    """Pairs that are active in the same step share no uplink where that is possible."""

    def paths(self, placed: Placed, transfers: Iterable[Transfer], within: Within | None = None) -> Mapping[Pair, Path]:
        """See `testbed.allocation.demands.disjoint_paths`."""
        return disjoint_paths(placed.topology, placed.hosts, transfers, placed.nic, within)

    def check(self, placed: Placed, transfers: Iterable[Transfer]) -> None:
        """Raises ValueError where no spine joins the leaves of a pair."""
        hosts = placed.hosts
        leaves = {host: leaf_of(placed.topology, host, placed.nic) for host in hosts}
        ends = ((hosts[transfer.src], hosts[transfer.dst]) for transfer in transfers)
        check_served(placed.topology, ((a, b) for a, b in ends if leaves[a] != leaves[b]), placed.nic)
