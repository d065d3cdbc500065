# SPDX-License-Identifier: Apache-2.0
"""What the runner and an agent say to one another: one JSON object per line, refused unless it is exactly as here.

A run of one policy and seed goes: prepare -> prepared, connect -> connected, start -> finished, close -> closed. An
agent that cannot do what it is asked answers `failed`, once, and ends.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from testbed.workloads import AnyWorkload


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceConfig(_Message):
    """Arguments of `hostlib.Device`; `ports` goes by peer address."""

    address: str
    lanes: int
    policy: Literal["ecmp", "pinned", "adaptive"]
    ports: dict[str, list[int]] | None = None
    seed: int
    path_mtu: int | None = None
    line_rate_bps: int
    flowlet_bytes: int | None = None
    mice_bytes: int | None = None


class Prepare(_Message):
    """Open the device, make the data, post a listener for every rank that will send here."""

    op: Literal["prepare"] = "prepare"
    rank: int
    ranks: int
    seed: int
    device: DeviceConfig
    workload: AnyWorkload


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


class Lane(_Message):
    """Counters of one lane towards one peer address."""

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


class Finished(_Message):
    """The rank's share is done and its output compared with the truth. Times are of the monotonic clock."""

    event: Literal["finished"] = "finished"
    finished_s: float
    step_finished_s: list[float]
    last_arrival_s: dict[int, float]
    wrong_bytes: int
    lanes: list[Lane]
    discards: dict[str, int]


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
