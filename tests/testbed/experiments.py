# SPDX-License-Identifier: Apache-2.0
"""Experiments for tests: small, and on addresses that every machine has."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import yaml

from netmodel import Topology
from testbed.allocation.optical import Setting
from testbed.analysis.arranged import traffic_of
from testbed.analysis.flows import RunFlows
from testbed.analysis.observations import RunRecord
from testbed.arrangements.circuits import DirectCircuits
from testbed.spec import Experiment, Instance, load

SMALL: dict[str, Any] = {
    "name": "small",
    "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "100 Mbit/s"}},
    "workload": {"kind": "ring_allreduce", "bytes": 80_000, "slices": 3},
    "placement": {"rule": "cross_leaf"},
    "policies": [{"name": "ecmp", "policy": "ecmp"}, {"name": "pinned", "policy": "pinned"}],
    "seeds": 2,
}


def write_spec(folder: Path, **changes: Any) -> Path:
    """The small spec with some keys replaced (or, when None, left out), in a file."""
    document = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def experiment(folder: Path, **changes: Any) -> Experiment:
    """The small experiment with some keys of its spec replaced."""
    return load(write_spec(folder, **changes))


def on_loopback(made: Experiment) -> Experiment:
    """The same experiment with hosts at 127.1.x.y, so that agents can run without a fabric."""
    topology: Topology = made.topology
    hosts = tuple(
        replace(
            host,
            nics=tuple(
                replace(nic, address=IPv4Address(int(nic.address) & 0xFFFF | 0x7F01 << 16)) for nic in host.nics
            ),
        )
        for host in topology.hosts
    )
    return replace(made, topology=replace(topology, hosts=hosts))


def first_of(made: Experiment) -> Instance:
    """What the first seed makes of an experiment."""
    return Instance(made, made.seeds[0])


def setting_of(made: Experiment) -> Setting:
    """The circuits and relays of the first seed on a direct-connect fabric."""
    return next(
        arrangement for arrangement in first_of(made).arrangements if isinstance(arrangement, DirectCircuits)
    ).setting


def bandwidth_taxes(made: Experiment, run: RunRecord) -> tuple[float, float]:
    """The predicted and the counted bandwidth tax of a run on a direct-connect fabric."""
    circuits = next(arrangement for arrangement in made.arrangements if isinstance(arrangement, DirectCircuits))
    (traffic,) = traffic_of([RunFlows(Instance(made, run.seed), run)])
    return circuits.taxes(traffic)
