# SPDX-License-Identifier: Apache-2.0
"""Results of a run, as JSON and as Markdown."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from math import ceil
from statistics import median
from typing import Any

from testbed.machine import Machine
from testbed.nccl import sizes
from testbed.nccl.collectives import Operation
from testbed.nccl.probe import Found

AUTO = "auto"
"""The algorithm or protocol is NCCL's choice."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The values of NCCL_ALGO and NCCL_PROTO, or AUTO."""

    algorithm: str = AUTO
    protocol: str = AUTO

    def __str__(self) -> str:
        return ", ".join(each for each in (self.algorithm, self.protocol) if each != AUTO)


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one operation over one transport, in seconds. Of every operation the slowest rank counts."""

    repetitions_s: tuple[float, ...]
    """The mean time of an operation in each repetition, in seconds."""
    operations_s: tuple[float, ...]
    """The time of every operation of all repetitions, in seconds."""
    wrong: int
    """Wrong elements of all ranks and repetitions, those of guards behind buffers included."""

    @property
    def seconds(self) -> float:
        """Median over repetitions, because disturbances make a few of them much slower."""
        return median(self.repetitions_s)

    def percentile_s(self, percent: float) -> float:
        """The time that `percent` percent of all operations did not exceed (nearest rank)."""
        ordered = sorted(self.operations_s)
        return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Case:
    """One operation, in place or not, over every transport."""

    setup: Setup
    operation: Operation
    in_place: bool
    timings: Mapping[str, Timing]
    """What was measured, by transport."""

    @property
    def ratios(self) -> dict[str, float]:
        """By transport but the last: its bus bandwidth / that of the last; above 1, it is faster."""
        *others, (_, last) = self.timings.items()
        return {name: last.seconds / timing.seconds for name, timing in others}


@dataclass(frozen=True, slots=True)
class Results:
    """One run, finished or not."""

    when: str
    """The time at which the run began, in UTC and ISO 8601."""
    machine: Machine
    found: Found
    ranks: int
    gpus: int
    """Number of GPUs that the ranks share; 0 on the CPU device."""
    mps: bool
    """Whether CUDA's multi-process service ran kernels of several ranks at once; otherwise they are time-sliced."""
    repetitions: int
    transports: tuple[str, ...]
    cores_per_rank: int | None
    """Cores of its own that each rank had. None: all shared all cores."""
    environment: Mapping[str, Mapping[str, str]]
    """By transport: environment variables of NCCL and the plugin on rank 0."""
    routes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By transport: connections in NCCL's logs, such as {"NET/paralet/0": 8}."""
    interfaces: Mapping[str, str] = field(default_factory=dict)
    """By transport: version of the net plugin interface that NCCL chose, such as "v12"; absent for NCCL's own."""
    banners: Mapping[str, str] = field(default_factory=dict)
    """By transport: the plugin's first log line, with its settings."""
    cases: tuple[Case, ...] = ()
    complete: bool = False

    @property
    def wrong(self) -> int:
        """The number of wrong elements in all cases."""
        return sum(timing.wrong for case in self.cases for timing in case.timings.values())


def as_json(results: Results) -> dict[str, Any]:
    """The object of `results.json` and of `--json`. Rows have the keys and units of nccl-tests (docs/nccl.md)."""
    facts = asdict(results) | {"transports": list(results.transports)}
    del facts["cases"]
    return {
        "bench": "nccl",
        **facts,
        "nwrong": results.wrong,
        "results": [
            row for _, placements in groupby(results.cases, _place_of) for row in _rows(results, list(placements))
        ],
        "ratios": [
            {
                "transport": name,
                "peer": results.transports[-1],
                **_key(case),
                "in_place": case.in_place,
                "bus_bw": ratio,
            }
            for case in results.cases
            for name, ratio in case.ratios.items()
        ],
    }


def _place_of(case: Case) -> tuple[Setup, Operation]:
    return case.setup, case.operation


def _key(case: Case) -> dict[str, Any]:
    operation = case.operation
    return {
        "collective": operation.kind.name,
        "algorithm": case.setup.algorithm,
        "protocol": case.setup.protocol,
        "size": operation.size,
        "count": operation.count,
        "type": operation.element.name,
        "redop": operation.redop,
        "root": operation.root,
    }


def _rows(results: Results, placements: list[Case]) -> Iterable[dict[str, Any]]:
    """A row per transport for the cases of one operation: out of place, and in place where it was measured."""
    for transport in results.transports:
        places = {case.in_place: _figures(case, transport) for case in placements}
        yield {
            "transport": transport,
            **_key(placements[0]),
            "out_of_place": places.get(False),
            "in_place": places.get(True),
        }


def _figures(case: Case, transport: str) -> dict[str, Any]:
    timing = case.timings[transport]
    algorithm, bus = case.operation.bandwidths(timing.seconds)
    return {
        "time": timing.seconds * 1e6,
        "alg_bw": algorithm / 1e9,
        "bus_bw": bus / 1e9,
        "nwrong": timing.wrong,
        "p50_us": timing.percentile_s(50) * 1e6,
        "p99_us": timing.percentile_s(99) * 1e6,
        "operations": len(timing.operations_s),
        "repetitions_us": [each * 1e6 for each in timing.repetitions_s],
    }


def as_markdown(results: Results) -> str:
    """Date, machine and versions of a measurement, and a table per collective."""
    date = results.when.partition("T")[0]
    lines = [f"### {date}, NCCL {results.found.nccl_version} on {_devices(results)}", "", _facts(results), ""]
    if not results.complete:
        lines += ["This run did not finish.", ""]
    for (setup, name), cases in groupby(results.cases, lambda case: (case.setup, case.operation.kind.name)):
        title = name if not str(setup) else f"{name} ({setup})"
        lines += [*_table(results, title, list(cases)), ""]
    return "\n".join(lines)


def _devices(results: Results) -> str:
    if results.found.device == "cpu":
        return "the CPU device"
    return f"{results.gpus} GPU{'s' if results.gpus > 1 else ''} ({results.found.gpus[0]})"


def _facts(results: Results) -> str:
    found, machine = results.found, results.machine
    each = results.cores_per_rank
    cores = "" if each is None else f", with {each} core{'s' if each > 1 else ''} of its own"
    if found.device == "gpu":
        turns = "running at the same time (MPS)" if results.mps else "with time-sliced kernels (no MPS)"
        runtime = f", CUDA runtime {found.cuda_runtime}, driver {machine.nvidia_driver} (CUDA {found.cuda_driver})"
    else:
        turns, runtime = "whose kernels run on the processor", ""
    host = f"{machine}"
    banners = "".join(f" {name} is {banner}." for name, banner in results.banners.items())
    interfaces = "".join(f" NCCL uses {name} by interface {version}." for name, version in results.interfaces.items())
    return (
        f"{results.ranks} ranks on {_devices(results)}, {turns}, each rank a host of its own{cores}. "
        f"NCCL {found.nccl_version}{runtime}; {host}. Medians of {results.repetitions} repetitions, each in one order "
        "of the transports and back; us are of one operation, GB/s (10^9 bytes) are bus bandwidth as nccl-tests "
        "defines it; every result was compared with the expected data: "
        f"{results.wrong:,} elements are wrong.{interfaces}{banners}"
    )


def _table(results: Results, title: str, cases: list[Case]) -> list[str]:
    varied = len({(case.operation.element.name, case.operation.redop, case.in_place) for case in cases}) > 1
    heads = [title, *(["of", "place"] if varied else [])]
    for each in results.transports:
        heads += [f"{each} us", "p99 us", "GB/s", "wrong"]
    *others, last = results.transports
    heads += [f"{name} / {last}" for name in others]
    rows = []
    for case in cases:
        cells = [sizes.text(case.operation.size)]
        if varied:
            cells += [f"{case.operation.element.name} {case.operation.redop}", "in" if case.in_place else "out"]
        for name in results.transports:
            figures = _figures(case, name)
            cells += [f"{figures['time']:,.1f}", f"{figures['p99_us']:,.1f}", f"{figures['bus_bw']:.4g}"]
            cells.append(f"{figures['nwrong']:,}")
        cells += [f"{ratio:.2f}" for ratio in case.ratios.values()]
        rows.append(cells)
    left = 3 if varied else 1
    return [_row(heads), _row(["---"] * left + ["---:"] * (len(heads) - left)), *map(_row, rows)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
