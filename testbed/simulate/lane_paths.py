# SPDX-License-Identifier: Apache-2.0
"""The source ports and paths of every pair's lanes, as the engine and the switches choose them."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS, ROCE_PORT, Flow, FlowFields, Forwarding, Path, PortRef, path_of
from netmodel.flow import IPPROTO_UDP, Addresses, address_array
from sdn.planners import PLANNERS, Commodities
from sim.links import Links
from sim.paths import hashed_paths
from testbed.allocation.demands import bytes_by_pair
from testbed.allocation.routes import Pair, routes_of
from testbed.spec import Experiment, Instance, Policy
from testbed.workloads import Transfer

ELEPHANT_BYTES = 1 << 20
"""The least size of an elephant in bytes: the engine's default of `elephant_bytes`."""

_IDLE_S = 0.5
"""An idle peer ends an elephant after this time (`kLeastIdle` in hostlib/native/src/path_client/elephants.cpp)."""


@dataclass(frozen=True, eq=False)
class Lanes:
    """By pair and lane: the UDP source port, and the links of its path while no link is dead, -1 after the end."""

    ports: npt.NDArray[np.uint16]
    rows: npt.NDArray[np.int32]
    back: npt.NDArray[np.int32] | None = None
    """By pair: the links of acknowledgements; None: the path backwards."""


def elephants(instance: Instance, policy: Policy, sizes: Mapping[Pair, int]) -> list[Pair]:
    """The pairs whose path the path service would plan, where `sizes` has the bytes that each sends at once.

    Devices on a `local_nic` do not ask it (see `testbed.run.rank_configuration`).
    """
    least = policy.elephant_bytes or ELEPHANT_BYTES
    return [pair for pair, size in sizes.items() if size >= least and instance.is_planned(*pair)]


def lanes_of(
    instance: Instance,
    policy: Policy,
    transfers: Sequence[Transfer],
    links: Links,
    *,
    live: bool = False,
) -> Lanes:
    """The ports and paths of the lanes of all pairs that transfer, in the order of `routed_pairs`.

    With `live`, elephants are planned later. Raises InputError.
    """
    demands = bytes_by_pair(transfers, instance.experiment.spec.workload.item_bytes)
    pairs = list(demands)
    chosen = instance.ports(policy)
    ports = np.array([chosen[src].towards(dst) for src, dst in pairs], dtype=np.uint16)
    if (decided := instance.decided_paths) is not None:
        own, hosts = routed_pairs(instance, transfers)[0], instance.hosts
        ports = np.array([chosen[src].towards(dst) for src, dst, _ in own], dtype=np.uint16)
        nics = [instance.nics_between(*route) for route in own]
        ends = [
            (PortRef(hosts[src], near + 1), PortRef(hosts[dst], far + 1))
            for (src, dst, _), (near, far) in zip(own, nics, strict=True)
        ]
        there = [decided.path(near, far) for near, far in ends]
        back = [decided.path(far, near) for near, far in ends]
        return Lanes(ports, path_rows(there, policy.m, links), path_rows(back, 1, links)[:, 0])
    if policy.kind.steers:  # switches forward by ingress port and destination
        routes = instance.routes(policy)
        return Lanes(ports, path_rows([_walked(instance, pair, routes) for pair in pairs], policy.m, links))
    rows = paths_of_ports(instance, pairs, ports, links)
    if policy.kind.service and not live:
        rows = _planned(instance, policy, demands, transfers, rows, links)
    return Lanes(ports, rows)


def routed_pairs(instance: Instance, transfers: Sequence[Transfer]) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Every pair that transfers with each of its routes, in the order of first use, and the place of each transfer's.

    A route is a number; a pair has several only where an arrangement gives it more than one.
    """
    chosen = routes_of(transfers, instance.shares) if instance.arrangements else [0] * len(transfers)
    number: dict[tuple[int, int, int], int] = {}
    channel = [
        number.setdefault((transfer.src, transfer.dst, route), len(number))
        for transfer, route in zip(transfers, chosen, strict=True)
    ]
    return list(number), channel


def paths_of_ports(
    instance: Instance,
    pairs: Sequence[Pair],
    ports: npt.NDArray[np.uint16],
    links: Links,
    routes: Forwarding | None = None,
) -> npt.NDArray[np.int32]:
    """The links that packets with source ports `ports`, by pair and lane, cross. Raises NoRouteError.

    `routes` are those of the switches, where they are not `instance.unsteered`.
    """
    lanes = ports.shape[1]
    src, dst = addresses_of(instance, pairs)
    fields = FlowFields(
        src=np.repeat(src, lanes, axis=0),
        dst=np.repeat(dst, lanes, axis=0),
        sport=ports.ravel(),
        dport=np.array([ROCE_PORT], dtype=np.uint16),
        proto=np.array([IPPROTO_UDP], dtype=np.uint8),
    )
    routes = instance.unsteered if routes is None else routes
    return hashed_paths(links, fields, instance.experiment.ecmp_hash, routes).reshape(len(pairs), lanes, -1)


def addresses_of(instance: Instance, pairs: Sequence[Pair]) -> tuple[Addresses, Addresses]:
    """The addresses between which each pair transfers: of the sources and of the destinations."""
    nics = [instance.nics_between(*pair) for pair in pairs]
    src, dst = (
        address_array(ip_address(instance.address(pair[end], own[end])) for pair, own in zip(pairs, nics, strict=True))
        for end in (0, 1)
    )
    return src, dst


def _planned(
    instance: Instance,
    policy: Policy,
    demands: dict[Pair, int],
    transfers: Sequence[Transfer],
    rows: npt.NDArray[np.int32],
    links: Links,
) -> npt.NDArray[np.int32]:
    """`rows` with the planner's paths for elephants, all planned before the first transfer, with bytes as demands."""
    experiment = instance.experiment
    bursts = largest_bursts(experiment, transfers)
    own = elephants(instance, policy, {pair: bursts[pair] for pair in demands})
    if not own:
        return rows
    planner = PLANNERS[policy.planner_name]
    cables = planner.cabling(experiment.topology)
    ends = np.array([[cables.nic(instance.hosts[rank], experiment.nic) for rank in pair] for pair in own])
    jobs = [experiment.jobs.index(experiment.job_of(src)) for src, _ in own]
    asked = Commodities.of(ends[:, 0], ends[:, 1], [demands[pair] for pair in own], jobs)
    place = {pair: number for number, pair in enumerate(demands)}
    paths = {place[pair]: path for pair, path in zip(own, planner.paths(cables, asked), strict=True)}
    there = {number: path for number, path in paths.items() if path is not None}  # no spine joins the leaves of others
    if not there:
        return rows
    planned = path_rows(list(there.values()), policy.m, links)
    found = np.full((*rows.shape[:2], max(rows.shape[2], planned.shape[2])), -1, dtype=np.int32)
    found[:, :, : rows.shape[2]] = rows
    found[list(there)] = -1
    found[list(there), :, : planned.shape[2]] = planned
    return found


def largest_bursts(experiment: Experiment, transfers: Iterable[Transfer]) -> dict[Pair, int]:
    """The most bytes that each pair sends without a pause long enough to end an elephant, by the spec's pauses."""
    ends = {}
    for number, job in enumerate(experiment.jobs):
        pauses = experiment.spec.workload.of_job(number).pauses(job.size)
        ends[job] = sorted(step for step, pause_s in pauses.items() if pause_s >= _IDLE_S)
    job_of = {rank: job for job in experiment.jobs for rank in job.ranks}
    sums: Counter[tuple[Pair, int]] = Counter()
    for transfer in transfers:
        burst = bisect_right(ends[job_of[transfer.src]], transfer.step)
        sums[(transfer.src, transfer.dst), burst] += transfer.count * experiment.spec.workload.item_bytes
    most: dict[Pair, int] = {}
    for (pair, _), count in sums.items():
        most[pair] = max(most.get(pair, 0), count)
    return most


def _walked(instance: Instance, pair: Pair, routes: Forwarding) -> Path:
    nics, experiment = instance.nics_between(*pair), instance.experiment
    src, dst = (ip_address(instance.address(rank, nic)) for rank, nic in zip(pair, nics, strict=True))
    return path_of(experiment.topology, Flow(src, dst, ENTROPY_PORTS.start), experiment.ecmp_hash, routes=routes)


def path_rows(paths: Sequence[Path], lanes: int, links: Links) -> npt.NDArray[np.int32]:
    """All lanes of a pair on the pair's path."""
    longest = max(len(path) for path in paths)
    rows = [links.row(path) + [-1] * (longest - len(path)) for path in paths]
    return np.repeat(np.array(rows, dtype=np.int32)[:, None, :], lanes, axis=1)
