# SPDX-License-Identifier: Apache-2.0
"""The plot of a plan."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from testbed.report.plots import PALETTE
from testbed.research.cluster_plans.points import Point, pareto


def trade_off(found: Sequence[Point], chosen: Point | None) -> Figure:
    """Every point by days of training and cost per token; the line joins those that no other one beats in both."""
    figure = Figure(figsize=(8.0, 4.4))
    axes = figure.subplots()
    kinds = list(dict.fromkeys((point.fabric.kind, point.fabric.oversubscription > 1) for point in found))
    for (kind, thin), colour, mark in zip(kinds, PALETTE, "osv^", strict=False):
        own = [point for point in found if (point.fabric.kind, point.fabric.oversubscription > 1) == (kind, thin)]
        label = kind.replace("_", "-") + (", oversubscribed" if thin else "")
        axes.plot(
            [point.days for point in own],
            [1e6 * point.usd_per_token for point in own],
            mark,
            ms=5,
            mfc="none",
            color=colour,
            label=label,
        )
    best = pareto(found)
    axes.plot(
        [point.days for point in best], [1e6 * point.usd_per_token for point in best], color="#333333", lw=1, zorder=0
    )
    if chosen is not None:
        at = chosen.days, 1e6 * chosen.usd_per_token
        axes.plot(*at, "o", ms=12, mfc="none", mec="#333333", mew=1.5)
        axes.annotate("chosen", at, xytext=(10, 8), textcoords="offset points")
    axes.set_xscale("log")
    axes.grid(visible=True, axis="both", which="major")
    axes.set_xlabel("days of training")
    axes.set_ylabel("US dollars per million tokens")
    axes.set_title("Cost and time of every point")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
