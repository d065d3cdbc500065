# SPDX-License-Identifier: Apache-2.0
"""Checks of a fabric by its topology: whether source ports reach all of its paths."""

from emul import Finding
from sdn.path_service.ports import PortTables
from sdn.path_service.reach import polarised
from sdn.planners import DEFAULT_PLANNER, PLANNERS
from testbed.cli.fabric import Fabric


def polarisation(fabric: Fabric) -> Finding:
    """Whether the switches' hash is polarised. It is never required of a fabric that it is not."""
    what = f"paths of {fabric.topology.name}"
    try:
        cables = PLANNERS[DEFAULT_PLANNER].cabling(fabric.topology)
    except ValueError as error:
        return Finding(what, True, f"not examined: {error}", "")
    found = polarised(cables, PortTables(cables, fabric.ecmp_hash))
    if found is None:
        return Finding(what, True, f"source ports reach all of them by the hash {fabric.hash_name}", "")
    return Finding(what, True, f"optional: {found.what}, by the hash {fabric.hash_name}", found.remedy)
