# SPDX-License-Identifier: Apache-2.0
"""What is set up on a fabric for the jobs of an experiment: a module for each kind of arrangement."""

from testbed.arrangements.base import (
    Arrangement,
    Arranger,
    Carried,
    DecidedPaths,
    FibreState,
    JobHosts,
    Repair,
    RunTraffic,
    Section,
    Table,
)

__all__ = [
    "Arrangement",
    "Arranger",
    "Carried",
    "DecidedPaths",
    "FibreState",
    "JobHosts",
    "Repair",
    "RunTraffic",
    "Section",
    "Table",
]
