# SPDX-License-Identifier: Apache-2.0
"""The plots of a report. Each function returns a matplotlib figure; no files are written here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netmodel import tiers
from testbed.allocation.placement import leaf_of
from testbed.analysis import metrics
from testbed.analysis.metrics import PolicyResult, Uplink
from testbed.analysis.observations import RunRecord
from testbed.report.scales import of_rates, of_sizes, of_times, said
from testbed.spec import Experiment, Instance

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's palette, distinguishable with all kinds of colour vision (jfly.uni-koeln.de/color)."""

_MOST_NAMES = 12
"""Names of switches side by side, and labels of either axis of a heat map, that do not cover each other."""

_INK = "#333333"
_FAINT = "#999999"

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",
    "svg.hashsalt": "paralet",
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure, the name of its file, and its alternative text: one sentence that describes it."""

    name: str
    alt: str
    draw: Callable[[Experiment, Sequence[PolicyResult], float], Figure]
    tells: Callable[[Experiment, Sequence[PolicyResult]], bool] = lambda experiment, results: True
    """Whether these results have something to show: the report leaves out an empty plot."""


def completion(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """Mean completion time of every policy as a bar, every run as a dot, the ideal as a line."""
    figure, axes = _figure(8.0, 3.6)
    places, scale = np.arange(len(results)), of_times(result.worst_s for result in results)
    heights = [scale.of(result.mean_s) for result in results]
    axes.bar(places, heights, width=0.62, color=_colours(results), alpha=0.85)
    for place, result in zip(places, results, strict=True):
        spread = np.linspace(-0.16, 0.16, len(result.runs)) if len(result.runs) > 1 else np.zeros(1)
        dots = [scale.of(completion_s) for completion_s in result.completions_s]
        axes.plot(place + spread, dots, "o", ms=4, mfc="white", mec=_INK, mew=0.9, zorder=3)
        axes.annotate(
            f"{result.mean_s / ideal_s:.2f} × ideal",
            (place, scale.of(result.worst_s)),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
        )
    axes.axhline(scale.of(ideal_s), color=_INK, lw=1.2, ls="--", zorder=2)
    axes.annotate(
        f"ideal {said(ideal_s)}",
        (1.0, scale.of(ideal_s)),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
    )
    axes.set_xticks(places, [_label(result) for result in results])
    axes.set_ylim(0, 1.14 * scale.of(max(result.worst_s for result in results)))
    axes.set_ylabel(f"completion time ({scale.unit})")
    axes.set_title("Completion time: mean (bar) and every seed (dots)")
    return figure


def uplink_loads(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """One heat map per policy: each uplink's load divided by its leaf's mean, in the run with the worst imbalance."""
    links = metrics.uplinks(experiment.topology)
    of_leaf: dict[str, list[int]] = {}
    for place, link in enumerate(links):
        of_leaf.setdefault(link.port.node, []).append(place)
    leaves, columns = list(of_leaf), max(map(len, of_leaf.values()))
    worst = [max((metrics.loads(run, links) for run in result.runs), key=_imbalance) for result in results]
    shares = [_shares(loads, of_leaf, columns) for loads in worst]
    top = max(2.0, *(float(np.nanmax(share)) for share in shares))

    across = min(3, len(results))
    rows = -(-len(results) // across)
    wide = 0.5 * columns if columns <= 8 else 2.2
    high = (0.42 if columns <= 8 else 0.24) * min(len(leaves), _MOST_NAMES)
    figure = Figure(figsize=(across * (wide + 1.0) + 0.8, rows * (high + 0.9)))
    panels = np.atleast_1d(figure.subplots(rows, across, squeeze=False)).ravel()
    image = None
    for panel, result, loads, share in zip(panels, results, worst, shares, strict=False):
        image = panel.imshow(share, cmap="cividis", vmin=0.0, vmax=top, aspect="auto")
        panel.set_title(f"{_label(result, ' ')}: max/mean {_imbalance(loads):.2f}", fontsize=9.5)
        panel.grid(visible=False)
        below, beside = (-(-count // _MOST_NAMES) for count in (len(leaves), columns))
        panel.set_yticks(range(0, len(leaves), below), leaves[::below])
        panel.set_xticks(range(0, columns, beside), _column_labels(links, of_leaf, columns)[::beside], fontsize=7.5)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        if columns <= 8:
            for (row, column), value in np.ndenumerate(share):
                if not np.isnan(value):
                    colour = "white" if value < 0.55 * top else "black"
                    panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    for panel in panels[len(results) :]:
        panel.set_visible(False)
    if image is not None:
        figure.colorbar(image, ax=list(panels), label="bytes / the leaf's mean", shrink=0.9)
    return figure


def imbalance(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """Largest load divided by mean load of all uplinks: the mean over seeds as a bar, every seed as a dot."""
    links = metrics.uplinks(experiment.topology)
    figure, axes = _figure(8.0, 3.0)
    places = np.arange(len(results))
    values = [[_imbalance(metrics.loads(run, links)) for run in result.runs] for result in results]
    axes.bar(places, [float(np.mean(value)) for value in values], width=0.62, color=_colours(results), alpha=0.85)
    for place, value in zip(places, values, strict=True):
        spread = np.linspace(-0.16, 0.16, len(value)) if len(value) > 1 else np.zeros(1)
        axes.plot(place + spread, value, "o", ms=4, mfc="white", mec=_INK, mew=0.9, zorder=3)
    axes.axhline(1.0, color=_INK, lw=1.2, ls="--")
    axes.set_xticks(places, [_label(result) for result in results])
    axes.set_ylabel("most loaded uplink / mean")
    axes.set_ylim(0, None)
    axes.set_title("Uplink imbalance (1 is perfect balance)")
    return figure


def throughput(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """Goodput to all hosts together over time, in each policy's median run."""
    figure, axes = _figure(8.0, 3.4)
    first = Instance(experiment, experiment.seeds[0])
    capacity_bps = sum(map(first.line_rate_bps, range(experiment.ranks)))
    curves = [metrics.goodput_bps(_median_run(result)) for result in results]
    times = of_times(at_s for points in curves for at_s, _ in points)
    rates = of_rates([capacity_bps, *(rate_bps for points in curves for _, rate_bps in points)])
    for result, points, colour in zip(results, curves, _colours(results), strict=True):
        axes.step(
            [times.of(at_s) for at_s, _ in points],
            [rates.of(rate_bps) for _, rate_bps in points],
            where="mid",
            color=colour,
            lw=1.8,
            label=f"{_label(result, ' ')}, seed {_median_run(result).seed}",
        )
    axes.axhline(rates.of(capacity_bps), color=_INK, lw=1.2, ls="--", label="all host links full")
    axes.set_xlabel(f"time since the start ({times.unit})")
    axes.set_ylabel(f"to all hosts ({rates.unit})")
    axes.set_ylim(0, None)
    axes.set_xlim(0, None)
    axes.set_title("Throughput over time, median run of each policy")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def steps(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """Time at which each step was complete on every rank, in each policy's median run."""
    figure, axes = _figure(8.0, 3.4)
    count, curves = 0, [np.cumsum(metrics.step_durations_s(_median_run(result))) for result in results]
    scale = of_times(ends[-1] for ends in curves)
    for result, ends, colour in zip(results, curves, _colours(results), strict=True):
        count = len(ends)
        axes.plot(
            np.arange(1, count + 1), ends / scale.one, "o-", ms=3, lw=1.6, color=colour, label=_label(result, " ")
        )
    axes.plot([0, count], [0, scale.of(ideal_s)], color=_INK, lw=1.2, ls="--", label="ideal")
    axes.set_xlabel("step")
    axes.set_ylabel(f"complete on every rank at ({scale.unit})")
    axes.set_ylim(0, None)
    axes.set_xlim(0, None)
    axes.set_title("Progress through the steps, median run of each policy")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def losses(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """The losses of a training script by step, in each policy's run of the first seed. Dashes tell jobs apart."""
    figure, axes = _figure(8.0, 3.0)
    for place, (result, colour) in enumerate(zip(results, _colours(results), strict=True)):
        width = 1.4 + 1.6 * (len(results) - 1 - place)  # equal curves cover each other
        for number, job in enumerate(result.runs[0].jobs):
            label = _label(result, " ") if number == 0 else None
            style = ("-", "--", ":", "-.")[number % 4]
            axes.plot(range(len(job.losses)), job.losses, style, lw=width, color=colour, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_title("Loss of each step, first seed")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def retransmits(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """Retransmitted packets per thousand packets sent."""
    figure, axes = _figure(8.0, 2.6)
    places = np.arange(len(results))
    values = [1000 * result.retransmits / max(1, _packets(result)) for result in results]
    axes.bar(places, values, width=0.62, color=_colours(results), alpha=0.85)
    for place, value, result in zip(places, values, results, strict=True):
        text = f"{result.retransmits:,}"
        axes.annotate(text, (place, value), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.set_xticks(places, [_label(result) for result in results])
    axes.set_ylabel("per 1,000 packets")
    axes.set_ylim(0, 1.2 * max(*values, 0.1) if len(values) > 1 else 1.2 * max(values[0], 0.1))
    axes.set_title("Retransmitted packets (numbers: all seeds together)")
    return figure


def predictions(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """Predicted payload against the bytes that the switch counted, one point for each uplink and run."""
    links = metrics.uplinks(experiment.topology)
    figure, axes = _figure(5.2, 4.2)
    points = [
        (
            [load for run in result.flows for load in run.predicted_loads(link.port for link in links)],
            [load for run in result.runs for load in metrics.loads(run, links)],
        )
        for result in results
    ]
    top = float(max((load for both in points for loads in both for load in loads), default=0.0))
    scale = of_sizes([top])
    for result, (predicted, counted), colour in zip(results, points, _colours(results), strict=True):
        axes.plot(
            [scale.of(load) for load in predicted],
            [scale.of(load) for load in counted],
            "o",
            ms=4,
            mec="white",
            mew=0.4,
            alpha=0.8,
            color=colour,
            label=_label(result, " "),
        )
    axes.plot([0, scale.of(top)], [0, scale.of(top)], color=_INK, lw=1.0, ls="--", zorder=1, label="equal")
    axes.set_xlabel(f"predicted payload ({scale.unit})")
    axes.set_ylabel(f"counted by the switch, with headers ({scale.unit})")
    axes.set_title("Every uplink of every run")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def placement(experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Figure:
    """The fabric, with the position of each rank."""
    topology = experiment.topology
    tier = tiers(topology)
    rows = [
        [name for name in tier if tier[name] == 3],
        [name for name in tier if tier[name] == 2],
        [switch.name for switch in topology.switches if switch.role in ("leaf", "ocs")],
        [host.name for host in topology.hosts],
    ]
    top = 2.9 if rows[0] else 2.0
    figure, axes = _figure(8.4, top + 1.0)
    at: dict[str, tuple[float, float]] = {}
    for height, names in zip((2.9, 2.0, 1.1, 0.25), rows, strict=True):
        at |= {name: ((index + 0.5) / len(names), height) for index, name in enumerate(names)}
    cables = [(at[link.a.node], at[link.b.node]) for link in topology.links if {link.a.node, link.b.node} <= at.keys()]
    # One line with gaps, because each line takes as long to draw as a text.
    points = np.full((len(cables), 3, 2), np.nan)
    points[:, :2] = np.array(cables).reshape(-1, 2, 2)
    axes.plot(*points.reshape(-1, 2).T, color=_FAINT, lw=0.7, zorder=1)
    rank_of = {host: rank for rank, host in enumerate(experiment.first_hosts)}
    colour_of = {leaf: PALETTE[index % len(PALETTE)] for index, leaf in enumerate(rows[2])}
    size = 7.5 if len(rows[3]) <= 24 else 5.0
    crowded = {
        name
        for tier, most in zip(rows, (_MOST_NAMES, _MOST_NAMES, _MOST_NAMES, 64), strict=True)
        if len(tier) > most
        for name in tier
    }
    squares: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for name, (x, y) in at.items():
        host = topology.has_host(name)
        text = (f"rank {rank_of[name]}\n{name}" if name in rank_of else f"\n{name}") if host else name
        leaf = leaf_of(topology, name) if host else name
        face = "white" if host and name not in rank_of else colour_of.get(leaf, "#DDDDDD")
        box = {"boxstyle": "round,pad=0.3", "fc": face, "ec": _FAINT, "lw": 0.8}
        if face not in ("white", "#DDDDDD"):
            box["fc"] = tuple(0.65 + 0.35 * part for part in mpl.colors.to_rgb(face))  # pale but opaque
        if name in crowded:
            squares.setdefault((face, 2.0 if host else 6.0), []).append((x, y))
        else:
            axes.text(x, y, text, ha="center", va="center", fontsize=size if host else 9, bbox=box, zorder=2)
    for (face, width), places in squares.items():
        axes.plot(*np.array(places).T, "s", ms=width, mfc=face, mec=_FAINT, mew=1.0, zorder=2)
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.1, top + 0.25)
    axes.set_axis_off()
    return figure


def comparison(names: Sequence[str], ratios: Sequence[Mapping[str, float]]) -> Figure:
    """Mean completion over ideal: a group of bars for each policy, with a bar for each result folder."""
    policies = list(dict.fromkeys(policy for of_policy in ratios for policy in of_policy))
    figure, axes = _figure(8.4, 3.6)
    width = 0.8 / len(names)
    for index, (name, of_policy) in enumerate(zip(names, ratios, strict=True)):
        places = [place + (index - (len(names) - 1) / 2) * width for place, p in enumerate(policies) if p in of_policy]
        heights = [of_policy[policy] for policy in policies if policy in of_policy]
        bars = axes.bar(places, heights, width=0.92 * width, color=PALETTE[index % len(PALETTE)], label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axes.axhline(1.0, color=_INK, lw=1.2, ls="--", label="ideal")
    axes.set_xticks(range(len(policies)), policies)
    axes.set_ylabel("mean completion / ideal")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _changes_over_time(experiment: Experiment, results: Sequence[PolicyResult]) -> bool:
    """Runs shorter than two samples have no curve."""
    return any(len(metrics.goodput_bps(_median_run(result))) > 1 for result in results)


def _has_steps(experiment: Experiment, results: Sequence[PolicyResult]) -> bool:
    return any(len(metrics.step_durations_s(_median_run(result))) > 1 for result in results)


def _has_packets(experiment: Experiment, results: Sequence[PolicyResult]) -> bool:
    return experiment.spec.fabric_kind.packets


def _has_losses(experiment: Experiment, results: Sequence[PolicyResult]) -> bool:
    """Training scripts tell them."""
    return any(job.losses for result in results for run in result.runs for job in run.jobs)


def _is_observed(experiment: Experiment, results: Sequence[PolicyResult]) -> bool:
    """A model's bytes go where its prediction puts them; those of an app of the user's are not predicted."""
    return experiment.predicts and not experiment.spec.fabric_kind.modelled


PLOTS = (
    Plot("topology", "The fabric: spines, leaves, and hosts with their ranks", placement),
    Plot("completion", "Completion time of every policy and seed, compared with the ideal", completion),
    Plot("uplinks", "Load of every leaf-to-spine link under every policy, worst run", uplink_loads),
    Plot("imbalance", "Most loaded uplink divided by the mean, per policy and seed", imbalance),
    Plot("throughput", "Throughput to all hosts over time", throughput, _changes_over_time),
    Plot("steps", "When each step was complete on every rank", steps, _has_steps),
    Plot("losses", "Loss of each step of the training script, per policy", losses, _has_losses),
    Plot("retransmits", "Retransmitted packets per policy", retransmits, _has_packets),
    Plot("predictions", "Predicted and counted bytes of every uplink", predictions, _is_observed),
)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A new figure without pyplot, which would keep it and choose a back end for the whole process."""
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def _colours(results: Sequence[PolicyResult]) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(len(results))]


def _label(result: PolicyResult, between: str = "\n") -> str:
    return f"{result.name}{between}(m = {result.m})"


def _imbalance(values: Sequence[int]) -> float:
    return metrics.balance(values).max_over_mean


def _median_run(result: PolicyResult) -> RunRecord:
    return sorted(result.runs, key=lambda run: run.completion_s)[len(result.runs) // 2]


def _packets(result: PolicyResult) -> int:
    return sum(entry.lane.tx_packets for run in result.runs for entry in run.lanes)


def _shares(
    loads: Sequence[int], of_leaf: Mapping[str, Sequence[int]], columns: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Loads by leaf and uplink, each divided by its leaf's mean; NaN where a leaf has fewer uplinks than others."""
    table = np.full((len(of_leaf), columns), np.nan)
    for row, places in enumerate(of_leaf.values()):
        own = [loads[place] for place in places]
        mean = sum(own) / len(own) or 1.0
        table[row, : len(own)] = [load / mean for load in own]
    return table


def _column_labels(links: Sequence[Uplink], of_leaf: Mapping[str, Sequence[int]], columns: int) -> list[str]:
    """The names of the spines if they are the same for every leaf, else numbers."""
    spines = {tuple(links[place].spine for place in places) for places in of_leaf.values()}
    return list(spines.pop()) if len(spines) == 1 and columns <= 8 else [str(index + 1) for index in range(columns)]
