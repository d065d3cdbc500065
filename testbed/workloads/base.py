# SPDX-License-Identifier: Apache-2.0
"""Base classes of workloads: which rank sends which elements to which rank at which step, and the expected data.

A workload does not depend on sockets or time. `testbed.run.collective_executor` runs its transfers over connections,
tests run them in plain memory, and `testbed.allocation.demands` derives from them the shortest time that a fabric
could need.

Semantics of a schedule: at every step, first all sources read their elements, then all targets store or add them. So a
transfer of step s sees the results of all steps before s, and none of step s itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from testbed.conflict import Conflict
from testbed.quantities import Bytes

Elements = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Transfer:
    """At `step`, `count` elements go from `source` in rank `src`'s input to `target` in rank `dst`'s output.

    `part` numbers the slices of one step's piece from 0. With `combine`, the target adds the received elements to its
    own. Otherwise it stores them.
    """

    step: int
    part: int
    src: int
    dst: int
    source: int
    target: int
    count: int
    combine: bool = False


@dataclass(frozen=True, eq=False)
class Order:
    """Which messages of a schedule wait for which, where that does not follow from data and phases.

    Messages are the transfers, by their place in the schedule, and after them pauses, which are delivered `pauses_s`
    seconds after all that they wait for. `waits` has a row (earlier message, later message) for each wait.
    """

    waits: NDArray[np.int64]
    pauses_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Talk:
    """A part of a job that begins and ends communication by itself. Messages are numbered as in `Order`."""

    begin: int | None
    """The message with whose delivery it begins; None: it begins at the start."""
    end: int
    """The message with whose delivery it ends."""
    transfers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Buffers:
    """A rank's memory: it sends from `input` and receives into `output`. In-place workloads use one array for both."""

    input: Elements
    output: Elements


class Workload(BaseModel, ABC):
    """The `workload:` section of a spec and its behaviour. Every kind of workload is a subclass.

    `bytes` is the size of each rank's input. `slices` is the number of parts of each step's piece: a rank forwards a
    part while it still receives the next one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    LACKING: ClassVar[frozenset[str]] = frozenset()
    """Fabrics on which it does not run."""
    ONE_NIC: ClassVar[bool] = False
    """A rank is a program whose connections all use one NIC."""
    SAME_NIC: ClassVar[bool] = False
    """Two ranks send to each other by the same NIC of each, also over circuits."""
    SOCKETS: ClassVar[bool] = False
    """It can run over the program's own sockets (`transport: socket`)."""
    RELAYED: ClassVar[bool] = True
    """It runs over circuits, where hosts relay."""
    RANK: ClassVar[str | None] = None
    """What a rank is on fabrics with real packets: a name of `testbed.run.agent`. None: it runs on models only."""
    TRAINS: ClassVar[bool] = False
    """Its ranks train a model, and report the loss of each step."""
    RIGHT: ClassVar[str] = "all verified"
    """What tables say of received bytes when nothing was wrong."""
    STRANDED: ClassVar[str] = ""
    """What to change in the spec if cut links leave ranks without a path; empty where nothing helps."""
    JOBS_KEY: ClassVar[str] = "kind"
    """The key of the spec that says the jobs, where the workload has `job_sizes`."""
    FROM_FILES: ClassVar[frozenset[str]] = frozenset()
    """Keys for the contents of files, which people need not see."""

    kind: str
    bytes: Bytes = Field(gt=0)
    slices: int = Field(default=4, ge=1, le=1024)
    dtype: Literal["int64", "float32"] = "int64"

    @model_validator(mode="after")
    def _whole_elements(self) -> "Workload":
        if self.bytes % self.item_bytes:
            raise Conflict(f"{self.bytes} bytes are not a whole number of {self.dtype} elements", "bytes")
        return self

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def elements(self) -> int:
        """Elements in one rank's input."""
        return self.bytes // self.item_bytes

    @property
    def sends_in_flight(self) -> int | None:
        """Largest number of concurrent sends of a rank; None if only data dependencies limit it."""
        return None

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict when the workload is not possible with `ranks` ranks."""
        if self.elements < ranks:
            raise Conflict(f"{self.bytes} bytes are less than one element for each of {ranks} ranks", "bytes")

    def check_real(self) -> None:
        """Raises Conflict when ranks that are processes cannot run the workload. Simulated fabrics do without."""

    def check_installed(self) -> None:
        """Raises InputError, which says how to mend it, where this machine lacks a program that real ranks need."""

    def read(self, folder: Path, ranks: int, rate_bps: float) -> "Workload":
        """The workload with the files that it names, for jobs of that many ranks, on hosts with NICs of that rate.

        Relative names start at `folder`.

        Raises Conflict for a file that is missing or wrong.
        """
        return self

    @property
    def processes(self) -> "Sequence[tuple[int, Workload]]":
        """The programs that a rank runs, each with one connection to a peer and a NIC of its own: the stride of the
        ring of each, and its part of the workload. None where ranks are processes of the testbed."""
        return ()

    @property
    def rings(self) -> list[int] | None:
        """The strides of the rings among which an all-reduce is shared out, sorted; None for other workloads."""
        return None

    @abstractmethod
    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Every transfer of the run, steps ascending."""

    def phase_starts(self, ranks: int) -> tuple[int, ...]:
        """Steps that a rank starts only after it has completed its part of all earlier steps.

        There are none by default: every transfer starts as soon as its data are available.
        """
        return ()

    def order(self, ranks: int) -> Order | None:
        """What waits for what; None, the default, where data and phases say it."""
        return None

    def order_at(self, rank: int, ranks: int) -> Order | None:
        """The order of a rank that runs by itself: waits of what it sends for what it computes, sends and receives.

        Pauses are its own only, numbered after all transfers of the schedule. None as for `order`.
        """
        return None

    def talks(self, ranks: int) -> tuple[Talk, ...]:
        """When parts of a job with an `order` communicate, for planners. Empty, the default: all do, all the time."""
        return ()

    def longest_chain_s(self, rate_bps: float, burst_bytes: int = 0) -> float:
        """Seconds of the longest chain of an `order`, with NICs of that rate and burst. No run is shorter."""
        return 0.0

    def relayed(self, ranks: int) -> dict[tuple[int, int], tuple[int, ...]]:
        """The ranks on the way by (source, destination), including both ends. Empty if no rank relays."""
        return {}

    def pauses(self, ranks: int) -> dict[int, float]:
        """Seconds that every rank computes before a step, by step. Steps are 0 or from `phase_starts`."""
        return {}

    @property
    def job_sizes(self) -> list[int] | dict[str, int] | None:
        """The number of ranks of each job, if the workload defines it; else None."""
        return None

    def by_job(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """The host of each rank, where the workload has the jobs and their ranks are not those of the placement.

        Raises Conflict for too few hosts.
        """
        return hosts

    def of_job(self, number: int) -> "Workload":
        """The workload of job `number` (from 0) among its own ranks."""
        return self

    @property
    @abstractmethod
    def in_place(self) -> bool:
        """Whether ranks send from the memory they receive into: such transfers wait for the data they forward."""


class VerifiedWorkload(Workload):
    """A workload whose data the testbed fills in before a run and compares with the expected data after it.

    A rank of a workload that is only a `Workload` is a program with data of its own.
    """

    RANK: ClassVar[str | None] = "schedule"

    def of_job(self, number: int) -> "VerifiedWorkload":
        """The workload of job `number` (from 0) among its own ranks."""
        return self

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The rank's memory before the run: by default one array, its `data`, so that it works in place."""
        data = self.data(rank, seed)
        return Buffers(data, data)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The rank's `result` after the run, computed without communication: by default the sum of all inputs."""
        return self.total(ranks, seed)[self.result(rank, ranks)]

    def result(self, rank: int, ranks: int) -> slice:
        """The part of the output that `expected` covers: by default all of it."""
        return slice(None)

    @property
    def in_place(self) -> bool:
        """Determined with the buffers of a small instance."""
        buffers = self.model_copy(update={"bytes": 4 * self.item_bytes}).buffers(0, 2, 0)
        return buffers.input is buffers.output

    def data(self, rank: int, seed: int) -> Elements:
        """The input of `rank`: the same on every host, different for every rank and seed.

        int64 values span the whole range, and sums wrap, which is exact for every order of additions. float32 values
        are whole numbers in [-1024, 1024), so sums over up to 8,192 ranks stay below 2**24 and are exact too.
        Therefore every byte of a result can be compared with the expected data.
        """
        generator = np.random.default_rng([seed, rank])
        if self.dtype == "float32":
            return generator.integers(-1024, 1024, self.elements, dtype=np.int16).astype(np.float32)
        info = np.iinfo(np.int64)
        return generator.integers(info.min, info.max, self.elements, dtype=np.int64, endpoint=True)

    def total(self, ranks: int, seed: int) -> Elements:
        """The element-wise sum of all ranks' inputs."""
        total = self.data(0, seed)
        for other in range(1, ranks):
            total += self.data(other, seed)
        return total


def cut(start: int, stop: int, parts: int) -> Iterator[tuple[int, int, int]]:
    """Cut [start, stop) into `parts` pieces whose sizes differ by at most one element.

    Yields (index, start, count) of each piece that is not empty.
    """
    length = stop - start
    for index in range(parts):
        first = start + index * length // parts
        last = start + (index + 1) * length // parts
        if last > first:
            yield index, first, last - first
