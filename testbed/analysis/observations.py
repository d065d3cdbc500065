# SPDX-License-Identifier: Apache-2.0
"""What a run saw, unjudged: the runner writes it down inside the sandbox, everything else is computed from it outside.

Times are seconds from the start of the run they belong to; ports are written NODE:PORT.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

_GROWING = ("tx_bytes", "tx_packets", "flowlets", "retransmits", "timeouts")
"""Fields of `LaneCounters` that never decrease."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PairFlow(_Record):
    """All that one rank sent another. `completion_s`: when the last byte had arrived (and been added, where it is)."""

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

    def since(self, before: "LaneCounters | None") -> "LaneCounters":
        """The same lane with only what it has counted since `before`, an earlier reading of it."""
        if before is None:
            return self
        return self.model_copy(update={name: getattr(self, name) - getattr(before, name) for name in _GROWING})


class RankLane(_Record):
    """The counters of one lane of one rank."""

    rank: int
    lane: LaneCounters


class LinkLoad(_Record):
    """What left by a switch port during the run."""

    port: str
    tx_bytes: int
    tx_packets: int
    dropped: int


class Sample(_Record):
    """Bytes that had left by each watched port since the start of the run, at `at_s`."""

    at_s: float
    tx_bytes: dict[str, int]


class SeenFlow(_Record):
    """A UDP flow that was new to the datapath: by which port it left each switch that had a choice."""

    src: str
    dst: str
    src_port: int
    dst_port: int
    ports: list[str]


class JobRecord(_Record):
    """One job of a run: from the start until its last rank had finished."""

    name: str
    ranks: int
    completion_s: float


class HappenedEvent(_Record):
    """An event of the spec: when it was begun, and when it had been carried out.

    For a cut or a mended link that is when every switch had confirmed its new routes; `sent_s`, with a path service, is
    when that had sent hosts their new assignments. `concerned`: for a cut, the switch ports of the hosts whose data, or
    their acknowledgements, crossed the link just before.
    """

    what: str
    at_s: float
    done_s: float
    sent_s: float | None = None
    concerned: list[str] = []


class RunRecord(_Record):
    """One policy with one seed."""

    policy: str
    m: int
    seed: int
    completion_s: float
    wrong_bytes: int
    step_finished_s: list[list[float]]
    """By rank, then by step."""
    flows: list[PairFlow]
    lanes: list[RankLane]
    discards: dict[str, int]
    overruns: int
    """Packets that the emulation itself lost for want of CPU: not zero means that the machine was too slow."""
    links: list[LinkLoad]
    samples: list[Sample]
    seen: list[SeenFlow]
    jobs: list[JobRecord] = []
    events: list[HappenedEvent] = []
    strays: dict[str, int] = {}
    """Packets that a switch port refused because they may not go where they wanted to."""
    controller: dict[str, int] = {}
    """What the devices' clients of the path service have counted, all added up."""
    service: dict[str, Any] = {}
    """The path service's own status after the run."""


class Observations(_Record):
    """All runs of an experiment, in the order in which they took place."""

    runs: list[RunRecord]

    def save(self, path: Path) -> None:
        """Write to `path`."""
        path.write_text(self.model_dump_json())

    @classmethod
    def load(cls, path: Path) -> "Observations":
        """Read what `save` wrote."""
        return cls.model_validate_json(path.read_bytes())
