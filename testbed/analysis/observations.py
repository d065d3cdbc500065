# SPDX-License-Identifier: Apache-2.0
"""The raw observations of runs. The runner records them inside the sandbox; all metrics are computed outside.

Times are seconds from the start of the run they belong to; ports are written NODE:PORT.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from netmodel import IPPROTO_UDP

_GROWING = ("tx_bytes", "tx_packets", "flowlets", "retransmits", "timeouts")
"""Monotonic fields of `LaneCounters`."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PairFlow(_Record):
    """Data from one rank to another. `completion_s`: when the last byte had arrived and, for reductions, was added."""

    src: int
    dst: int
    bytes: int
    completion_s: float


class LaneCounters(_Record):
    """Counters of one lane towards one peer address.

    `local` is the address of the rank's own device, where a rank has several.
    """

    peer: str
    lane: int
    port: int
    port_method: str
    tx_bytes: int
    tx_packets: int
    flowlets: int
    retransmits: int
    timeouts: int
    rtt_s: float | None
    local: str | None = None
    member: int = 0
    """The number of the NIC of a fused device that it is on, at the end of the run."""

    def since(self, before: "LaneCounters | None") -> "LaneCounters":
        """The lane's counts since `before`, an earlier reading of the same lane."""
        if before is None:
            return self
        return self.model_copy(update={name: getattr(self, name) - getattr(before, name) for name in _GROWING})

    def plus(self, other: "LaneCounters | None") -> "LaneCounters":
        """The sum with another set of queue pairs to the same peer: two devices that connect to each other at the same
        time have two."""
        if other is None:
            return self
        return self.model_copy(update={name: getattr(self, name) + getattr(other, name) for name in _GROWING})


class RankLane(_Record):
    """The counters of one lane of one rank."""

    rank: int
    lane: LaneCounters


class LinkLoad(_Record):
    """Traffic sent by a switch port during the run."""

    port: str
    tx_bytes: int
    tx_packets: int
    dropped: int
    lost: int = 0
    """Packets that a fault of this port, declared in the spec, has lost."""
    corrupted: int = 0
    marked: int = 0
    """Packets that this port has marked (ECN)."""
    late: int = 0
    """Packets that a fault of this port, declared in the spec, has held back."""


class Sample(_Record):
    """Bytes sent by each watched port from the start of the run until `at_s`."""

    at_s: float
    tx_bytes: dict[str, int]


class LinkHistory(_Record):
    """Bytes sent by the ports between switches, from the start of a run until each moment."""

    ports: list[str]
    at_s: list[float]
    tx_bytes: list[list[int]]
    """Bytes that each port has sent: a list for each moment of `at_s`, with a number for each of `ports`."""


class SeenFlow(_Record):
    """A flow new to the datapath: its port at each switch with several next hops."""

    src: str
    dst: str
    src_port: int
    dst_port: int
    protocol: int = IPPROTO_UDP
    ports: list[str]


class JobRecord(_Record):
    """One job of a run. `completion_s` is the time from its start until its last rank finished."""

    name: str
    ranks: int
    completion_s: float
    losses: list[float] = []
    """By step, of a training script's first rank. Other losses of other ranks count as wrong bytes."""


class HappenedEvent(_Record):
    """An event of the spec: when it began and when it was complete.

    A cut or mended link is complete when every switch has confirmed its new routes. `sent_s` is when the path service,
    if any, had sent hosts their new assignments. Where links end (a cut, a switch that dies, a loss of all packets),
    `concerned` has the switch ports of the hosts whose data or acknowledgements crossed them just before.
    """

    what: str
    at_s: float
    done_s: float
    sent_s: float | None = None
    concerned: list[str] = []


class Repinned(_Record):
    """With measured paths: from `at_s` on, for `seconds`, it was in doubt which paths ports of `pairs` pairs took.

    `lanes` of them had another path then, or took another port.
    """

    at_s: float
    seconds: float
    pairs: int
    lanes: int


class LossyLink(_Record):
    """A link that was found to lose packets: of `lossy` lanes out of `lanes` over it, of `hosts` hosts.

    Links are written as their ports, the one that loses packets first; where several have the same evidence, all are
    given.
    """

    at_s: float
    links: list[str]
    lossy: int
    lanes: int
    hosts: int


class RunRecord(_Record):
    """One run: a policy with a seed."""

    policy: str
    m: int
    seed: int
    completion_s: float
    wrong_bytes: int
    step_finished_s: list[list[float]]
    """Seconds from the start of the run until each step has ended: a list for each rank."""
    flows: list[PairFlow]
    lanes: list[RankLane]
    discards: dict[str, int]
    overruns: int
    """Packets that the emulation lost for lack of processor time. Above 0 the machine was too slow."""
    wait_s: float | None = None
    """The mean time that threads of the fabric waited for a processor, each time; None where it is not counted."""
    links: list[LinkLoad]
    samples: list[Sample]
    history: LinkHistory | None = None
    """The loads of links over time; None but for runs of the first seed."""
    seen: list[SeenFlow]
    jobs: list[JobRecord] = []
    events: list[HappenedEvent] = []
    next_hops: dict[str, dict[str, list[int]]] = {}
    """By router and address, where there are several: the ports of the next hops in the order of the router's kernel,
    which its hash selects by. Empty where switches have the order of `netmodel.forwarding`."""
    strays: dict[str, int] = {}
    """Packets that steering rules dropped, by switch port."""
    path_clients: dict[str, int] = {}
    """Sums of the counters of the devices' path clients."""
    service: dict[str, Any] = {}
    """The status of the path service after the run; empty without one."""
    repinned: list[Repinned] = []
    lossy_links: list[LossyLink] = []


class Observations(_Record):
    """All runs of an experiment, in chronological order."""

    runs: list[RunRecord]

    def save(self, path: Path) -> None:
        """Write all runs to the file `path` as JSON, so that `load` reads them."""
        path.write_text(self.model_dump_json())

    @classmethod
    def load(cls, path: Path) -> "Observations":
        """Read a file that `save` wrote."""
        return cls.model_validate_json(path.read_bytes())
