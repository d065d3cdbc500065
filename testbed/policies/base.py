# SPDX-License-Identifier: Apache-2.0
"""What a policy answers. Every default is that of ECMP: ports drawn at random, which switches hash."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from netmodel import Path, Topology
from sdn.openflow.steering import Steering
from sim.packet import Scheme
from testbed.allocation.demands import Within
from testbed.allocation.routes import Pair
from testbed.workloads import Transfer

Division: TypeAlias = Literal["pulled", "sprayed", "cycled", "parted"]
"""How a message is divided on the fluid model: lanes pull flowlets; every packet takes one of all paths; every packet
takes one of the lanes' paths; every lane sends an equal part."""


@dataclass(frozen=True, slots=True)
class Movement:
    """How lanes leave slow paths on the fluid model."""

    round_trips: int
    """Period between two comparisons of a lane, in unloaded round trips."""
    alone: bool
    """Whether a lane compares its rate with the fair rate on its hosts' links, or with the best lane to its peer."""
    memory: int
    """Number of good ports that each lane remembers."""


@dataclass(frozen=True, eq=False)
class Placed:
    """What a policy may know of a run before it begins."""

    topology: Topology
    hosts: tuple[str, ...]
    """By rank."""
    jobs: Mapping[str, tuple[str, ...]]
    """The hosts of each job, by rank."""
    nic: int
    """Index of the NIC that carries the traffic."""
    several_nics: bool
    """Other pairs of hosts use other NICs."""
    isolation: Steering | None
    """The steering that keeps jobs apart, where their placement has reserved links."""


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A policy. A subclass may plan paths or steer switches; the rest is said by the fields."""

    chooses: bool = True
    """It chooses among paths, so that it needs a fabric with several."""
    lacking: frozenset[str] = frozenset()
    """Fabrics that do not have it."""
    options: frozenset[str] = frozenset()
    """Keys of a policy in a spec that are for this one only."""
    device: Literal["ecmp", "adaptive", "controller"] = "ecmp"
    """The path policy of devices without planned ports."""
    plans: bool = False
    """It has `paths` that are planned before a run."""
    service: bool = False
    """The path service plans its paths while a run goes on."""
    steers: bool = False
    """Switches choose paths regardless of source ports."""
    division: Division = "pulled"
    movement: Movement | None = None
    scheme: Scheme = "hashed"
    """How the packet simulation chooses paths."""
    heeds_marks: bool = False
    """It moves by marks of switches."""

    def steering(self, placed: Placed, options: Mapping[str, Any]) -> Steering | None:
        """The steering of the switches, with the `options` of the spec. Raises ValueError, which says why not."""
        return None

    def paths(self, placed: Placed, transfers: Iterable[Transfer], within: Within | None = None) -> Mapping[Pair, Path]:
        """The paths by pair of ranks that are planned before a run. Ports of other pairs are drawn at random.

        `within` gives the paths that two hosts may use, if not all: those that source ports reach.
        """
        return {}

    def check(self, placed: Placed, transfers: Iterable[Transfer]) -> None:
        """Raises ValueError, which says why, where it does not serve the topology."""
