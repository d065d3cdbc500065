# SPDX-License-Identifier: Apache-2.0
"""What a workload is: who sends which elements to whom at which step, as data, and what must come out of it.

A workload says nothing about sockets or time. `testbed.run.collective_executor` runs its transfers over connections,
tests run them in plain memory, and `testbed.plan.demands` derives from them the shortest time that a fabric could need.

Semantics of a schedule: at every step all sources read their elements, then all targets take them in. So a transfer of
step s sees what the transfers of the steps before s left behind, and nothing of step s itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from testbed.misfit import Misfit

Elements = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Transfer:
    """`count` elements travel from `source` in rank `src`'s input to `target` in rank `dst`'s output at `step`.

    `part` numbers the slices of one step's piece from 0. With `combine` the target adds what arrives to what it holds,
    otherwise it stores it.
    """

    step: int
    part: int
    src: int
    dst: int
    source: int
    target: int
    count: int
    combine: bool = False


@dataclass(frozen=True, slots=True)
class Buffers:
    """A rank's memory: it sends from `input`, things arrive in `output`. In-place workloads have one array for both."""

    input: Elements
    output: Elements


class Workload(BaseModel, ABC):
    """The `workload:` section of a spec and its behaviour in one object; every kind is a subclass of its own.

    `bytes` is the size of each rank's input. `slices` is into how many parts each step's piece is cut, so that a part
    travels on while the next one is still arriving.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: str
    bytes: int = Field(gt=0)
    slices: int = Field(default=4, ge=1, le=1024)
    dtype: Literal["int64", "float32"] = "int64"

    @model_validator(mode="after")
    def _whole_elements(self) -> "Workload":
        if self.bytes % self.item_bytes:
            raise Misfit(f"{self.bytes} bytes are not a whole number of {self.dtype} elements", "bytes")
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
        """How many of a rank's sends may be under way at once; None where the data's own dependencies are the limit."""
        return None

    def check_ranks(self, ranks: int) -> None:
        """Raises Misfit when the workload makes no sense among `ranks` ranks."""
        if self.elements < ranks:
            raise Misfit(f"{self.bytes} bytes are less than one element for each of {ranks} ranks", "bytes")

    @abstractmethod
    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Every transfer of the run, steps ascending."""

    @abstractmethod
    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The rank's memory before the run."""

    @abstractmethod
    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The rank's `result` after the run, computed without communication."""

    def result(self, rank: int, ranks: int) -> slice:
        """The part of the output that `expected` is about: all of it, unless a kind says otherwise."""
        return slice(None)

    def phase_starts(self, ranks: int) -> tuple[int, ...]:
        """Steps at which a rank begins only when it has done its part of all steps before. There are none by default:
        every transfer starts as soon as the data that it needs are there."""
        return ()

    def relayed(self, ranks: int) -> dict[tuple[int, int], tuple[int, ...]]:
        """By source and destination: the ranks on the way, both ends too. Empty where nobody relays."""
        return {}

    def pauses(self, ranks: int) -> dict[int, float]:
        """Seconds that every rank computes before it begins with a step, which is 0 or one of `phase_starts`."""
        return {}

    @property
    def job_sizes(self) -> list[int] | None:
        """How many ranks each job has, where the workload says so itself."""
        return None

    def of_job(self, number: int) -> "Workload":
        """What the job of that number, from 0, does among its own ranks."""
        return self

    @property
    def in_place(self) -> bool:
        """Whether ranks send from where things arrive. Found out with two ranks that have two elements each."""
        buffers = self.model_copy(update={"bytes": 4 * self.item_bytes}).buffers(0, 2, 0)
        return buffers.input is buffers.output

    def data(self, rank: int, seed: int) -> Elements:
        """The input that `rank` contributes: the same on every host that asks, different for every rank and seed.

        int64 values span the whole range, and sums wrap, which is exact whatever the order of additions. float32
        values are whole numbers in [-1024, 1024): sums over up to 8,192 ranks stay below 2**24 and so are exact too.
        That is what allows every byte of a result to be compared with the expected data.
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
    """Cut [start, stop) into `parts` pieces that differ by at most one element: (index, start, count), none empty."""
    length = stop - start
    for index in range(parts):
        first = start + index * length // parts
        last = start + (index + 1) * length // parts
        if last > first:
            yield index, first, last - first
