# SPDX-License-Identifier: Apache-2.0
"""Results of a run, as JSON and as Markdown for docs/nccl.md.

A run against the tests' stub measures no GPU. Whatever is written here says so then: the JSON in `dry_run`, the
Markdown in its heading and at the head of every table.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from testbed.nccl import sizes
from testbed.nccl.collectives import COLLECTIVES
from testbed.nccl.machine import Machine
from testbed.nccl.probe import Found

DRY_RUN = "dry run against a stub"
"""Marks everything that was not measured on a GPU."""


@dataclass(frozen=True, slots=True)
class Case:
    """One collective at one size."""

    collective: str
    bytes: int
    """The larger of a rank's two buffers, as in nccl-tests."""
    iterations: int
    """Operations per repetition; a repetition's time is their mean."""
    seconds: Mapping[str, tuple[float, ...]]
    """By transport: one operation, of the slowest rank; one number per repetition."""

    def median_s(self, transport: str) -> float:
        """Median over repetitions, because disturbances make a few of them much slower."""
        return median(self.seconds[transport])

    def bus_gb_per_s(self, transport: str, ranks: int) -> float:
        """Bus bandwidth in 10**9 bytes per second."""
        kind = COLLECTIVES[self.collective]
        return kind.bus_bytes_per_s(ranks, self.bytes, self.median_s(transport)) / 1e9


@dataclass(frozen=True, slots=True)
class Results:
    """One run, finished or not."""

    when: str
    """UTC, ISO 8601."""
    machine: Machine
    found: Found
    ranks: int
    gpus: int
    """Number of GPUs that the ranks share."""
    mps: bool
    """Whether CUDA's multi-process service ran kernels of several ranks at once; otherwise they are time-sliced."""
    repetitions: int
    transports: tuple[str, ...]
    environment: Mapping[str, Mapping[str, str]]
    """By transport: environment variables of NCCL and the plugin on rank 0."""
    routes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By transport: connections in NCCL's logs, such as {"NET/paralet/0": 8}."""
    banners: Mapping[str, str] = field(default_factory=dict)
    """By transport: the plugin's first log line, with its settings."""
    cases: tuple[Case, ...] = ()
    complete: bool = False

    def ratio(self, case: Case) -> float | None:
        """Bus bandwidth of the first transport / that of the second; above 1, the first is faster."""
        if len(self.transports) != 2:
            return None
        ours, peer = self.transports
        return case.median_s(peer) / case.median_s(ours)


def as_json(results: Results) -> dict[str, Any]:
    """The object of `results.json` and of `--json`."""
    rows = [
        {
            "collective": case.collective,
            "bytes": case.bytes,
            "iterations": case.iterations,
            "transports": {
                name: {
                    "median_s": case.median_s(name),
                    "bus_gb_per_s": case.bus_gb_per_s(name, results.ranks),
                    "seconds": list(case.seconds[name]),
                }
                for name in results.transports
            },
            "ratio": results.ratio(case),
        }
        for case in results.cases
    ]
    note = f"{DRY_RUN}: these are no figures of a GPU" if results.found.is_stub else None
    facts = asdict(results) | {"transports": list(results.transports)}
    del facts["cases"]
    # Every result was compared with the expected data: a wrong byte ends a run before results are written.
    return {"bench": "nccl", "dry_run": note, **facts, "results_verified": bool(rows), "rows": rows}


def as_markdown(results: Results) -> str:
    """A section for docs/nccl.md: what was measured where and when, and a table per collective."""
    date = results.when.partition("T")[0]
    gpu = results.found.gpus[0]
    stub = results.found.is_stub
    title = f"### {date}, {DRY_RUN}: no figures of a GPU" if stub else f"### {date}, {gpu}"
    lines = [title, "", _facts(results), ""]
    if not results.complete:
        lines += ["This run did not finish.", ""]
    for name in COLLECTIVES:
        cases = [case for case in results.cases if case.collective == name]
        if cases:
            lines += [*_table(results, name, cases), ""]
    return "\n".join(lines)


def _facts(results: Results) -> str:
    found, machine = results.found, results.machine
    where = f"{results.ranks} ranks on {results.gpus} GPU{'s' if results.gpus > 1 else ''}"
    turns = "running at the same time (MPS)" if results.mps else "with time-sliced kernels (no MPS)"
    host = f"{machine.processor}, {machine.cores} cores, {machine.kernel}"
    banners = "".join(f" {name} is {banner}." for name, banner in results.banners.items())
    return (
        f"{where} ({found.gpus[0]}), {turns}, each rank a host of its own. NCCL {found.nccl_version}, CUDA runtime "
        f"{found.cuda_runtime}, driver {machine.nvidia_driver} (CUDA {found.cuda_driver}); {host}. Medians of "
        f"{results.repetitions} repetitions, transports alternate; times are of one operation, GB/s are bus bandwidth "
        f"as nccl-tests defines it; every result was compared with the expected data.{banners}"
    )


def _table(results: Results, name: str, cases: list[Case]) -> list[str]:
    mark = f" ({DRY_RUN})" if results.found.is_stub else ""
    heads = [f"{name}{mark}", *(f"{each} us" for each in results.transports)]
    heads += [f"{each} GB/s" for each in results.transports]
    compared = len(results.transports) == 2
    if compared:
        heads.append(f"{results.transports[0]} / {results.transports[1]}")
    rows = []
    for case in cases:
        cells = [sizes.text(case.bytes)]
        cells += [f"{case.median_s(each) * 1e6:,.1f}" for each in results.transports]
        cells += [f"{case.bus_gb_per_s(each, results.ranks):.4g}" for each in results.transports]
        if compared:
            cells.append(f"{results.ratio(case):.2f}")
        rows.append(cells)
    return [_row(heads), _row(["---"] + ["---:"] * (len(heads) - 1)), *map(_row, rows)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
