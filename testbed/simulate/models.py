# SPDX-License-Identifier: Apache-2.0
"""Runs an experiment on the model that its spec names."""

from collections.abc import Callable
from types import MappingProxyType

from testbed.analysis.kept_runs import NOT_KEPT, Runs
from testbed.analysis.observations import Observations
from testbed.progress import Steps
from testbed.simulate import fluid, packet
from testbed.spec import Experiment, FabricName

MODELS: MappingProxyType[FabricName, Callable[[Experiment, Steps, Runs], Observations]] = MappingProxyType(
    {"fluid": fluid.observe, "packet": packet.observe}
)
"""By fabric: what simulates it."""


def observe(experiment: Experiment, steps: Steps, runs: Runs = NOT_KEPT) -> Observations:
    """Every policy with every seed of which `runs` has none.

    Raises TestbedError, and KeyError for a fabric that is no model.
    """
    return MODELS[experiment.spec.fabric](experiment, steps, runs)
