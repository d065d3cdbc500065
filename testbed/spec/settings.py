# SPDX-License-Identifier: Apache-2.0
"""Settings that a spec may change: time limits, optical switches, routers, and the two simulated fabrics."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from netmodel import LinuxCrcHash, LinuxL4Hash, Role, Topology
from netmodel.hashes.linux_crc import HASH_BITS
from sim.packet import Congestion, Receiver
from testbed.conflict import Conflict
from testbed.quantities import Bytes
from testbed.spec.section import Section

RouterHash = Literal["linux", "crc32"]


class Timeouts(Section):
    """Seconds after which a phase counts as failed."""

    start_s: float = Field(default=60.0, gt=0)
    connect_s: float = Field(default=30.0, gt=0)
    run_s: float = Field(default=120.0, gt=0)


class Within(Section):
    """Rings "+stride" in every block of `within` consecutive ranks of a job."""

    stride: int
    within: int = Field(ge=2)


class Optical(Section):
    """The circuits to which optical switches are set before runs.

    On direct-connect fabrics each job has circuits of its own: with `strides` NIC k of every host is in the ring that
    leads from the job's rank r to rank r + strides[k], or stays within a block of ranks; with `find` TopologyFinder
    decides by what the workload sends, with the first seed. With `routes: least_load` a pair's transfers are shared out
    among the routes, each with NICs of its own at both ends, that load the most loaded circuit least; otherwise a pair
    has one route. Ports are dark for `reconfiguration_s` while they change.
    """

    strides: list[int | Within] | None = Field(default=None, min_length=1)
    find: bool = False
    routes: Literal["one", "least_load"] = "one"
    reconfiguration_s: float = Field(default=0.010, ge=0, le=60)

    @model_validator(mode="after")
    def _one_of_two(self) -> "Optical":
        if self.find and self.strides is not None:
            raise ValueError("give either strides or find")
        return self


class RouterSettings(Section):
    """How the routers of fabric `routed` are set. docs/routed.md explains it.

    `hash` is by which they choose among equal paths: `linux` is the kernel's own, `crc32` a CRC as switch ASICs have,
    whose bits begin `hash_offset` further at switches of a role. With `unnumbered` links have no addresses.
    """

    hash: RouterHash = "linux"
    hash_offset: dict[Role, Annotated[int, Field(ge=0, lt=HASH_BITS)]] = Field(default_factory=dict)

    unnumbered: bool = False

    @model_validator(mode="after")
    def _offset_of_a_crc(self) -> "RouterSettings":
        if self.hash_offset and self.hash != "crc32":
            raise Conflict(f"the hash {self.hash} has no offset; leave it out, or take hash crc32", "hash_offset")
        return self

    def ecmp_hash(self, topology: Topology) -> LinuxL4Hash | LinuxCrcHash:
        """The hash of these routers. Raises ValueError for switches of one seed with different offsets."""
        return LinuxL4Hash() if self.hash == "linux" else LinuxCrcHash.of(topology, self.hash_offset)


class OpenFlowSettings(Section):
    """What programs the switches of fabric `mininet`. docs/spec.md explains it.

    `app` is a Python file with an os-ken app, in place of ours. A relative name starts at the spec's folder.
    """

    app: str
    sha256: str | None = None
    """Of the file, in hexadecimal digits. Reading a spec sets it, so that runs of two apps are not taken for one."""


class FluidSettings(Section):
    """Times that fabric `fluid` adds to the serialisation time of links. docs/fluid.md describes them."""

    link_delay_s: float = Field(default=1e-6, ge=0, le=1)
    """Propagation of each link to which the topology gives no delay."""
    message_delay_s: float = Field(default=0.0, ge=0, le=10)
    """From the last bit of a message until its receiver has it and may go on."""
    reroute_s: float = Field(default=0.0, ge=0, le=60)
    """From a cut or a mended link until switches have new routes."""


class PacketSettings(Section):
    """Properties of the switches and NICs of fabric `packet`. docs/packet.md explains them."""

    link_delay_s: float = Field(default=1e-6, ge=0, le=1)
    """As on `fluid`."""
    switch_buffer_bytes: Bytes = Field(default=9_000_000, ge=10_000)
    port_buffer_bytes: Bytes | None = Field(default=None, ge=10_000)
    ecn_bytes: Bytes | None = Field(default=None, ge=1)
    pfc: bool = False
    receiver: Receiver | None = None
    """By default `selective_repeat` where `links` lose, as `soft` repeats there, else `go_back_n`."""
    congestion: Congestion | None = None
    """By default `dctcp` where `links` mark, as `soft` does there, else `fixed`."""
    window_bdp: float = Field(default=2.0, gt=0, le=1000)
    timeout_rtts: float = Field(default=100.0, ge=1, le=100_000)
    flowlet_gap_s: float = Field(default=100e-6, ge=0, le=10)
    reroute_rtts: float = Field(default=2.0, ge=1, le=100_000)
    hold_s: float = Field(default=200e-6, ge=0, le=10)

    @model_validator(mode="after")
    def _marks_are_heeded(self) -> "PacketSettings":
        if self.congestion == "dctcp" and self.ecn_bytes is None:
            raise Conflict("dctcp needs switches that mark; give ecn_bytes, too", "congestion")
        return self
