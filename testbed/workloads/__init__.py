# SPDX-License-Identifier: Apache-2.0
"""The workloads that a spec can name. To add one: a module like its neighbours, and its class in `AnyWorkload`."""

from typing import Annotated

from pydantic import Field

from testbed.workloads.base import Buffers, Elements, Order, Talk, Transfer, VerifiedWorkload, Workload
from testbed.workloads.grid import Grid, GridWorkload
from testbed.workloads.halving_doubling import HalvingDoublingAllreduce
from testbed.workloads.hierarchical import HierarchicalAllgather, HierarchicalAllreduce, HierarchicalReduceScatter
from testbed.workloads.language_model import LanguageModel
from testbed.workloads.nccl import NcclAllreduce, NcclCollective, NcclRingAllreduce, NcclTreeAllreduce
from testbed.workloads.pairwise_alltoall import PairwiseAlltoall
from testbed.workloads.parameter_server import ParameterServer
from testbed.workloads.permutation import Permutation
from testbed.workloads.pipeline import Pipeline
from testbed.workloads.rail_alltoall import RailAlltoall
from testbed.workloads.ring_allreduce import RingAllreduce
from testbed.workloads.snapshot import Snapshot
from testbed.workloads.task_graph import TaskGraphWorkload
from testbed.workloads.torch_training import TorchTraining
from testbed.workloads.trace import Trace
from testbed.workloads.training import Training

AnyWorkload = Annotated[
    RingAllreduce
    | HalvingDoublingAllreduce
    | Permutation
    | PairwiseAlltoall
    | Pipeline
    | ParameterServer
    | HierarchicalAllgather
    | HierarchicalReduceScatter
    | HierarchicalAllreduce
    | RailAlltoall
    | Training
    | NcclRingAllreduce
    | NcclTreeAllreduce
    | NcclCollective
    | TorchTraining
    | Snapshot
    | Trace
    | LanguageModel,
    Field(discriminator="kind"),
]

__all__ = [
    "AnyWorkload",
    "Buffers",
    "Elements",
    "Grid",
    "GridWorkload",
    "LanguageModel",
    "NcclAllreduce",
    "NcclCollective",
    "Order",
    "Talk",
    "TaskGraphWorkload",
    "TorchTraining",
    "Trace",
    "Training",
    "Transfer",
    "VerifiedWorkload",
    "Workload",
]
