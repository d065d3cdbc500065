# SPDX-License-Identifier: Apache-2.0
"""Figures like those of section V."""

from matplotlib.figure import Figure

from testbed.report.plots import PALETTE
from testbed.research.papers.rail_only.iterations import BATCHES, CLUSTERS, DOMAINS, domain_sweep, relative_performance
from testbed.training.transformer import GPT_1T


def domain_sizes() -> Figure:
    """Like Figure 8: iteration time by the size of an HB domain; dashed: one HB domain of all GPUs."""
    figure = Figure(figsize=(8.0, 3.2))
    for panel, model in zip(figure.subplots(1, 2), BATCHES, strict=True):
        for gpus, colour in zip(CLUSTERS, PALETTE, strict=False):
            times = domain_sweep(model, gpus)
            panel.plot(DOMAINS, [times[size] for size in DOMAINS], "o-", ms=3.5, color=colour, label=f"{gpus:,} GPUs")
            panel.axhline(times[gpus], color=colour, lw=0.9, ls="--")
        panel.set_xscale("log", base=2)
        panel.set_xticks(DOMAINS, [str(size) for size in DOMAINS])
        panel.set_ylim(bottom=0)
        panel.set_xlabel("GPUs in an HB domain")
        panel.set_title(f"GPT-{model.name}, batch {BATCHES[model]}")
    figure.axes[0].set_ylabel("iteration time (s)")
    figure.axes[0].legend()
    return figure


def batch_sizes() -> Figure:
    """Like Figure 10b: performance relative to one HB domain of all GPUs, by batch size."""
    figure = Figure(figsize=(5.2, 3.2))
    axes, batches = figure.subplots(), (256, 512, 1024, 2048, 4096)
    for domain, colour in zip((8, 64, 256), PALETTE, strict=False):
        axes.plot(
            batches, [relative_performance(domain, batch) for batch in batches], "o-", ms=3.5, color=colour,
            label=f"K = {domain}",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("sequences of an iteration")
    axes.set_ylabel("relative to the ideal")
    axes.set_title(f"GPT-{GPT_1T.name} on 32,768 GPUs")
    axes.legend()
    return figure
