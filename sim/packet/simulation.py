# SPDX-License-Identifier: Apache-2.0
"""The packet simulation: the native core with topologies and NumPy arrays."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from netmodel import PortRef, forwarding
from sim._native import PacketSimulation
from sim.links import Ints, Links
from sim.messages import Longs, MessageSimulation, columns

Receiver = Literal["go_back_n", "selective_repeat"]
Congestion = Literal["fixed", "dctcp"]
Scheme = Literal["hashed", "oblivious", "recycled", "plb", "conweave", "spraying", "drill", "letflow"]
"""How routes of packets are chosen. `hashed`: each lane has one route. `oblivious` to `conweave`: a queue pair chooses
among all routes of its channel. `spraying`, `drill`, `letflow`: switches choose by destination."""

_SWITCHES_CHOOSE = ("spraying", "drill", "letflow")


@dataclass(frozen=True, slots=True)
class Options:
    """Parameters of switches, NICs and packets."""

    link_delay_s: float = 1e-6
    """The propagation delay of links to which the topology gives none, in seconds and one way."""
    switch_buffer_bytes: int = 9_000_000
    """Buffer of each switch, shared by its ports."""
    port_buffer_bytes: int | None = None
    """Limit of one output queue; None: the whole buffer. Ignored with `pfc`."""
    ecn_bytes: int | None = None
    """Data packets that find a queue of at least this length are marked; None: no marks."""
    pfc: bool = False
    """Priority flow control: switches pause their neighbours before their buffer overflows."""
    payload_bytes: int = 4096
    """The payload of a full packet, which is the path MTU."""
    header_bytes: int = 58
    """Headers of every packet, link layer included."""
    ack_bytes: int = 62
    """Size of an acknowledgement, headers included."""
    receiver: Receiver = "go_back_n"
    """Whether receivers drop packets that arrive out of order (RoCE) or keep them."""
    congestion: Congestion = "fixed"
    """Reaction of windows to marks: none, or that of DCTCP (Alizadeh et al., SIGCOMM 2010)."""
    window_bdp: float = 2.0
    """Sum of a channel's windows in bandwidth-delay products of the unloaded path; at least two packets per lane."""
    timeout_rtts: float = 100.0
    """Unloaded round trips without progress until a sender retransmits all outstanding packets."""
    scheme: Scheme = "hashed"
    flowlet_gap_s: float = 100e-6
    """For `letflow`: a flow that was idle for longer may take another link."""
    reroute_rtts: float = 2.0
    """For `conweave`: a queue pair is rerouted when its probe is unanswered after this many unloaded round trips."""
    hold_s: float = 200e-6
    """For `conweave`: how long the last switch holds packets until earlier ones arrive by the old route."""
    lanes_per_host: bool = False
    """For `hashed`: the channels of a NIC share its lanes, as many as each channel has routes (ParaLet, section 5.3).
    A lane sends one flowlet at a time, to whichever peer is next, and has a single window for all of them."""


class Simulation(MessageSimulation[PacketSimulation]):
    """Hosts and switches of a topology, and messages from host to host.

    A channel sends its ready messages one after the other, flowlet by flowlet over its lanes. A message is ready when
    its release time has come, all messages that it waits for are delivered, and its pause after that is over.
    Deterministic by seed.
    """

    def __init__(self, links: Links, options: Options, seed: int = 0) -> None:
        """All methods raise ValueError for arguments that do not fit, such as a buffer too small for `pfc`."""
        topology = links.topology
        self._delay_s = links.delay_s(options.link_delay_s)
        names = [*(host.name for host in topology.hosts), *(switch.name for switch in topology.switches)]
        number = {name: n for n, name in enumerate(names)}
        core = PacketSimulation(
            rate_bps=links.rate_bps.astype(np.int64),
            propagation_s=self._delay_s,
            head=np.array([number[topology.peer(port).node] for port in links.ports], dtype=np.int32),
            is_switch=np.arange(len(names)) >= len(topology.hosts),
            switch_bytes=options.switch_buffer_bytes,
            port_bytes=options.port_buffer_bytes or options.switch_buffer_bytes,
            mark_bytes=options.ecn_bytes or 0,
            pause=options.pfc,
            payload_bytes=options.payload_bytes,
            header_bytes=options.header_bytes,
            ack_bytes=options.ack_bytes,
            receiver=options.receiver,
            dctcp=options.congestion == "dctcp",
            window_bdp=options.window_bdp,
            timeout_rtts=options.timeout_rtts,
            scheme=options.scheme,
            flowlet_gap_s=options.flowlet_gap_s,
            hold_s=options.hold_s,
            reroute_rtts=options.reroute_rtts,
            lanes_per_host=options.lanes_per_host,
            seed=seed,
        )
        super().__init__(core)
        self._options = options
        if options.scheme in _SWITCHES_CHOOSE:
            core.set_groups(*_groups(links))

    def set_conditions(
        self, link: int, *, delay_s: float = 0.0, mark_bytes: int | None = None, loss: float = 0.0
    ) -> None:
        """From now on, packets that cross `link` have this delay beside the links' own, these marks and this loss.

        mark_bytes: None has the threshold of all links. loss: the probability with which a data packet is lost;
        acknowledgements never are. Routes that are added later have windows and timeouts for the delay. Raises
        ValueError for a link that does not exist, a delay with `pfc`, and values out of range.
        """
        marks = (self._options.ecn_bytes or 0) if mark_bytes is None else max(1, mark_bytes)
        own_s = self._delay_s[link] if 0 <= link < self._delay_s.size else 0.0  # the core refuses such a link
        self._core.set_conditions(link, own_s + delay_s, marks, loss)

    def add_channels(
        self, rows: npt.ArrayLike, flowlet_bytes: npt.ArrayLike, back: npt.ArrayLike | None = None
    ) -> None:
        """`rows[c, r]` are the links of route r of channel c, -1 after the end.

        Each route belongs to a lane of its own; where queue pairs choose, one lane has all routes of the channel. Where
        switches choose, data packets go to the end of the route by any links and acknowledgements follow the route.
        A route may lead over hosts, which relay; with `pfc`, with `conweave` and where switches choose it must not.
        `back[c]` are the links of the channel's acknowledgements, -1 after the end; by default they take the route
        backwards, which circuits that lead one way do not allow.
        `flowlet_bytes` is the flowlet size S of each channel, or one for all. Channels and routes are numbered from 0
        in the order in which they are added.
        """
        paths = np.asarray(rows, dtype=np.int32)
        channels = paths.shape[0] if paths.ndim else 0
        sizes = np.broadcast_to(np.asarray(flowlet_bytes, dtype=np.int64), channels)
        self._core.add_channels(paths, sizes, np.asarray([] if back is None else back, dtype=np.int32))

    def add_messages(
        self,
        channel: npt.ArrayLike,
        size_bytes: npt.ArrayLike,
        release_s: npt.ArrayLike = 0.0,
        pause_s: npt.ArrayLike = 0.0,
        milestone: npt.ArrayLike = False,
    ) -> int:
        """The number of the first message; the others follow it. Single values stand for all.

        `pause_s` models computation before sending. A message with channel NO_CHANNEL and size 0 sends nothing: it is
        delivered when its pause is over. `advance` returns when a `milestone` is delivered.
        """
        numbers, sizes, releases, pauses, stops = columns(channel, size_bytes, release_s, pause_s, milestone)
        return self._core.add_messages(
            numbers.astype(np.int64),
            sizes.astype(np.int64),
            releases.astype(np.float64),
            pauses.astype(np.float64),
            stops.astype(np.bool_),
        )

    def move_lanes(self, lanes: npt.ArrayLike, rows: npt.ArrayLike) -> None:
        """From now on lane `lanes[i]` sends over the links `rows[i]`, -1 after the end, between the same NICs.

        Lanes are numbered as routes, in which their counters stay. Packets that are on the way keep their route, so
        that others may overtake them. Windows and timeouts do not change, acknowledgements take the new route
        backwards. Raises ValueError for a scheme other than `hashed`, and as `add_channels`, which cannot follow.
        """
        self._core.move_lanes(np.asarray(lanes, dtype=np.int64), np.asarray(rows, dtype=np.int32))

    def advance(self, until_s: float = np.inf) -> list[int]:
        """Advance time to `until_s`, to the next milestone, or until all messages are delivered.

        Returns the milestones just delivered.
        """
        return self._core.advance(until_s)

    @property
    def events(self) -> int:
        """Number of handled events: two for each packet and link, and timers."""
        return self._core.events

    def link_counters(self) -> dict[str, Longs]:
        """Counters of each link: `bytes` and `packets` sent, packets `dropped` and `marked` at its queue, packets
        `lost` on it, `pauses`, and `longest_bytes`, the maximum length of its queue."""
        return self._core.link_counters()

    def route_counters(self) -> dict[str, Longs]:
        """Counters of each route: `bytes` (payload, each once), `packets`, `flowlets`, `retransmits`, `timeouts`."""
        return self._core.route_counters()

    def totals(self) -> dict[str, int]:
        """Numbers of packets: `sent`, `arrived`, `dropped`, `in_flight`, and data packets that came `out_of_order`."""
        return self._core.totals()


def _groups(links: Links) -> tuple[Ints, Longs, Ints]:
    """Groups of equal-cost links for the native core: group by switch and last link, ends, links of groups."""
    topology, groups = links.topology, forwarding(links.topology).groups
    numbers: dict[tuple[int, ...], int] = {}
    of = np.full((len(topology.switches), len(links)), -1, dtype=np.int32)
    for host in topology.hosts:
        for nic in host.nics:
            last = links.back(links.number(topology.port_of(nic.address)))
            for row, switch in enumerate(topology.switches):
                if nic.address in groups[switch.name]:
                    ways = tuple(links.number(PortRef(switch.name, port)) for port in groups[switch.name][nic.address])
                    of[row, last] = numbers.setdefault(ways, len(numbers))
    ends = np.cumsum([0, *map(len, numbers)], dtype=np.int64)
    return of, ends, np.array([link for ways in numbers for link in ways], dtype=np.int32)
