# SPDX-License-Identifier: Apache-2.0
"""Messages between the runner and an agent: one JSON object per line. Invalid messages are rejected.

The sequence for one policy and seed is prepare -> prepared, connect -> connected, start -> finished, close -> closed.
An agent that cannot carry out a command answers `failed` once and exits.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from testbed.analysis.observations import LaneCounters
from testbed.workloads import ByKind, Workload

PortPolicy = Literal["ecmp", "pinned", "adaptive", "controller"]
"""The method by which a device chooses source ports."""

_LARGEST_PATH_MTU = 4096


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceConfig(_Message):
    """Arguments of `hostlib.Device`. `ports` and `segments` are indexed by peer address.

    Experiments are about RoCE, so the back end is `soft` unless the spec or the fabric says otherwise. The last five
    are for policy `controller`.
    """

    address: str
    backend: Literal["soft", "tcp", "verbs"] = "soft"
    lanes: int
    lanes_per: Literal["peer", "host"] = "peer"
    policy: PortPolicy
    ports: dict[str, list[int]] | None = None
    segments: dict[str, list[list[str]]] | None = None
    seed: int
    path_mtu: int | None = None
    line_rate_bps: int
    flowlet_bytes: int | None = None
    mice_bytes: int | None = None
    congestion_control: str | None = None
    window_packets: int | None = None
    path_service: str | None = None
    token_file: str | None = None
    job: str | None = None
    elephant_bytes: int | None = None
    assign_wait_s: float | None = None

    @property
    def warm_up_bytes(self) -> int:
        """Size of the message that every connection carries before time measurement starts: one packet per lane.

        QPs are created, and switches learn flows, at first use.
        """
        return self.lanes * (self.path_mtu or _LARGEST_PATH_MTU)


class OtherDevice(_Message):
    """A further device, for data to and from other ranks, each named with the number of a route."""

    device: DeviceConfig
    targets: list[tuple[int, int]]
    sources: list[tuple[int, int]]


class Split(_Message):
    """The parts of the data from one rank to another that each of several routes carries."""

    src: int
    dst: int
    shares: list[float]


class Prepare(_Message):
    """Open the devices, generate the data, open a listener for every source rank. Ranks are those of `job`."""

    op: Literal["prepare"] = "prepare"
    rank: int
    ranks: int
    seed: int
    device: DeviceConfig
    others: list[OtherDevice] = []
    splits: list[Split] = []
    """Of the rank and its peers; without one, a pair has one route."""
    workload: Annotated[Workload, ByKind(cluster_job="testbed.workloads.cluster_job:ClusterJob")]
    transport: Literal["paralet", "socket"] = "paralet"  # as in a spec, whose modules an agent need not import
    job: int = 0
    """The job's number, the argument of `Workload.of_job`."""


class Connect(_Message):
    """Connect to every target rank by its `Prepared.handles`, and accept the source ranks' connections."""

    op: Literal["connect"] = "connect"
    handles: dict[int, str]
    timeout_s: float


class Start(_Message):
    """Start the transfers at `at_s` of the monotonic clock, which all agents of a machine share."""

    op: Literal["start"] = "start"
    at_s: float
    timeout_s: float


class Close(_Message):
    """Close the devices. The agent is then ready for the next run."""

    op: Literal["close"] = "close"


class Prepared(_Message):
    """`handles` has listener handles (base64) for each source rank: one for each route, with blanks between them."""

    event: Literal["prepared"] = "prepared"
    handles: dict[int, str]


class Connected(_Message):
    """All connections are established."""

    event: Literal["connected"] = "connected"


class Finished(_Message):
    """The rank is finished and its output was compared with the expected data. Times are of the monotonic clock."""

    event: Literal["finished"] = "finished"
    finished_s: float
    step_finished_s: list[float]
    last_arrival_s: dict[int, float]
    wrong_bytes: int
    lanes: list[LaneCounters]
    discards: dict[str, int]
    path_client: dict[str, int] = {}
    """Counters of the device's path client, with policy `controller`."""
    losses: list[float] = []
    """By step, of a training script that reports them."""


class Closed(_Message):
    """The devices are closed."""

    event: Literal["closed"] = "closed"


class Failed(_Message):
    """The agent could not carry out a command and exits."""

    event: Literal["failed"] = "failed"
    error: str
    peer_lost: bool = False
    """Whether the rank failed only because a peer closed its connections or is gone."""


Command = Annotated[Prepare | Connect | Start | Close, Field(discriminator="op")]
Report = Annotated[Prepared | Connected | Finished | Closed | Failed, Field(discriminator="event")]

COMMANDS: TypeAdapter[Command] = TypeAdapter(Command)
REPORTS: TypeAdapter[Report] = TypeAdapter(Report)
