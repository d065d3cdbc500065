# SPDX-License-Identifier: Apache-2.0
"""Figures of the paper's tables."""

from matplotlib.figure import Figure

from testbed.report.plots import PALETTE
from testbed.research.papers.vclos import printed, simulated


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
