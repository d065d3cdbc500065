# SPDX-License-Identifier: Apache-2.0
"""Random task graphs."""

from hypothesis import strategies as st

from testbed.training.hardware import Collective, Kind
from testbed.training.tasks import TaskGraph

KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@st.composite
def graphs(draw: st.DrawFn, *, blocking: bool = True) -> TaskGraph:
    """Up to 40 tasks on up to 6 devices, each after any of those before it. `blocking`: also blocking transfers."""
    devices = draw(st.integers(2, 6))
    graph = TaskGraph(devices)
    for number in range(draw(st.integers(1, 40))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        members = draw(st.lists(st.integers(0, devices - 1), min_size=2, max_size=devices, unique=True))
        size = draw(st.integers(0, 1000)) * 1e6
        match draw(st.sampled_from(("compute", "send", "collective", "join"))):
            case "compute":
                graph.compute(members[0], size * 1e-9, after)
            case "send":
                waits = blocking and draw(st.booleans())
                graph.send(*members[:2], size, after, delay_s=0.001, blocking=waits)
            case "collective":
                graph.collective(Collective(draw(st.sampled_from(KINDS)), size), members, after)
            case _:
                graph.join(after)
    return graph
