# SPDX-License-Identifier: Apache-2.0
"""Figures of the paper's tables, and Figures 5 and 11."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
from matplotlib.figure import Figure

from testbed.report.plots import PALETTE
from testbed.research.papers.vclos import printed, replayed, scaling, simulated


def table_5() -> Figure:
    """Mean JCT by lambda: the paper's, and ours."""
    figure = Figure(figsize=(8.0, 3.4))
    left, right = figure.subplots(1, 2, sharey=True)
    for (name, row), colour in zip(printed.TABLE_5.items(), (*PALETTE, "black"), strict=False):
        ours = [simulated.table_5(name, gap_s).completion_s for gap_s in printed.GAPS_S]
        left.plot(printed.GAPS_S, row, "o-", ms=3.5, color=colour, label=name)
        right.plot(printed.GAPS_S, ours, "o-", ms=3.5, color=colour, label=name)
    for axes, title in ((left, "paper"), (right, "here")):
        axes.set_yscale("log")
        axes.set_xlabel("lambda (s)")
        axes.set_title(title)
    left.set_ylabel("mean JCT (s)")
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def figure_5() -> Figure:
    """Scaling factors by GPUs: bars with ECMP, a line without contention."""
    figure = Figure(figsize=(6.5, 3.0), layout="constrained")
    axes, width = figure.subplots(), 0.25
    places = np.arange(len(scaling.GPUS))
    for number, ((model, share), colour) in enumerate(zip(scaling.SHARES.items(), PALETTE, strict=False)):
        ecmp, alone = ([scaling.factor(share, gpus, ecmp=hashed) for gpus in scaling.GPUS] for hashed in (True, False))
        axes.bar(places + (number - 1) * width, ecmp, width, color=colour, label=model)
        axes.plot(places + (number - 1) * width, alone, "o-", ms=3.5, color=colour, mec="black")
    axes.set_xticks(places, [str(gpus) for gpus in scaling.GPUS])
    axes.set_xlabel("GPUs; bars: ECMP, lines: no contention")
    axes.set_ylabel("scaling factor")
    axes.set_ylim(0, 1.05)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def figure_11(jobs: Sequence[replayed.Replayed]) -> Figure:
    """The distributions of JRT and JWT: simulated, and with real packets."""
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    share = np.arange(1, len(jobs) + 1) / len(jobs)
    for axes, what in zip(figure.subplots(1, 2, sharey=True), get_args(replayed.What), strict=True):
        for times, name, colour in zip(
            np.array([job.pair(what) for job in jobs]).T, ("simulated", "real packets"), PALETTE, strict=False
        ):
            axes.plot(np.sort(times), share, color=colour, label=name)
        axes.set_xlabel(f"{what} (s)")
    figure.axes[0].set_ylabel("part of the jobs")
    figure.axes[0].legend(frameon=False)
    return figure
