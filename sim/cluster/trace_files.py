# SPDX-License-Identifier: Apache-2.0
"""Reads traces of real clusters. They have sizes, arrivals and durations; collectives are drawn as in `trace`.

| format | file |
|---|---|
| `helios` | `cluster_log.csv` of the Helios clusters, and the job traces of Acme, whose columns have the same names |
| `philly` | `cluster_job_log` of the Philly cluster, JSON; a job runs from its first start to its last end |
| `sacct` | Slurm: `sacct --allocations --parsable2 --format=JobID,Submit,ElapsedRaw,AllocTRES` |
| `alibaba_2020` | `pai_task_table.csv` of Alibaba's GPU trace of 2020, whose columns are in a file of their own |
| `alibaba_2023` | `openb_pod_list_*.csv` of Alibaba's GPU trace of 2023 |

Jobs without GPUs, and jobs that never ran, are left out. A job on a part of a GPU takes a whole one, since that is
what jobs take in the simulation.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from sim.cluster.jobs import Job, Pattern
from sim.cluster.trace import collectives

TraceFormat = Literal["alibaba_2020", "alibaba_2023", "helios", "philly", "sacct"]

TRACE_FORMATS: tuple[TraceFormat, ...] = get_args(TraceFormat)

_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]+)?=(\d+)")
"""Entries of AllocTRES: gres/gpu=8 is the total, and gres/gpu:a100=8 the part of one type.

A site that tracks types only (AccountingStorageTRES in slurm.conf) has no total."""


_LARGEST_FILE = 256 << 20
"""Bytes of the largest table that is read. The values of a row take about as much memory as its text."""
_LARGEST_JSON = 64 << 20
"""Bytes of the largest JSON file that is read: its values can take thirty times the memory of their text."""


_TASKS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
"""Columns of `pai_task_table.csv`, as `pai_task_table.header` names them."""


class TraceError(ValueError):
    """A trace cannot be read; the text is one sentence with the file and the line or entry."""


class _Row(NamedTuple):
    name: str
    submitted: datetime
    gpus: int
    run_s: float


def read_trace(
    path: Path,
    trace_format: TraceFormat,
    *,
    seed: int = 1,
    pattern: Pattern | None = None,
    communication: float | None = None,
    most: int | None = None,
    deadline_factor: float = 2.0,
) -> list[Job]:
    """The first `most` jobs of a file, in the order of arrival; the first arrives at 0.

    `pattern`, `communication` and `deadline_factor` are those of `trace.TraceShape`. Raises TraceError for a file that
    is not of the format, or has no job, and OSError for one that cannot be read.
    """
    readers: dict[TraceFormat, Callable[[Path], Iterator[_Row]]] = {
        "alibaba_2020": _alibaba_2020,
        "alibaba_2023": _alibaba_2023,
        "helios": _helios,
        "philly": _philly,
        "sacct": _sacct,
    }
    rows = sorted((row for row in readers[trace_format](path) if row.gpus > 0 and row.run_s > 0), key=_submitted)
    if not rows:
        raise TraceError(f"{path}: no job in it had GPUs and ran; give a trace of format {trace_format}")
    drawn = collectives(np.random.default_rng(seed), [row.gpus for row in rows], pattern, communication)
    jobs = []
    for row, (share, own) in list(zip(rows, drawn, strict=True))[:most]:
        arrival_s = (row.submitted - rows[0].submitted).total_seconds()
        deadline_s = arrival_s + deadline_factor * row.run_s
        jobs.append(Job(row.name, arrival_s, row.gpus, row.run_s, share, own, deadline_s))
    return jobs


def _submitted(row: _Row) -> datetime:
    return row.submitted


def _helios(path: Path) -> Iterator[_Row]:
    for where, row in _table(path, ",", ("job_id", "gpu_num", "submit_time", "duration")):
        gpus, run_s = (_number(where, row, key) for key in ("gpu_num", "duration"))
        if gpus and run_s:
            yield _Row(row["job_id"], _time(where, row, "submit_time"), ceil(gpus), run_s)


def _sacct(path: Path) -> Iterator[_Row]:
    for where, row in _table(path, "|", ("JobID", "Submit", "ElapsedRaw", "AllocTRES")):
        counts = _GPUS.findall(row["AllocTRES"])
        if counts and "." not in row["JobID"]:  # steps of a job have names such as 7.batch
            totals = [int(count) for of_type, count in counts if not of_type]
            gpus = totals[0] if totals else sum(int(count) for _, count in counts)
            elapsed_s = _number(where, row, "ElapsedRaw")
            yield _Row(row["JobID"], _time(where, row, "Submit"), gpus, elapsed_s)


def _alibaba_2020(path: Path) -> Iterator[_Row]:
    """A job is the tasks of one name, from the first start to the last end; its GPUs are those of all instances."""
    of_job: dict[str, list[tuple[datetime, datetime, int]]] = {}
    for where, row in _table(path, ",", _TASKS, named=False):
        begin, end = (_seconds(where, row, key) for key in ("start_time", "end_time"))
        instances, percent = (_number(where, row, key) for key in ("inst_num", "plan_gpu"))
        if row["start_time"] and end > begin and percent:  # no end: it has not ended
            of_job.setdefault(row["job_name"], []).append((begin, end, ceil(instances) * ceil(percent / 100)))
    for name, tasks in of_job.items():
        begin, end = min(task[0] for task in tasks), max(task[1] for task in tasks)
        yield _Row(name, begin, sum(task[2] for task in tasks), (end - begin).total_seconds())


def _alibaba_2023(path: Path) -> Iterator[_Row]:
    columns = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")
    for where, row in _table(path, ",", columns):
        created, deleted, scheduled = (_seconds(where, row, key) for key in columns[2:])
        gpus = ceil(_number(where, row, "num_gpu"))
        if row["scheduled_time"]:  # empty for a pod that never ran
            yield _Row(row["name"], created, gpus, (deleted - scheduled).total_seconds())


def _philly(path: Path) -> Iterator[_Row]:
    try:
        entries = json.loads(_content(path, _LARGEST_JSON))
    except ValueError as error:
        raise TraceError(f"{path}: is not a JSON file: {error}") from error
    if not isinstance(entries, list):
        raise TraceError(f"{path}: is not a list of jobs; give Philly's cluster_job_log")
    for number, job in enumerate(entries):
        where = f"{path}: entry {number}"
        try:
            attempts = [
                attempt
                for attempt in job["attempts"]
                if attempt["detail"] and not {attempt["start_time"], attempt["end_time"]} & {None, "", "None"}
            ]
            if not attempts:
                continue
            gpus = max(sum(len(machine["gpus"]) for machine in attempt["detail"]) for attempt in attempts)
            name, last = str(job["jobid"]), attempts[-1]
        except (KeyError, TypeError) as error:
            raise TraceError(f"{where}: has no jobid, submitted_time or attempts as Philly's jobs do") from error
        begin, end = _time(where, attempts[0], "start_time"), _time(where, last, "end_time")
        yield _Row(name, _time(where, job, "submitted_time"), gpus, (end - begin).total_seconds())


def _content(path: Path, most: int) -> bytes:
    """The bytes of a file, at most `most`: it may have no end."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TraceError(f"{path}: is larger than {most >> 20} MiB; give a part of the trace")
    return content


def _table(
    path: Path, delimiter: str, columns: tuple[str, ...], *, named: bool = True
) -> Iterator[tuple[str, dict[str, str]]]:
    """Every row with its place, as "FILE:LINE". Not `named`: the file has these columns and no line that names them."""
    with io.TextIOWrapper(io.BytesIO(_content(path, _LARGEST_FILE)), encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, None if named else columns, delimiter=delimiter)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(f"{path}:1: has no column {missing[0]}; the format needs {', '.join(columns)}")
        try:
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if any(row[column] is None for column in columns):
                    raise TraceError(f"{where}: has fewer fields than {'the first line' if named else len(columns)}")
                yield where, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise TraceError(f"{path}:{reader.line_num + 1}: is not a line of a text table: {error}") from error


def _number(where: str, row: Mapping[str, str], key: str) -> float:
    """0 for an empty field."""
    try:
        value = float(row[key] or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise TraceError(f"{where}: {key} must be a number, 0 or more, not {row[key]!r}")
    return value


def _seconds(where: str, row: Mapping[str, str], key: str) -> datetime:
    """A time that a trace gives in seconds from some moment."""
    try:
        return datetime.fromtimestamp(_number(where, row, key), UTC)
    except (ValueError, OverflowError, OSError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{where}: {key} must be a time in seconds, not {row[key]!r}") from error


def _time(where: str, row: Mapping[str, Any], key: str) -> datetime:
    """UTC where the trace names no time zone."""
    try:
        time = datetime.fromisoformat(str(row.get(key)))
    except ValueError as error:
        raise TraceError(f"{where}: {key} must be a date and time, not {row.get(key)!r}") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
