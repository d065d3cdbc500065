# SPDX-License-Identifier: Apache-2.0
"""What the runner and an agent say to one another: one JSON object per line, refused unless it is exactly as here.

A run of one policy and seed goes: prepare -> prepared, connect -> connected, start -> finished, close -> closed. An
agent that cannot do what it is asked answers `failed`, once, and ends.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from testbed.analysis.observations import LaneCounters
from testbed.workloads import AnyWorkload

PortPolicy = Literal["ecmp", "pinned", "adaptive", "controller"]
"""How a device chooses source ports."""

_LARGEST_PATH_MTU = 4096


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceConfig(_Message):
    """Arguments of `hostlib.Device`; `ports` goes by peer address. The last five are for policy `controller`."""

    address: str
    backend: Literal["soft", "verbs"] | None = None
    lanes: int
    policy: PortPolicy
    ports: dict[str, list[int]] | None = None
    seed: int
    path_mtu: int | None = None
    line_rate_bps: int
    flowlet_bytes: int | None = None
    mice_bytes: int | None = None
    controller: str | None = None
    token_file: str | None = None
    job: str | None = None
    elephant_bytes: int | None = None
    assign_wait_s: float | None = None

    @property
    def warm_up_bytes(self) -> int:
        """A packet's worth per lane: of a message that goes over every connection before the clock starts.

        QPs are made, and switches learn flows, when first used.
        """
        return self.lanes * (self.path_mtu or _LARGEST_PATH_MTU)


class OtherDevice(_Message):
    """A further device, for what is sent to the ranks in `targets` and comes from those in `sources`."""

    device: DeviceConfig
    targets: list[int]
    sources: list[int]


class Prepare(_Message):
    """Open the devices, make the data, post a listener for every rank that will send here. Ranks are those of `job`."""

    op: Literal["prepare"] = "prepare"
    rank: int
    ranks: int
    seed: int
    device: DeviceConfig
    others: list[OtherDevice] = []
    workload: AnyWorkload
    job: int = 0
    """Its number: what `Workload.of_job` goes by."""


class Connect(_Message):
    """Connect to every rank that this one sends to, by the listener handles (base64), and accept the others."""

    op: Literal["connect"] = "connect"
    handles: dict[int, str]
    timeout_s: float


class Start(_Message):
    """Move the data, from `at_s` of the monotonic clock on, which all agents of a machine share."""

    op: Literal["start"] = "start"
    at_s: float
    timeout_s: float


class Close(_Message):
    """Close the device; the agent is then ready for the next run."""

    op: Literal["close"] = "close"


class Prepared(_Message):
    """`handles`: a listener handle (base64) for each source rank."""

    event: Literal["prepared"] = "prepared"
    handles: dict[int, str]


class Connected(_Message):
    """All connections stand."""

    event: Literal["connected"] = "connected"


class Finished(_Message):
    """The rank's share is done and its output compared with the expected data. Times are of the monotonic clock."""

    event: Literal["finished"] = "finished"
    finished_s: float
    step_finished_s: list[float]
    last_arrival_s: dict[int, float]
    wrong_bytes: int
    lanes: list[LaneCounters]
    discards: dict[str, int]
    controller: dict[str, int] = {}
    """What the device's client of the path service has counted, with policy `controller`."""


class Closed(_Message):
    """The device is closed."""

    event: Literal["closed"] = "closed"


class Failed(_Message):
    """The agent could not do what it was asked and ends."""

    event: Literal["failed"] = "failed"
    error: str


Order = Annotated[Prepare | Connect | Start | Close, Field(discriminator="op")]
Report = Annotated[Prepared | Connected | Finished | Closed | Failed, Field(discriminator="event")]

ORDERS: TypeAdapter[Order] = TypeAdapter(Order)
REPORTS: TypeAdapter[Report] = TypeAdapter(Report)
