# SPDX-License-Identifier: Apache-2.0
"""Messages over channels of queue pairs, from event to event: the native core in the terms of topologies and arrays."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from netmodel import PortRef, forwarding
from sim import _packet
from sim.links import Floats, Ints, Links

Receiver = Literal["go_back_n", "selective_repeat"]
Congestion = Literal["fixed", "dctcp"]
Scheme = Literal["hashed", "oblivious", "recycled", "plb", "conweave", "spraying", "drill", "letflow"]
"""How packets find their way. `hashed`: each lane has a route. Of the next four a queue pair chooses among all routes
of its channel, packet by packet or now and then. In the last three switches choose, by destination."""

_SWITCHES_CHOOSE = ("spraying", "drill", "letflow")

_Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Options:
    """What switches, NICs and packets are like."""

    link_delay_s: float = 1e-6
    """Propagation, per link."""
    switch_buffer_bytes: int = 9_000_000
    """Of each switch, shared by its ports."""
    port_buffer_bytes: int | None = None
    """The most of it that one output queue may hold; None: all. Without meaning where `pfc` is on."""
    ecn_bytes: int | None = None
    """Data packets that find a queue at least this long are marked; None: none is."""
    pfc: bool = False
    """Priority flow control: switches pause their neighbours before they would have to drop."""
    payload_bytes: int = 4096
    """Of a full packet."""
    header_bytes: int = 58
    """Of every packet, as links count it."""
    ack_bytes: int = 62
    """Of an acknowledgement, headers included."""
    receiver: Receiver = "go_back_n"
    """What receivers do with packets that come out of order: refuse them (RoCE), or keep them."""
    congestion: Congestion = "fixed"
    """What windows do when packets are marked: nothing, or as DCTCP (Alizadeh et al., SIGCOMM 2010) has it."""
    window_bdp: float = 2.0
    """A channel's windows together, in bandwidth-delay products of the unloaded path; two packets a lane at least."""
    timeout_rtts: float = 100.0
    """Unloaded round trips without progress until a sender repeats what is out."""
    reorder_rtts: float = 25.0
    """Of selective repeat: a packet sent that much before one that has arrived, and not there, is lost."""
    scheme: Scheme = "hashed"
    flowlet_gap_s: float = 100e-6
    """Of `letflow`: a flow that has been idle for longer may take another way."""
    reroute_rtts: float = 2.0
    """Of `conweave`: a queue pair whose probe is not answered within so many unloaded round trips is rerouted."""
    hold_s: float = 200e-6
    """Of `conweave`: how long the last switch holds packets back for those sent before them on the old route."""


class Simulation:
    """Hosts and switches of a topology, and messages that go from host to host.

    A channel sends the messages that are ready one after the other, flowlet by flowlet over its lanes. A message is
    ready when its release time has come, all messages that it waits for have been delivered, and then its pause is
    over. Deterministic by seed.
    """

    def __init__(self, links: Links, options: Options, seed: int = 0) -> None:
        """Raises ValueError, as all methods do, for what does not fit, as a buffer too small for `pfc`."""
        topology = links.topology
        names = [*(host.name for host in topology.hosts), *(switch.name for switch in topology.switches)]
        number = {name: n for n, name in enumerate(names)}
        self._core = _packet.Simulation(
            rate_bps=links.rate_bps.astype(np.int64),
            head=np.array([number[topology.peer(port).node] for port in links.ports], dtype=np.int32),
            is_switch=np.arange(len(names)) >= len(topology.hosts),
            propagation_s=options.link_delay_s,
            switch_bytes=options.switch_buffer_bytes,
            port_bytes=options.port_buffer_bytes or options.switch_buffer_bytes,
            mark_bytes=options.ecn_bytes or 0,
            pause=options.pfc,
            payload_bytes=options.payload_bytes,
            header_bytes=options.header_bytes,
            ack_bytes=options.ack_bytes,
            receiver=options.receiver,
            reacts=options.congestion == "dctcp",
            window_bdp=options.window_bdp,
            timeout_rtts=options.timeout_rtts,
            reorder_rtts=options.reorder_rtts,
            scheme=options.scheme,
            flowlet_gap_s=options.flowlet_gap_s,
            hold_s=options.hold_s,
            reroute_rtts=options.reroute_rtts,
            seed=seed,
        )
        if options.scheme in _SWITCHES_CHOOSE:
            self._core.set_groups(*_groups(links))

    def add_channels(self, rows: npt.ArrayLike, flowlet_bytes: npt.ArrayLike) -> None:
        """`rows[c, r]` are the links of route r of channel c, -1 after the end.

        Each is a lane's; where queue pairs choose, they are those of one lane. Where switches choose, data go to the
        end of the route by themselves, and acknowledgements by it. `flowlet_bytes` is the S of each channel, or of all.
        Channels and routes are numbered in the order in which they are added, from 0.
        """
        paths = np.asarray(rows, dtype=np.int32)
        channels = paths.shape[0] if paths.ndim else 0
        self._core.add_channels(paths, np.broadcast_to(np.asarray(flowlet_bytes, dtype=np.int64), channels))

    def add_messages(
        self,
        channel: npt.ArrayLike,
        size_bytes: npt.ArrayLike,
        release_s: npt.ArrayLike = 0.0,
        pause_s: npt.ArrayLike = 0.0,
    ) -> int:
        """The number of the first; the others follow it. Single values stand for all.

        `pause_s` stands for computing before sending. Channel -1 with a size of 0: nothing is sent, the pause passes.
        """
        columns = np.broadcast_arrays(channel, size_bytes, release_s, pause_s)
        numbers, sizes, releases, pauses = (np.atleast_1d(column) for column in columns)
        return self._core.add_messages(
            numbers.astype(np.int64), sizes.astype(np.int64), releases.astype(np.float64), pauses.astype(np.float64)
        )

    def add_waits(self, earlier: npt.ArrayLike, later: npt.ArrayLike) -> None:
        """`later[i]` waits for `earlier[i]`. Only for messages added since the last `advance`."""
        self._core.add_waits(np.asarray(earlier, dtype=np.int64), np.asarray(later, dtype=np.int64))

    def advance(self, until_s: float = np.inf) -> None:
        """Let time pass until then, or until all messages are delivered."""
        self._core.advance(until_s)

    @property
    def now_s(self) -> float:
        """The time, from 0."""
        return self._core.now_s

    @property
    def undelivered(self) -> int:
        """How many messages are not delivered."""
        return self._core.undelivered

    @property
    def events(self) -> int:
        """How many have been handled: two for each packet and link, and timers."""
        return self._core.events

    def delivered_s(self) -> Floats:
        """By message: when its last missing packet had arrived; NaN if it has not."""
        return self._core.delivered_s()

    def link_counters(self) -> dict[str, _Longs]:
        """By link: `bytes` and `packets` that have left by it, `dropped` before it, `marked`, `pauses` and
        `longest_bytes`, the longest that its queue has been."""
        return self._core.link_counters()

    def route_counters(self) -> dict[str, _Longs]:
        """By route: payload `bytes` (each once), `packets`, `flowlets`, `retransmits`, `timeouts`."""
        return self._core.route_counters()

    def totals(self) -> dict[str, int]:
        """Packets: `sent`, `arrived`, `dropped`, `in_flight`; and of data: how many came `out_of_order`."""
        return self._core.totals()


def _groups(links: Links) -> tuple[Ints, _Longs, Ints]:
    """By switch and last link, the number of a group of links that lead there; the groups, one after the other."""
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
