# SPDX-License-Identifier: Apache-2.0
"""Experiment specs: what a YAML file may say, and every check that can be made before anything is started.

`load` gives an `Experiment`: the spec as written, beside what follows from it for every seed. An `Instance` is what one
seed makes of it: the host of each rank, the transfers, their ports. `load` raises `netmodel.SpecError` with all
mistakes of the file, each in one sentence with its line. Nothing privileged has happened by then.
"""

from netmodel import SpecError
from testbed.spec.bare_fabric import BareFabric
from testbed.spec.checks import check
from testbed.spec.experiment import Experiment
from testbed.spec.fabrics import FABRICS, FabricKind, FabricName
from testbed.spec.files import dump, dump_bare, load, load_bare
from testbed.spec.instance import Instance, all_hosts
from testbed.spec.placing import Job
from testbed.spec.policies import Policy
from testbed.spec.settings import FluidSettings, OpenFlowSettings, Optical, PacketSettings, RouterSettings, Timeouts
from testbed.spec.written import (
    LARGEST_ROCE_HEADERS_BYTES,
    OF_ROUTERS,
    SEEDS_MAX,
    AnyTopology,
    Event,
    JobName,
    LinkSettings,
    Placement,
    Spec,
    TopologyFile,
)

__all__ = [
    "FABRICS",
    "LARGEST_ROCE_HEADERS_BYTES",
    "OF_ROUTERS",
    "SEEDS_MAX",
    "AnyTopology",
    "BareFabric",
    "Event",
    "Experiment",
    "FabricKind",
    "FabricName",
    "FluidSettings",
    "Instance",
    "Job",
    "JobName",
    "LinkSettings",
    "OpenFlowSettings",
    "Optical",
    "PacketSettings",
    "Placement",
    "Policy",
    "RouterSettings",
    "Spec",
    "SpecError",
    "Timeouts",
    "TopologyFile",
    "all_hosts",
    "check",
    "dump",
    "dump_bare",
    "load",
    "load_bare",
]
