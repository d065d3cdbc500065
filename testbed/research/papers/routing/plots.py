# SPDX-License-Identifier: Apache-2.0
"""Figures 4 to 8 of the paper, from our points."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.report.plots import PALETTE
from testbed.research.papers.routing.evaluation import MODELS, NAMES, PLANNERS, Planned, Point

_COLOURS = dict(zip(PLANNERS, (PALETTE[5], PALETTE[1], PALETTE[0], PALETTE[2], PALETTE[3]), strict=True))
_WIDTH = 0.16
_Value = Callable[[Point], float]


def allreduce(points: Sequence[Point]) -> Figure:
    """Figure 4: all-reduce time, means over iterations and placements. The line is the ideal."""
    return _by_jobs(points, "all-reduce [s]", lambda point: point.allreduce_s, lambda point: point.ideal_s)


def fct(points: Sequence[Point]) -> Figure:
    """Figure 5: mean flow completion time."""
    return _by_jobs(points, "mean FCT [s]", lambda point: point.fct_s, None)


def throughput(points: Sequence[Point]) -> Figure:
    """Figure 6: mean throughput of flows."""
    return _by_jobs(points, "throughput [Gbit/s]", lambda point: point.throughput_bps / 1e9, None)


def failures(points: Sequence[Point]) -> Figure:
    """Figure 8: all-reduce time of three jobs, by the number of failed spines."""
    figure = Figure(figsize=(9, 3.2))
    panels = figure.subplots(1, len(MODELS))
    for axes, model in zip(panels, MODELS, strict=True):
        mine = [point for point in points if point.case.model == model]
        _bars(axes, mine, lambda point: point.case.failed, lambda point: point.allreduce_s)
        axes.axhline(mine[0].ideal_s, color="#333333", linestyle="--", linewidth=1)
        axes.set_title(f"{model.name}, rings of {mine[0].case.ring}")
        axes.set_xlabel("failed spines")
    panels[0].set_ylabel("all-reduce [s]")
    _legend(figure, panels[0])
    return figure


def runtimes(planned: Sequence[Planned]) -> Figure:
    """Figure 7: median processor time for a plan by its number of commodities. Each planner uses one thread."""
    figure = Figure(figsize=(7, 3.6))
    axes = figure.subplots()
    for name in PLANNERS:
        spans: defaultdict[int, list[float]] = defaultdict(list)
        for case in planned:
            if case.planner == name:
                spans[case.commodities].append(1e3 * case.seconds)
        sizes = sorted(spans)
        axes.plot(sizes, [median(spans[size]) for size in sizes], ".-", color=_COLOURS[name], label=NAMES[name], lw=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("commodities")
    axes.set_ylabel("processor time for a plan [ms]")
    _legend(figure, axes)
    return figure


def _by_jobs(points: Sequence[Point], label: str, value: _Value, ideal: _Value | None) -> Figure:
    rings = sorted({point.case.ring for point in points})
    figure = Figure(figsize=(10, 6.5))
    panels = figure.subplots(len(MODELS), len(rings), squeeze=False)
    for row, model in zip(panels, MODELS, strict=True):
        for axes, ring in zip(row, rings, strict=True):
            mine = [point for point in points if point.case.model == model and point.case.ring == ring]
            _bars(axes, mine, lambda point: point.case.jobs, value)
            if ideal is not None:
                axes.axhline(ideal(mine[0]), color="#333333", linestyle="--", linewidth=1)
            axes.set_title(f"{model.name}, rings of {ring}")
        row[0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("jobs")
    _legend(figure, panels[0, 0])
    return figure


def _bars(axes: Axes, points: Sequence[Point], group: Callable[[Point], int], value: _Value) -> None:
    groups = sorted({group(point) for point in points})
    for place, name in enumerate(PLANNERS):
        mine = {group(point): value(point) for point in points if point.planner == name}
        axes.bar(
            [groups.index(key) + (place - (len(PLANNERS) - 1) / 2) * _WIDTH for key in mine],
            list(mine.values()),
            _WIDTH,
            color=_COLOURS[name],
            label=NAMES[name],
        )
    axes.set_xticks(range(len(groups)), [str(key) for key in groups])


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(PLANNERS))
