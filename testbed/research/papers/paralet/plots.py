# SPDX-License-Identifier: Apache-2.0
"""Figures 4 and 5 of the paper from our points, Equation 1, and the schemes published since."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from testbed.report.plots import PALETTE
from testbed.research.papers.paralet import flowlets, theory
from testbed.research.papers.paralet.evaluation import (
    CONWEAVE,
    DRILL,
    DRILL_SR,
    ECMP,
    LETFLOW,
    PARALET,
    SPRAYING,
    Case,
    Point,
)
from testbed.research.papers.paralet.real_runs import FABRICS, Times

_SHOWN = {ECMP: PALETTE[5], "ParaLet m = 4": PALETTE[4], PARALET: PALETTE[0], SPRAYING: "#333333"}
_SHOWN |= {LETFLOW: PALETTE[1], CONWEAVE: PALETTE[3], DRILL_SR: PALETTE[2], DRILL: PALETTE[6]}
_INK = "#333333"


def equation_1(nodes: int) -> Figure:
    """Slowdown by m: the paper's estimate, and the mean over random draws."""
    figure = Figure(figsize=(6, 3.6))
    axes = figure.subplots()
    lanes = [1, 2, 4, 8, 16, 32, 64, 128]
    axes.plot(lanes, [theory.slowdown(nodes, m) for m in lanes], "o-", color=PALETTE[0], label="Equation 1")
    drawn = [theory.fullest_port(nodes, m) for m in lanes]
    axes.plot(lanes, drawn, "s-", color=PALETTE[1], label=f"fullest of {nodes:,} ports, mean")
    axes.axhline(1, color=_INK, linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lanes, [str(m) for m in lanes])
    axes.set_xlabel("lanes m")
    axes.set_ylabel("slowdown")
    axes.legend(frameon=False)
    return figure


def throughput(points: Sequence[Point]) -> Figure:
    """Figure 4: Total Throughput over time, one panel per case."""
    cases = _cases(points)
    figure = Figure(figsize=(4.5 * min(2, len(cases)), 2.9 * -(-len(cases) // 2)), layout="constrained")
    for axes, case in zip(figure.subplots(-(-len(cases) // 2), 2).ravel(), cases, strict=True):
        for point in points:
            if point.case == case and point.scheme.name in _SHOWN:
                ends, rates = zip(*point.throughput, strict=True)
                axes.stairs(
                    np.array(rates) / 1e12,
                    1e3 * np.array([0.0, *ends]),
                    color=_SHOWN[point.scheme.name],
                    linestyle="--" if point.scheme.name == SPRAYING else "-",
                    label=point.scheme.name,
                    baseline=None,
                )
        ecmp = next(point for point in points if point.case == case and point.scheme.name == ECMP)
        axes.set_xlim(0, 1.1e3 * ecmp.throughput[-1][0])  # DRILL with go-back-N takes much longer
        axes.set_title(str(case))
        axes.set_xlabel("time [ms]")
        axes.set_ylabel("total throughput [Tbit/s]")
        axes.set_ylim(bottom=0)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def figure_5(points: Sequence[Point]) -> Figure:
    """Figure 5: peaks and completion times by scheme, as multiples of the ideal."""
    points = [point for point in points if not point.scheme.paced]
    cases = _cases(points)
    names = list(dict.fromkeys(point.scheme.name for point in points))
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    values: tuple[Callable[[Point, Point], float], ...] = (
        _peak,
        lambda point, _: point.fct_mean_s / point.ideal_s,
        lambda point, _: point.fct_max_s / point.ideal_s,
    )
    for axes, title, value in zip(
        panels,
        ("MTT / ideal spraying's", "mean FCT / ideal", "slowest flow / ideal"),
        values,
        strict=True,
    ):
        for colour, mark, case in zip(PALETTE, "osv^", cases, strict=False):
            own = {point.scheme.name: point for point in points if point.case == case}
            xs = [names.index(name) for name in own]
            ys = [value(point, own[SPRAYING]) for point in own.values()]
            axes.plot(xs, ys, f"{mark}-", color=colour, label=str(case), ms=5, lw=1)
        axes.axhline(1, color=_INK, linestyle="--", linewidth=1)
        axes.set_xticks(range(len(names)), [name.replace("ParaLet ", "") for name in names], rotation=60, ha="right")
        axes.set_title(title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def since(points: Sequence[Point]) -> Figure:
    """The slowest flow of every scheme, without and with degraded links."""
    collectives = list(dict.fromkeys(point.case.collective for point in points))
    names = list(dict.fromkeys(point.scheme.name for point in points))[::-1]
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, len(collectives), sharey=True, squeeze=False)[0]
    for axes, collective in zip(panels, collectives, strict=True):
        for place, (slow, colour) in enumerate(((False, PALETTE[0]), (True, PALETTE[5]))):
            own = {
                point.scheme.name: point.fct_max_s / point.ideal_s
                for point in points
                if point.case.collective == collective and bool(point.case.degraded) == slow
            }
            ys = [names.index(name) + (0.2 if place == 0 else -0.2) for name in own]
            said = "4 slow links" if slow else "healthy"
            axes.barh(ys, list(own.values()), height=0.38, color=colour, label=said)
            for y, value in zip(ys, own.values(), strict=True):
                axes.text(value * 1.03, y, f"{value:.2f}", va="center", fontsize=8)
        axes.axvline(1, color=_INK, linestyle="--", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(0.9, 22)
        axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("slowest flow / ideal")
        axes.set_title({"ring": "ring, 128 hosts", "tree": "DBT, 128 hosts"}[collective])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def flowlet_sizes(times: Times) -> Figure:
    """Completion times by the size of flowlets: real packets with the range over seeds, and the model's means."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    names = list(flowlets.CONDITIONS)
    places = range(len(flowlets.SIZES))
    for axes, shown in zip(figure.subplots(1, 2, sharey=True), (names[:3], [names[0], *names[3:]]), strict=True):
        for name, colour in zip(shown, (PALETTE[0], PALETTE[1], PALETTE[5]), strict=True):
            real, model = ([times[fabric, name, policy] for policy in flowlets.SIZES] for fabric in FABRICS)
            axes.plot(places, [np.mean(each) for each in real], "o-", color=colour, label=flowlets.CONDITIONS[name])
            axes.vlines(places, [min(each) for each in real], [max(each) for each in real], color=colour)
            axes.plot(places, [np.mean(each) for each in model], "x--", color=colour)
        axes.set_xticks(places, list(flowlets.SIZES.values()))
        axes.set_xlabel("size of flowlets; x: model")
        axes.legend(frameon=False)
    figure.axes[0].set_ylabel("completion / ideal")
    return figure


def _cases(points: Sequence[Point]) -> list[Case]:
    return list(dict.fromkeys(point.case for point in points))


def _peak(point: Point, ideal: Point) -> float:
    return point.peak_bps / ideal.peak_bps
