# SPDX-License-Identifier: Apache-2.0
"""The workloads that a spec can name. To add one: a module like its neighbours, and its class in `KINDS`."""

from typing import Annotated

from pydantic import Field

from testbed.workloads.base import Buffers, Elements, Transfer, Workload
from testbed.workloads.pairwise_alltoall import PairwiseAlltoall
from testbed.workloads.permutation import Permutation
from testbed.workloads.ring_allreduce import RingAllreduce

AnyWorkload = Annotated[RingAllreduce | Permutation | PairwiseAlltoall, Field(discriminator="kind")]
KINDS: dict[str, type[Workload]] = {
    "ring_allreduce": RingAllreduce,
    "permutation": Permutation,
    "pairwise_alltoall": PairwiseAlltoall,
}

__all__ = ["KINDS", "AnyWorkload", "Buffers", "Elements", "Transfer", "Workload"]
