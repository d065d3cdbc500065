# SPDX-License-Identifier: Apache-2.0
"""What a path service needs from the part that gives commodities paths, and source ports that take these."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from netmodel import Path
from sdn.path_service.constraints import Constraints
from sdn.path_service.messages import CanProbe, Moved, Probed, Report, ServiceMessage
from sdn.path_service.next_hops import NextHops
from sdn.path_service.parties import Client, Pair
from sdn.path_service.work import Work
from sdn.planners.model import Floats

Sends: TypeAlias = list[tuple[int, ServiceMessage]]
"""Messages to send, each with the connection that gets it."""

HostProbes: TypeAlias = CanProbe | Probed | Moved | Report
"""What hosts say about the paths that their ports take."""


class Rerouted(NamedTuple):
    """Pairs whose ports may have changed."""

    cut: list[Pair]
    """Those whose path has died."""
    others: list[Pair]
    """Those that moved to make room, or whose ports lead elsewhere now."""


class Move(NamedTuple):
    """A pair that takes other paths: one, or one for each lane; none where the ports are random."""

    pair: Pair
    before: list[Path]
    after: list[Path]


class Preview(NamedTuple):
    """What a change of constraints would do."""

    pairs: list[Pair]
    """All pairs in the plan. Of connections that share a place of it, that is one."""
    moves: list[Move]
    """Of those whose paths change."""
    rates_before_bps: list[float]
    """The max-min fair rate of each of `pairs` in bit/s now."""
    rates_after_bps: list[float]
    loads_before: Floats
    """As `Pinning.loads`."""
    loads_after: Floats


class Pinning(Protocol):
    """Paths for the commodities of pairs, and the ports that take them. Times are in seconds, and never decrease."""

    @property
    def offers_probes(self) -> bool:
        """Whether hosts are asked to probe."""
        ...

    @property
    def pairs(self) -> Mapping[int, Pair]:
        """Pairs that have a commodity, by its number, the oldest first."""
        ...

    def arrive(self, now_s: float, pair: Pair) -> list[Pair]:
        """Adds the commodity of a pair, which gets its number. Returns the other pairs whose ports may have changed."""
        ...

    def expect(self, now_s: float, pair: Pair) -> list[Pair]:
        """As `arrive`, for a pair whose connections cannot move, and will carry data in either direction."""
        ...

    def has_sent(self, now_s: float, pair: Pair, sent: int, port: int | None) -> list[Pair]:
        """The elephant of a pair that cannot move has sent so many bytes; 0: it has just begun.

        Where it has this port already, it counts where that leads, as far as that is known. Returns the other pairs
        whose ports may have changed.
        """
        ...

    def depart(self, now_s: float, number: int) -> list[Pair]:
        """Removes a commodity. Returns the other pairs whose ports may have changed."""
        ...

    def ports(self, pair: Pair) -> list[int]:
        """The ports of the lanes of a pair with a commodity: the same list object as long as they do not change."""
        ...

    def ports_back(self, back: Pair, pair: Pair) -> list[int]:
        """As `ports`, for the lanes of `back` that carry acknowledgements of what `pair` sends."""
        ...

    def is_settled(self, pair: Pair) -> bool:
        """Whether an announcement is answered now. Otherwise it is when the pair's ports have changed."""
        ...

    def leave(self, now_s: float, client: Client) -> list[Pair]:
        """A client has left; its pairs depart later. Returns the pairs whose ports may have changed."""
        ...

    def constrain(self, now_s: float, constraints: Constraints) -> Rerouted:
        """These constraints hold now. Raises KeyError for a link that is not between two switches."""
        ...

    def next_hops(self, now_s: float, constraints: Constraints, next_hops: NextHops) -> Rerouted:
        """As `constrain`; and switches have these groups now."""
        ...

    def keep(self, pair: Pair, path: Path) -> None:
        """Puts a pair that has just arrived on this path, if it may take it."""
        ...

    def preview(self, constraints: Constraints) -> Work[Preview]:
        """What `constrain` would do at the first step. Nothing changes. Raises as it does."""
        ...

    def heard(self, now_s: float, client: Client, message: HostProbes) -> list[Pair]:
        """A host has said something about the paths of its ports. Returns the pairs whose ports may have changed."""
        ...

    def due(self, now_s: float) -> tuple[Sends, list[Pair]]:
        """What to ask hosts now, and the pairs whose ports may have changed."""
        ...

    def prepare(self) -> bool:
        """Does one step of the work ahead of failures. False, with nothing done, when there is none left."""
        ...

    def rates_bps(self) -> Iterator[tuple[Pair, float]]:
        """The max-min fair rate of every commodity, in bit/s."""
        ...

    def paths(self, pair: Pair) -> list[Path]:
        """The path of each port of `ports`, or one for all; none without one."""
        ...

    def known_paths(self, pair: Pair) -> list[Path]:
        """As `paths`, but where packets go: a connection that cannot move may count elsewhere. None where not known."""
        ...

    def loads(self) -> Floats:
        """[0 up, 1 down; link]: the commodities on every link, as `sdn.planners.links` numbers them."""
        ...

    def status(self) -> dict[str, Any]:
        """Figures for operators, as JSON has them."""
        ...


def distinct(pairs: Iterable[Pair]) -> list[Pair]:
    """Each pair once."""
    return list(dict.fromkeys(pairs))
