# SPDX-License-Identifier: Apache-2.0
"""A small experiment for tests of simulated fabrics: four hosts of two leaves, each of which sends 100 packets."""

from __future__ import annotations

from typing import Any

from testbed.analysis.observations import Observations
from testbed.progress import Steps
from testbed.simulate import fluid, packet
from testbed.spec import Experiment, Spec, check

HEADER_BYTES = 58
"""Ethernet, IPv4, UDP, BTH and ICRC."""
ACK_BYTES = HEADER_BYTES + 4
RATE_BPS = 10e6
PACKETS = 100
PACKET_S = 8 * (4096 + HEADER_BYTES) / RATE_BPS
"""Serialisation time of a packet of 4096 bytes, in seconds."""
WIRE_BYTES = PACKETS * (4096 + HEADER_BYTES + ACK_BYTES)
WIRE_S = 8 * WIRE_BYTES / RATE_BPS
"""Serialisation time of all packets of a host and their acknowledgements, in seconds."""
LAST_S = 3 * PACKET_S
"""Time for three switches to receive and forward the last packet, in seconds."""


def document(fabric: str, /, **changes: Any) -> dict[str, Any]:
    """The spec on `fabric`, with some keys replaced."""
    return {
        "name": "small",
        "fabric": fabric,
        "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}},
        "workload": {"kind": "permutation", "bytes": 4096 * PACKETS, "shift": 1, "slices": 1},
        "placement": {"rule": "cross_leaf"},
        "policies": [{"name": "pinned", "policy": "pinned"}, {"name": "ecmp", "policy": "ecmp"}],
        "path_mtu": 4096,
        fabric: {"link_delay_s": 0},
        **changes,
    }


def small(fabric: str, /, **changes: Any) -> Experiment:
    """The experiment on `fabric`, with some keys of its spec replaced."""
    return check(Spec.model_validate(document(fabric, **changes)))


def observe(experiment: Experiment, fabric: str | None = None) -> Observations:
    """All runs, on the experiment's fabric or on another one."""
    models = {"fluid": fluid, "packet": packet}
    with Steps(None) as steps:
        return models[fabric or experiment.spec.fabric].observe(experiment, steps)
