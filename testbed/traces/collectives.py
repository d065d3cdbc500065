# SPDX-License-Identifier: Apache-2.0
"""The collectives of traces as tasks."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from testbed.training.hardware import Collective, Kind
from testbed.training.tasks import TaskGraph

Operation = Kind | Literal["broadcast", "reduce", "barrier"]


def add_collective(
    graph: TaskGraph, what: Operation, size: int, members: Sequence[int], name: str = ""
) -> tuple[int, int]:
    """Add a collective of `size` bytes; returns its first and its last task, which may be the same.

    `size` is the whole vector of a member: the input, or for an all-gather the output. A broadcast and a reduce are a
    chain through the members, which all send at once, as pipelined ones do. A barrier sends nothing.
    """
    if what == "barrier" or not size:
        number = graph.join((), name)
    elif what == "broadcast" or what == "reduce":
        begin = graph.join((), name)
        hops = [graph.send(src, dst, size, [begin]) for src, dst in pairwise(members)]
        return begin, graph.join(hops or [begin], name)
    else:
        number = graph.collective(Collective(what, size), members, name=name)
    return number, number
