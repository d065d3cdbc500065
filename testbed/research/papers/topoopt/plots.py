# SPDX-License-Identifier: Apache-2.0
"""Figures like the paper's."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from testbed.report.plots import PALETTE
from testbed.research.papers.topoopt import cost, iterations, reconfiguration, sharing
from testbed.research.papers.topoopt.forwarding import RATIOS, Forwarding, best_one_way, both_ways, one_way

_SERVERS = (128, 432, 1024, 2000)
_FABRICS = (
    ("Ideal Switch", cost.ideal_switch),
    ("Oversub. Fat-tree", cost.oversubscribed),
    ("Fat-tree", cost.fat_tree),
    ("TopoOpt, OCSs", cost.circuit_switches),
    ("TopoOpt, patch panels", cost.patch_panels),
    ("Expander", cost.expander),
)


def costs() -> Figure:
    """Like Figure 10: cost in millions of US dollars by the number of servers."""
    figure = Figure(figsize=(8.0, 3.2))
    for panel, (degree, gbps) in zip(figure.subplots(1, 2), ((4, 100), (8, 200)), strict=True):
        for (name, per_server), colour in zip(_FABRICS, PALETTE, strict=False):
            millions = [servers * per_server(degree, gbps) / 1e6 for servers in _SERVERS]
            panel.plot(_SERVERS, millions, "o-", ms=3.5, color=colour, label=name)
        panel.set_yscale("log")
        panel.set_xlabel("servers")
        panel.set_title(f"d = {degree}, {gbps} Gbit/s")
    figure.axes[0].set_ylabel("cost (million USD)")
    figure.axes[0].legend(fontsize=7)
    return figure


def iteration_times(degree: int = 4) -> Figure:
    """Like Figure 11, or 27 for d = 8: iteration time by the rate of links, a panel for each model."""
    figure = Figure(figsize=(8.0, 4.6))
    for panel, model in zip(figure.subplots(2, 3, sharex=True).flat, iterations.MODELS, strict=True):
        of = iterations.of_model(model)
        for name, colour in zip(iterations.FABRICS, PALETTE, strict=False):
            times = [iterations.seconds(of, name, degree, gbps) for gbps in iterations.RATES_GBPS]
            style = "o--" if name == "TopoOpt, both ways" else "o-"
            panel.plot(iterations.RATES_GBPS, times, style, ms=3, color=colour, label=name)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(iterations.RATES_GBPS, [str(gbps) for gbps in iterations.RATES_GBPS])
        panel.set_title(model)
    for panel in figure.axes[3:]:
        panel.set_xlabel("Gbit/s")
    for panel in figure.axes[::3]:
        panel.set_ylabel("iteration (s)")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


def all_to_all() -> Figure:
    """Like Figure 12: iteration time of DLRM with 128 tables by batch."""
    figure = Figure(figsize=(8.0, 3.2))
    batches = [64 * 2**k for k in range(len(RATIOS))]
    for panel, degree in zip(figure.subplots(1, 2), (4, 8), strict=True):
        for name, colour in zip(iterations.FABRICS[:3], PALETTE, strict=False):
            times = [iterations.seconds(iterations.of_batch(batch), name, degree, 100) for batch in batches]
            panel.plot(batches, times, "o-", ms=3.5, color=colour, label=name)
        panel.set_xscale("log", base=2)
        panel.set_xticks(batches, [str(batch) for batch in batches])
        panel.set_ylim(bottom=0)
        panel.set_xlabel("batch per GPU")
        panel.set_title(f"d = {degree}")
    figure.axes[0].set_ylabel("iteration (s)")
    figure.axes[0].legend()
    return figure


def taxes() -> Figure:
    """Like Figure 13: bandwidth tax by batch, for circuits in both directions and one-way circuits."""
    figure = Figure(figsize=(6.4, 3.2))
    axes = figure.subplots()
    batches = [64 * 2**k for k in range(len(RATIOS))]
    shown = [
        ("d = 4, both directions", both_ways(4), "o-"),
        ("d = 4, one way", one_way(4), "s--"),
        ("d = 4, one way, best strides", best_one_way(4), "^:"),
        ("d = 8, both directions", both_ways(8), "o-"),
    ]
    for (name, topology, style), colour in zip(shown, PALETTE, strict=False):
        axes.plot(batches, [topology.tax(ratio) for ratio in RATIOS], style, ms=4, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch per GPU")
    axes.set_ylabel("bandwidth tax")
    axes.legend()
    return figure


def path_lengths() -> Figure:
    """Like Figure 14: the fraction of pairs within a number of hops."""
    return _parts("hops", lambda topology: topology.hops)


def link_loads() -> Figure:
    """Like Figure 15: the fraction of circuits up to each load, relative to the most loaded, by uniform all-to-all."""
    return _parts("load", lambda topology: sorted(topology.loads))


def _parts(what: str, values: Callable[[Forwarding], Sequence[float]]) -> Figure:
    """The cumulative distribution of the values, for d = 4 and 8."""
    figure = Figure(figsize=(8.0, 3.2))
    for panel, degree in zip(figure.subplots(1, 2, sharey=True), (4, 8), strict=True):
        shown = (("both directions", both_ways(degree)), ("one way", one_way(degree)))
        for (name, topology), colour in zip(shown, PALETTE, strict=False):
            own = values(topology)
            parts = [100 * (place + 1) / len(own) for place in range(len(own))]
            panel.step([0.0, *own], [0.0, *parts], where="post", color=colour, label=name)
        panel.set_xlabel(what)
        panel.set_title(f"d = {degree}")
    figure.axes[0].set_ylabel("%")
    figure.axes[0].legend()
    return figure


def degrees() -> Figure:
    """Like Figure 28: iteration time by the number of circuits of a server."""
    figure = Figure(figsize=(8.0, 3.2))
    shown = (4, 6, 8, 10)
    for panel, model in zip(figure.subplots(1, 3), ("CANDLE", "DLRM", "BERT"), strict=True):
        of = iterations.of_model(model)
        for gbps, colour in zip((40, 100), PALETTE, strict=False):
            times = [iterations.seconds(of, "TopoOpt", degree, gbps) for degree in shown]
            panel.plot(shown, times, "o-", ms=3.5, color=colour, label=f"{gbps} Gbit/s")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("d")
        panel.set_title(model)
    figure.axes[0].set_ylabel("iteration (s)")
    figure.axes[0].legend()
    return figure


def shared() -> Figure:
    """Like Figure 16: iteration times of jobs that share a cluster, by load."""
    figure = Figure(figsize=(8.0, 3.2))
    loads = list(sharing.COUNTS)
    for panel, what in zip(figure.subplots(1, 2), ("mean", "tail"), strict=True):
        for name, colour in zip(sharing.FABRICS, PALETTE, strict=False):
            times = [getattr(sharing.times(name, load), what) for load in loads]
            panel.plot(loads, times, "o-", ms=3.5, color=colour, label=name)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("load (%)")
        panel.set_title({"mean": "mean", "tail": "99th percentile"}[what])
    figure.axes[0].set_ylabel("iteration (s)")
    figure.axes[0].legend(fontsize=7)
    return figure


def reconfiguration_times() -> Figure:
    """Like Figure 17: iteration time by reconfiguration latency, d = 8, 100 Gbit/s."""
    figure = Figure(figsize=(8.0, 3.2))
    latencies_us = [1e6 * latency_s for latency_s in reconfiguration.LATENCIES_S]
    for panel, model in zip(figure.subplots(1, 2), ("DLRM", "BERT"), strict=True):
        panel.axhline(reconfiguration.seconds(model, None), color=PALETTE[0], label="TopoOpt")
        for forwarding, colour in zip((True, False), PALETTE[1:], strict=False):
            hows = [reconfiguration.ocs(latency_s, forwarding=forwarding) for latency_s in reconfiguration.LATENCIES_S]
            name = f"OCS-reconfig, {'with' if forwarding else 'without'} forwarding"
            times = [reconfiguration.seconds(model, how) for how in hows]
            panel.plot(latencies_us, times, "o-", ms=3.5, color=colour, label=name)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("reconfiguration latency (us)")
        panel.set_title(model)
    figure.axes[0].set_ylabel("iteration (s)")
    figure.axes[0].legend(fontsize=7)
    return figure
