# SPDX-License-Identifier: Apache-2.0
"""Traces of others as a workload: the task graph that a file describes."""

from dataclasses import replace
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

    `iterations` is for `floodns`, and `first` also for `hpcc`. `read` puts the contents of the file in `packed`, the
    size of the largest message in `bytes`, and the rate of the spec's NICs, in bits per second, in `for_nic_bps`. If
    the file has several jobs that share no device, their devices are in `jobs`, and ranks are numbered job after job;
    else ranks are the devices.
    """

    SUBJECT: ClassVar[str] = "the trace"
    KEY: ClassVar[str] = "file"
    JOBS_KEY: ClassVar[str] = "file"
    FROM_FILES: ClassVar[frozenset[str]] = frozenset({"packed", "bytes", "for_nic_bps", "jobs"})

    kind: Literal["trace"] = "trace"
    format: Format
    file: str
    iterations: int = Field(default=1, ge=1, le=1000)
    first: int | None = Field(default=None, ge=0)
    packed: str | None = None
    bytes: Bytes = Field(default=ITEM_BYTES, gt=0)
    for_nic_bps: float = Field(default=100e9, gt=0, allow_inf_nan=False)
    jobs: dict[str, list[int]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _options_of_its_format(self) -> "Trace":
        if self.format != "floodns" and self.iterations != 1:
            raise Conflict("is for format floodns only; leave it out", "iterations")
        if self.format not in ("floodns", "hpcc") and self.first is not None:
            raise Conflict("is for formats floodns and hpcc only; leave it out", "first")
        if self.packed is None and "bytes" in self.model_fields_set:
            raise Conflict("the trace has the sizes; leave it out", "bytes")
        if self.packed is None and "for_nic_bps" in self.model_fields_set:
            raise Conflict("the topology has the rate; leave it out", "for_nic_bps")
        if self.packed is None and self.jobs:
            raise Conflict("the trace has the jobs; leave it out", "jobs")
        if self.packed is not None:
            try:
                _ = self._parts
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
        found: dict[str, object] = {"packed": pack(graph), "bytes": largest_bytes(graph)}
        return self.model_copy(update=found | ({"jobs": graph.jobs} if graph.jobs else {}))

    @property
    def nic_bps(self) -> float:
        """The rate of the NICs for which the order of computing is chosen, in bits per second."""
        return self.for_nic_bps

    @cached_property
    def graph(self) -> TaskGraph:
        """The trace as a task graph. Raises ValueError if `packed` is none."""
        return replace(unpack(self.packed or ""), jobs=self.jobs)

    @cached_property
    def _parts(self) -> "list[Trace]":
        """The trace of each job. Raises ValueError if `packed` is no trace with these `jobs`."""
        graph = self.graph
        try:
            parts = [graph.of_job(name) for name in graph.jobs]
        except (KeyError, IndexError):
            raise ValueError("is not a packed trace with these jobs; give format and file") from None
        own = self.model_dump(exclude={"jobs"})
        return [Trace.model_validate(own | {"packed": pack(part)}) for part in parts]

    @property
    def job_sizes(self) -> dict[str, int] | None:
        """The devices of each job, if there are several."""
        return {name: len(members) for name, members in self.jobs.items()} or None

    def of_job(self, number: int) -> "Trace":
        """The trace of one job."""
        return self._parts[number] if self.jobs else self

    def by_job(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """The hosts of the devices of each job, device d being on `hosts[d]`."""
        devices = [device for members in self.jobs.values() for device in members]
        if devices and max(devices) >= len(hosts):
            raise Conflict(f"the trace has {self.graph.devices} devices, and the job has {len(hosts)} ranks", "file")
        return tuple(hosts[device] for device in devices) or hosts

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict for fewer ranks than the trace has devices. Further ranks do nothing."""
        if self.packed is None:
            raise Conflict("its file is not read; testbed.spec.load reads it", "file")
        if ranks < self.graph.devices:
            raise Conflict(f"the trace has {self.graph.devices} devices, and the job has {ranks} ranks", "file")
        if not self._lowered.transfers:
            raise Conflict("the trace sends nothing", "file")
