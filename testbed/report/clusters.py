# SPDX-License-Identifier: Apache-2.0
"""The page of `paralet cluster`, and its plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from sim.cluster import CAUSES, Result
from testbed.analysis.clusters import ClusterMetrics, busy_gpus, runs_of, worst_flows
from testbed.report.html import save_and_embed
from testbed.report.plots import PALETTE, STYLE
from testbed.report.scales import digits, of_times
from testbed.report.sheet import Part, Table, write_sheet

_BINS = 240
"""Columns of the heat map."""
_LONGEST_STRETCH = 2.0
"""The ratio of JRT to the ideal from which on bars have the last colour."""


_PARTS = {
    "completion": ("How long did jobs take?", "Mean completion time of jobs under every strategy: waiting and running"),
    "distribution": ("How many jobs completed within a time?", "The share of jobs completed within a time"),
    "busy": ("How many GPUs worked?", "GPUs in use over time under every strategy"),
    "failures": ("Why could jobs not start?", "Failed placements by cause under every strategy"),
    "worst_link": ("Where did flows meet?", "Flows on the busiest link over time under every strategy"),
    "jobs": ("When did each job run?", "Waiting and running of each job on several leaves, under every strategy"),
}
"""The headings of the page's parts, and their plots in words."""


def write(
    folder: Path,
    name: str,
    lead: str,
    results: Mapping[str, Sequence[Result]],
    metrics: Mapping[str, ClusterMetrics],
    gpus: int,
) -> Path:
    """Write `report.html` and its plots as PNG files into `folder`. Returns the page.

    It has no part about failed placements, links or single jobs where there is nothing to show.
    """
    with mpl.rc_context(mpl.RcParams(STYLE)):
        drawn = {
            "completion": completion(metrics),
            "distribution": distribution(results),
            "busy": busy(results, gpus),
            "failures": failures(metrics),
            "worst_link": worst_link(results),
            "jobs": gantt(results),
        }
        pictures = {}
        for plot, figure in drawn.items():
            (folder / f"{plot}.png").unlink(missing_ok=True)  # of an earlier run, which may have had something to show
            if figure is not None:
                pictures[plot] = save_and_embed(figure, folder / f"{plot}.png", _PARTS[plot][1])
    tables = {"completion": _times(metrics), "failures": _causes(metrics)}
    parts = [Part(_PARTS[plot][0], table=tables.get(plot), picture=picture) for plot, picture in pictures.items()]
    return write_sheet(folder / "report.html", name, lead, parts)


def _times(metrics: Mapping[str, ClusterMetrics]) -> Table:
    kinds = [(one.completion_s, one.waiting_s, one.running_s) for one in metrics.values()]
    scale = of_times(times.mean for three in kinds for times in three)
    headings = ["strategy"]
    headings += [f"{what}, {part} ({scale.unit})" for what in ("JCT", "JWT", "JRT") for part in ("mean", "p99")]
    rows = [
        [
            name,
            *(digits(scale.of(value)) for times in three for value in (times.mean, times.p99)),
            f"{metrics[name].stretch:.3f}",
            f"{metrics[name].utilisation:.0%}",
        ]
        for name, three in zip(metrics, kinds, strict=True)
    ]
    return Table([*headings, "JRT / ideal", "GPUs in use"], rows)


def _causes(metrics: Mapping[str, ClusterMetrics]) -> Table:
    rows = [[name, *(digits(one.failures.get(cause, 0.0), 1) for cause in CAUSES)] for name, one in metrics.items()]
    return Table(["failed placements per seed", *CAUSES], rows)


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
    _legend_beside(axes)
    _turn(axes)
    return figure


def distribution(results: Mapping[str, Sequence[Result]]) -> Figure:
    """The share of jobs that complete within a time."""
    figure, axes = _figure()
    for index, (name, runs) in enumerate(results.items()):
        times = sorted(
            outcome.completion_s for run in runs for outcome in run.outcomes if outcome.completion_s is not None
        )
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


def failures(metrics: Mapping[str, ClusterMetrics]) -> Figure | None:
    """Failed placements per seed by cause; None if there are none."""
    if not any(count for one in metrics.values() for count in one.failures.values()):
        return None
    figure, axes = _figure()
    names = list(metrics)
    below = np.zeros(len(names))
    for index, cause in enumerate(CAUSES):
        counts = np.array([metrics[name].failures.get(cause, 0.0) for name in names])
        axes.bar(names, counts, width=0.62, bottom=below, color=PALETTE[index], label=cause)
        below += counts
    axes.set_ylabel("failed placements")
    axes.set_title("Failed placements by cause")
    _legend_beside(axes)
    _turn(axes)
    return figure


def worst_link(results: Mapping[str, Sequence[Result]]) -> Figure | None:
    """A heat map: the flows on the busiest link by strategy and time, as a mean over the jobs' time, first seed.

    None if there were no flows between switches.
    """
    end_s = max(runs[0].end_s for runs in results.values()) or 1.0
    ends_s = np.linspace(0.0, end_s, _BINS + 1)
    rows = np.array([worst_flows(runs[0], ends_s) for runs in results.values()])
    if not rows.any():
        return None
    figure = Figure(figsize=(8.0, 1.4 + 0.3 * len(results)))
    axes = figure.subplots()
    shown = axes.imshow(rows, aspect="auto", cmap="viridis", extent=(0, end_s / 3600, len(rows) - 0.5, -0.5), vmin=0.0)
    axes.set_yticks(range(len(rows)), list(results))
    axes.set_xlabel("time (h)")
    axes.set_title("Flows on the busiest link, first seed")
    axes.grid(visible=False)
    figure.colorbar(shown, ax=axes, label="flows")
    return figure


def gantt(results: Mapping[str, Sequence[Result]]) -> Figure | None:
    """The waiting and running of jobs of the first seed in the order of arrival, a panel per strategy.

    Only jobs that some strategy placed on several leaves: the others meet no contention. None if there are none.
    """
    runs_by_job = zip(*(runs[0].outcomes for runs in results.values()), strict=True)
    shown = [number for number, outcomes in enumerate(runs_by_job) if max(outcome.leaves for outcome in outcomes) > 1]
    if not shown:
        return None
    figure = Figure(figsize=(8.0, 0.8 + 1.5 * len(results)))
    panels = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    colours = mpl.colormaps["viridis"]
    width = max(0.4, min(6.0, 60.0 / len(shown)))
    for axes, (name, runs) in zip(panels, results.items(), strict=True):
        run = runs[0]
        waits, running, stretches = [], [], []
        chosen = (run.outcomes[number] for number in shown if run.outcomes[number].state != "refused")
        for row, outcome in enumerate(sorted(chosen, key=lambda outcome: outcome.job.arrival_s)):
            end_s = run.end_s if outcome.end_s is None else outcome.end_s
            waits.append([(outcome.job.arrival_s / 3600, row), (end_s / 3600, row)])  # runs are drawn over it
            for from_s, to_s in runs_of(outcome, run.end_s):
                running.append([(from_s / 3600, row), (to_s / 3600, row)])
                stretches.append((outcome.running_s or outcome.job.run_s) / outcome.job.run_s)
        axes.add_collection(LineCollection(waits, colors=PALETTE[1], linewidths=width))
        shades = colours((np.array(stretches) - 1) / (_LONGEST_STRETCH - 1))
        axes.add_collection(LineCollection(running, colors=list(map(tuple, shades)), linewidths=width))
        axes.autoscale()
        axes.invert_yaxis()
        axes.set_ylabel(name, rotation=0, ha="right")
        axes.set_yticks([])
    panels[-1].set_xlabel("time (h)")
    panels[0].set_title("Jobs on several leaves: waiting (orange), running (dark: ideal; light: twice that)")
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
