# SPDX-License-Identifier: Apache-2.0
"""Clusters over time: jobs arrive, wait, are placed, run and end. docs/cluster.md explains it.

`simulate(jobs, scenario)` runs a trace. Where a job gets its GPUs (`placements`) and which links its flows take
(`networks`) are separate choices of the scenario, as are the `queues` and the level of detail (`fidelities`).
"""

from sim.cluster.fidelities import FIDELITIES, FidelityName
from sim.cluster.jobs import PATTERNS, Job, Pattern, steps_of
from sim.cluster.networks import NETWORKS, FlowPaths, NetworkName
from sim.cluster.placements import CAUSES, PLACEMENTS, AnyAllocation, Cause, PlacementName
from sim.cluster.queues import QUEUES, QueueName
from sim.cluster.shape import Shape
from sim.cluster.simulation import Outcome, Result, Scenario, State, simulate
from sim.cluster.trace import TraceShape, generate
from sim.cluster.trace_files import TRACE_FORMATS, TraceError, TraceFormat, read_trace

__all__ = [
    "CAUSES",
    "FIDELITIES",
    "NETWORKS",
    "PATTERNS",
    "PLACEMENTS",
    "QUEUES",
    "TRACE_FORMATS",
    "AnyAllocation",
    "Cause",
    "FidelityName",
    "FlowPaths",
    "Job",
    "NetworkName",
    "Outcome",
    "Pattern",
    "PlacementName",
    "QueueName",
    "Result",
    "Scenario",
    "Shape",
    "State",
    "TraceError",
    "TraceFormat",
    "TraceShape",
    "generate",
    "read_trace",
    "simulate",
    "steps_of",
]
