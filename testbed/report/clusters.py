# SPDX-License-Identifier: Apache-2.0
"""The plots of simulated clusters."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.cluster import CAUSES, Result
from testbed.analysis.clusters import ClusterMetrics, busy_gpus
from testbed.report.plots import PALETTE, STYLE

_DPI = 150


def write_plots(
    folder: Path, results: Mapping[str, Sequence[Result]], metrics: Mapping[str, ClusterMetrics], gpus: int
) -> list[Path]:
    """Draw every plot into a PNG file in `folder`. Returns the files."""
    with mpl.rc_context(mpl.RcParams(STYLE)):
        drawn = {
            "completion": completion(metrics),
            "distribution": distribution(results),
            "busy": busy(results, gpus),
            "failures": failures(metrics),
        }
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.png", dpi=_DPI)
    return [folder / f"{name}.png" for name in drawn]


def completion(metrics: Mapping[str, ClusterMetrics]) -> Figure:
    """Mean JCT of every strategy as a bar, made of waiting and running."""
    figure, axes = _figure()
    names = list(metrics)
    running = np.array([metrics[name].running_s.mean for name in names])
    waiting = np.array([metrics[name].waiting_s.mean for name in names])
    axes.bar(names, running, width=0.62, color=PALETTE[0], label="running")
    axes.bar(names, waiting, width=0.62, bottom=running, color=PALETTE[1], label="waiting")
    axes.set_ylabel("mean time of a job (s)")
    axes.set_title("Job completion time")
    axes.legend()
    _turn(axes)
    return figure


def distribution(results: Mapping[str, Sequence[Result]]) -> Figure:
    """The share of jobs that complete within a time."""
    figure, axes = _figure()
    for index, (name, runs) in enumerate(results.items()):
        times = sorted(one.completion_s for run in runs for one in run.outcomes if one.completion_s is not None)
        shares = np.arange(1, len(times) + 1) / max(1, len(times))
        axes.plot(times, shares, color=PALETTE[index % len(PALETTE)], ls=_dash(index), label=name)
    axes.set_xscale("log")
    axes.set_xlabel("job completion time (s)")
    axes.set_ylabel("share of jobs")
    axes.set_title("Jobs completed within a time")
    _legend_beside(axes)
    return figure


def busy(results: Mapping[str, Sequence[Result]], gpus: int) -> Figure:
    """GPUs in use over time, with the first seed."""
    figure, axes = _figure()
    for index, (name, runs) in enumerate(results.items()):
        times, counts = busy_gpus(runs[0])
        colour = PALETTE[index % len(PALETTE)]
        axes.step(times / 3600, counts, where="post", lw=0.8, color=colour, ls=_dash(index), label=name)
    axes.axhline(gpus, color=STYLE["text.color"], lw=1.0, ls=":")
    axes.set_xlabel("time (h)")
    axes.set_ylabel("GPUs in use")
    axes.set_title("GPUs in use, first seed")
    _legend_beside(axes)
    return figure


def failures(metrics: Mapping[str, ClusterMetrics]) -> Figure:
    """Failed placements per seed by cause."""
    figure, axes = _figure()
    names = list(metrics)
    below = np.zeros(len(names))
    for index, cause in enumerate(CAUSES):
        counts = np.array([metrics[name].failures.get(cause, 0.0) for name in names])
        axes.bar(names, counts, width=0.62, bottom=below, color=PALETTE[index], label=cause)
        below += counts
    axes.set_ylabel("failed placements")
    axes.set_title("Failed placements by cause")
    axes.legend()
    _turn(axes)
    return figure


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.0, 3.8))
    return figure, figure.subplots()


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _turn(axes: Axes) -> None:
    axes.tick_params(axis="x", labelrotation=20)


def _dash(index: int) -> str:
    """Beyond the palette's colours, lines are dashed."""
    return ("-", "--", ":")[index // len(PALETTE) % 3]
