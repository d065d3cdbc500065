# SPDX-License-Identifier: Apache-2.0
"""Traces of others as a workload: the task graph that a file describes."""

from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from testbed.conflict import Conflict
from testbed.quantities import Bytes
from testbed.traces.formats import Format, pack, read_trace, unpack
from testbed.training.tasks import TaskGraph
from testbed.workloads.task_graph import ITEM_BYTES, TaskGraphWorkload, largest_bytes


class Trace(TaskGraphWorkload):
    """`kind: trace`. `file` is in `format`, or a folder of such files; a relative name starts at the spec's folder.

    `iterations` and `first` are for `floodns`. `read` puts the contents of the file in `packed`, the size of the
    largest message in `bytes`, and the rate of the spec's NICs, in bits per second, in `for_nic_bps`.
    """

    SUBJECT: ClassVar[str] = "the trace"
    KEY: ClassVar[str] = "file"
    FROM_FILES: ClassVar[frozenset[str]] = frozenset({"packed", "bytes", "for_nic_bps"})

    kind: Literal["trace"] = "trace"
    format: Format
    file: str
    iterations: int = Field(default=1, ge=1, le=1000)
    first: int | None = Field(default=None, ge=0)
    packed: str | None = None
    bytes: Bytes = Field(default=ITEM_BYTES, gt=0)
    for_nic_bps: float = Field(default=100e9, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _options_of_its_format(self) -> "Trace":
        for key, default in (("iterations", 1), ("first", None)):
            if self.format != "floodns" and getattr(self, key) != default:
                raise Conflict("is for format floodns only; leave it out", key)
        if self.packed is None and "bytes" in self.model_fields_set:
            raise Conflict("the trace has the sizes; leave it out", "bytes")
        if self.packed is None and "for_nic_bps" in self.model_fields_set:
            raise Conflict("the topology has the rate; leave it out", "for_nic_bps")
        if self.packed is not None:
            try:
                _ = self.graph
            except ValueError as error:
                raise Conflict(str(error), "packed") from None
        return self

    def read(self, folder: Path, ranks: int, rate_bps: float) -> "Trace":
        """This workload with the contents of its file, unless it has them. Raises Conflict."""
        if self.packed is not None:
            return self
        try:
            return self.holding(
                read_trace(self.format, folder / self.file, ranks, iterations=self.iterations, first=self.first)
            ).model_copy(update={"for_nic_bps": rate_bps})
        except ValueError as error:
            raise Conflict(str(error), "file") from error

    def holding(self, graph: TaskGraph) -> "Trace":
        """This workload with the contents of its file."""
        return self.model_copy(update={"packed": pack(graph), "bytes": largest_bytes(graph)})

    @property
    def nic_bps(self) -> float:
        """The rate of the NICs for which the order of computing is chosen, in bits per second."""
        return self.for_nic_bps

    @cached_property
    def graph(self) -> TaskGraph:
        """The trace as a task graph. Raises ValueError if `packed` is none."""
        return unpack(self.packed or "")

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict for fewer ranks than the trace has devices. Further ranks do nothing."""
        if self.packed is None:
            raise Conflict("its file is not read; testbed.spec.load reads it", "file")
        if ranks < self.graph.devices:
            raise Conflict(f"the trace has {self.graph.devices} devices, and the job has {ranks} ranks", "file")
        if not self._lowered.transfers:
            raise Conflict("the trace sends nothing", "file")
