# SPDX-License-Identifier: Apache-2.0
"""The source ports of every rank's lanes, for fabrics that run and fabrics that are computed.

Emulated ranks get the seed and the table that are made here; simulators get the ports that follow from them. Both
therefore take the same paths with the same seed. tests/testbed/allocation/test_ports.py compares the ports with those
that the engine uses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import TypeAlias

import numpy as np

from netmodel import ENTROPY_PORTS, IPPROTO_UDP, EcmpHash, Forwarding, Path, Topology, paths_of_ports, ports_for_path
from testbed.allocation.demands import Within
from testbed.allocation.routes import Pair
from testbed.errors import InputError

PlanPaths: TypeAlias = Callable[[Within | None], Mapping[Pair, Path]]
"""Plans a path for pairs of ranks, within those that pairs of hosts may use."""

_U64 = (1 << 64) - 1


@dataclass(frozen=True)
class RankPorts:
    """The inputs that determine the source ports of one rank's device.

    `seed` seeds the device's random ports. `table` has the pinned ports of the lanes, by destination rank. `segments`
    has the paths that packets from these ports take by segments, whatever switches choose.
    """

    seed: int
    lanes: int
    table: Mapping[int, Sequence[int]]
    segments: Mapping[int, Path] = field(default_factory=dict)

    @cached_property
    def drawn(self) -> list[int]:
        """The random ports of the lanes: the same for every destination that the table lacks."""
        return drawn_ports(self.seed, self.lanes)

    def towards(self, destination: int) -> Sequence[int]:
        """The ports, by lane, with which the device begins to send to that rank."""
        return self.table.get(destination, self.drawn)


def plan_ports(
    topology: Topology,
    hosts: Sequence[str],
    lanes: int,
    seed: int,
    *,
    paths: PlanPaths | None = None,
    ecmp_hash: EcmpHash,
    nic: int = 0,
    routes: Forwarding | None = None,
    protocol: int = IPPROTO_UDP,
    segments: bool = False,
) -> tuple[RankPorts, ...]:
    """The ports of every rank, where rank k runs on `hosts[k]`.

    `paths` plans paths between the hosts' NICs of index `nic`; devices draw the ports towards other ranks at random.
    `protocol` is that of the lanes. `routes` are those of the switches, by default `netmodel.forwarding`. Where too few
    ports take a planned path, as with a polarised hash, paths are planned over those that enough ports take. Raises
    InputError when a pair has none. segments: packets take the planned paths by segments, with any port.
    """
    tables: Mapping[int, Mapping[int, Sequence[int]]] = {}
    if paths is not None and segments:
        planned = paths(None)
        given: dict[int, dict[int, list[int]]] = {}
        for src, dst in planned:
            ports = np.random.default_rng([seed, src, dst]).choice(ENTROPY_PORTS, size=lanes, replace=False)
            given.setdefault(src, {})[dst] = [int(port) for port in ports]
        return tuple(
            RankPorts(
                device_seed(seed, rank),
                lanes,
                given.get(rank, {}),
                {dst: path for (src, dst), path in planned.items() if src == rank},
            )
            for rank in range(len(hosts))
        )
    if paths is not None:

        def tables_of(planned: Mapping[Pair, Path]) -> Mapping[int, Mapping[int, Sequence[int]]]:
            return port_tables(
                topology, hosts, planned, lanes, seed, ecmp_hash=ecmp_hash, nic=nic, routes=routes, protocol=protocol
            )

        try:
            tables = tables_of(paths(None))
        except TooFewPortsError:  # plan again, over the paths that ports reach
            reach = lru_cache(maxsize=None)(partial(_reached, topology, ecmp_hash, lanes, nic, routes, protocol))
            tables = tables_of(paths(reach))
    return tuple(RankPorts(device_seed(seed, rank), lanes, tables.get(rank, {})) for rank in range(len(hosts)))


class TooFewPortsError(InputError):
    """A planned path that fewer source ports take than a pair has lanes."""


def _reached(
    topology: Topology,
    ecmp_hash: EcmpHash,
    lanes: int,
    nic: int,
    routes: Forwarding | None,
    protocol: int,
    src: str,
    dst: str,
) -> tuple[Path, ...]:
    """The paths from host to host that enough source ports for all lanes take."""
    nics = {"src_nic": nic, "dst_nic": nic}
    paths, index = paths_of_ports(topology, src, dst, ecmp_hash, protocol=protocol, routes=routes, **nics)
    ports = np.bincount(index, minlength=len(paths))
    return tuple(path for path, count in zip(paths, ports.tolist(), strict=True) if count >= lanes)


def device_seed(seed: int, rank: int) -> int:
    """The seed of a rank's device: distinct by rank, and by seed of the spec. 32 bits."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def drawn_ports(seed: int, lanes: int) -> list[int]:
    """The ports that a device with that seed draws for its lanes.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as in hostlib/native/src/paths/ecmp.cpp.
    """
    ports, state = [], seed
    for _ in range(lanes):
        state = (state + 0x9E3779B97F4A7C15) & _U64
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _U64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _U64
        mixed ^= mixed >> 31
        ports.append(ENTROPY_PORTS.start + int((mixed >> 11) * 2.0**-53 * len(ENTROPY_PORTS)))
    return ports


def port_tables(
    topology: Topology,
    hosts: Sequence[str],
    paths: Mapping[Pair, Path],
    lanes: int,
    seed: int,
    *,
    ecmp_hash: EcmpHash,
    nic: int = 0,
    routes: Forwarding | None = None,
    protocol: int = IPPROTO_UDP,
) -> dict[int, dict[int, list[int]]]:
    """For every source rank: the ports of its `lanes` lanes towards each destination rank that has a path assigned.

    `seed` chooses among the ports that take a path. Raises InputError when too few ports take some path.
    """
    tables: dict[int, dict[int, list[int]]] = {}
    for (src, dst), path in paths.items():
        nics = {"src_nic": nic, "dst_nic": nic}
        ports = ports_for_path(
            topology, hosts[src], hosts[dst], path, ecmp_hash, protocol=protocol, routes=routes, **nics
        )
        if len(ports) < lanes:
            raise TooFewPortsError(
                f"pinned: {lanes} lanes need {lanes} source ports from {hosts[src]} to {hosts[dst]} by "
                f"{', '.join(map(str, path))}, and only {len(ports)} take that path; use fewer lanes"
            )
        chosen = np.random.default_rng([seed, src, dst]).choice(ports, size=lanes, replace=False)
        tables.setdefault(src, {})[dst] = [int(port) for port in chosen]
    return tables
