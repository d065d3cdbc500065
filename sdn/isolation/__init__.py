# SPDX-License-Identifier: Apache-2.0
"""Isolation: jobs on sub-topologies of their own, so that none meets another's traffic. docs/vclos.md tells how.

`vclos` places jobs on a leaf-spine, `ocs_vclos` on one whose cables run through optical circuit switches. Both are pure
functions from a cluster and a wish to an `Allocation`, or to None when the job must wait. `virtual_clos` makes switches
enforce what was allocated.
"""

from sdn.isolation.cluster import Allocation, Cluster, Gpu

__all__ = ["Allocation", "Cluster", "Gpu"]
