# SPDX-License-Identifier: Apache-2.0
"""Isolation: every job has a sub-topology of its own and shares no link. docs/vclos.md explains it.

`vclos` places jobs on a leaf-spine, `ocs_vclos` on a leaf-spine whose cables run through optical circuit switches,
`packing` without links of their own. All are pure functions from a cluster and a request to an `Allocation`, or to None
when the job must wait. `virtual_clos` is the steering by which switches enforce allocations, `source_routing` routing
by ingress port.
"""

from sdn.isolation.cluster import Allocation, Cluster
from sdn.isolation.idle_gpus import Gpu

__all__ = ["Allocation", "Cluster", "Gpu"]
