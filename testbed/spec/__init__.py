# SPDX-License-Identifier: Apache-2.0
"""Experiment specs: what a YAML file may say, and every check that can be made before anything is started.

`load` gives an `Experiment`: the spec as written, beside what follows from it (topology, the host of each rank).
Whatever is wrong with a file is a `netmodel.SpecError` of one sentence with the line; nothing privileged has happened
by then.
"""

from netmodel import SpecError
from testbed.spec.checks import check
from testbed.spec.experiment import Experiment, leaf_names
from testbed.spec.files import dump, load
from testbed.spec.placing import Job
from testbed.spec.written import (
    IN_QUEUES,
    LARGEST_HEADERS_BYTES,
    MODELLED,
    MODELS,
    SEEDS_MAX,
    SOFTROCE_PATIENCE,
    STEERED,
    AnyTopology,
    Event,
    FabricName,
    FluidSettings,
    JobName,
    Optical,
    PacketSettings,
    Placement,
    PlannerName,
    Policy,
    PolicyName,
    Spec,
    Timeouts,
    TopologyFile,
)

__all__ = [
    "IN_QUEUES",
    "LARGEST_HEADERS_BYTES",
    "MODELLED",
    "MODELS",
    "SEEDS_MAX",
    "SOFTROCE_PATIENCE",
    "STEERED",
    "AnyTopology",
    "Event",
    "Experiment",
    "FabricName",
    "FluidSettings",
    "Job",
    "JobName",
    "Optical",
    "PacketSettings",
    "Placement",
    "PlannerName",
    "Policy",
    "PolicyName",
    "Spec",
    "SpecError",
    "Timeouts",
    "TopologyFile",
    "check",
    "dump",
    "leaf_names",
    "load",
]
