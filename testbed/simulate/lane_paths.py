# SPDX-License-Identifier: Apache-2.0
"""The source ports and paths of every pair's lanes, as the engine and the switches choose them."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS, ROCE_PORT, Flow, FlowFields, Forwarding, Path, path_of
from netmodel.flow import IPPROTO_UDP
from sdn.planners import PLANNERS, Commodities, cabling
from sim.links import Links
from sim.paths import hashed_paths
from testbed.plan.demands import Pair
from testbed.spec import STEERED, Experiment, Policy


@dataclass(frozen=True, eq=False)
class Lanes:
    """By pair and lane: the UDP source port, and the links of its path while no link is dead, -1 after the end."""

    ports: npt.NDArray[np.uint16]
    rows: npt.NDArray[np.int32]


def lanes_of(experiment: Experiment, policy: Policy, seed: int, pairs: Sequence[Pair], links: Links) -> Lanes:
    """The ports and paths of the lanes of `pairs`; `experiment` must be that of the seed. Raises InputError."""
    chosen = experiment.ports(policy, seed)
    ports = np.array([chosen[src].towards(dst) for src, dst in pairs], dtype=np.uint16)
    if policy.policy == "controller":
        return Lanes(ports, _rows(_planned(experiment, policy, pairs), policy.m, links))
    if policy.policy in STEERED:  # switches forward by ingress port and destination
        routes = experiment.routes(policy.name)
        return Lanes(ports, _rows([_walked(experiment, pair, routes) for pair in pairs], policy.m, links))
    return Lanes(ports, paths_of_ports(experiment, pairs, ports, links))


def paths_of_ports(
    experiment: Experiment,
    pairs: Sequence[Pair],
    ports: npt.NDArray[np.uint16],
    links: Links,
    routes: Forwarding | None = None,
) -> npt.NDArray[np.int32]:
    """The links that packets with source ports `ports`, by pair and lane, cross. Raises NoRouteError."""
    lanes = ports.shape[1]
    addresses = np.array([int(IPv4Address(experiment.address(rank))) for rank in range(experiment.ranks)], np.uint32)
    ends = np.array(pairs).reshape(-1, 2)
    fields = FlowFields(
        src=np.repeat(addresses[ends[:, 0]], lanes),
        dst=np.repeat(addresses[ends[:, 1]], lanes),
        sport=ports.ravel(),
        dport=np.array([ROCE_PORT], dtype=np.uint16),
        proto=np.array([IPPROTO_UDP], dtype=np.uint8),
    )
    return hashed_paths(links, fields, experiment.ecmp_hash, routes).reshape(len(pairs), lanes, -1)


def _planned(experiment: Experiment, policy: Policy, pairs: Sequence[Pair]) -> list[Path]:
    """The planner's paths for all pairs, planned together before the first transfer."""
    cables = cabling(experiment.topology)
    ends = np.array([[cables.nic(experiment.hosts[rank], experiment.nic) for rank in pair] for pair in pairs])
    jobs = [experiment.jobs.index(experiment.job_of(src)) for src, _ in pairs]
    plan = PLANNERS[policy.planner or "optimal"](cables.fabric, Commodities.of(ends[:, 0], ends[:, 1], job=jobs))
    paths = [cables.path(plan, commodity) for commodity in range(len(pairs))]
    return [path for path in paths if path is not None]  # no link is dead, so every pair has a path


def _walked(experiment: Experiment, pair: Pair, routes: Forwarding) -> Path:
    src, dst = (IPv4Address(experiment.address(rank)) for rank in pair)
    return path_of(experiment.topology, Flow(src, dst, ENTROPY_PORTS.start), experiment.ecmp_hash, routes=routes)


def _rows(paths: Sequence[Path], lanes: int, links: Links) -> npt.NDArray[np.int32]:
    """All lanes of a pair on the pair's path."""
    longest = max(len(path) for path in paths)
    rows = [links.row(path) + [-1] * (longest - len(path)) for path in paths]
    return np.repeat(np.array(rows, dtype=np.int32)[:, None, :], lanes, axis=1)
