# SPDX-License-Identifier: Apache-2.0
"""The tables that commands print."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from netmodel.printable import printable

if TYPE_CHECKING:
    from testbed.analysis.metrics import PolicyResult
    from testbed.spec import Experiment


class PlainConsole(Console):
    """A console that takes every string as it is: no markup, no emoji codes, and what is not printable is escaped.

    All strings that rich draws come through `render_str`: sentences, cells, headings and titles. What is to have a
    style is a `Text`.
    """

    def render_str(self, text: str, **style: Any) -> Text:
        """Make the text that rich draws for a string."""
        plain = {"markup": False, "emoji": False, "highlight": False}
        return super().render_str(printable(text), **{**style, **plain})


def console() -> Console:
    """Standard output. When it is not a terminal, its width is fixed and large enough for all tables."""
    return PlainConsole(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)


class WholeTable(Table):
    """A table that never shortens a cell: where the terminal is too narrow for its columns, it stacks them.

    A stacked row is the cell of the first column, and below it a line for each other column.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it side by side, or stacked."""
        unlimited = options.update(width=_UNLIMITED)
        sizes = [
            [Measurement.get(console, unlimited, cell) for cell in (column.header, *column.cells)]
            for column in self.columns
        ]
        most = [max((size.maximum for size in column), default=0) for column in sizes]
        least = [
            longest if column.no_wrap else max((size.minimum for size in measured), default=0)
            for column, measured, longest in zip(self.columns, sizes, most, strict=True)
        ]
        room = options.max_width - 2 * len(least)  # two between columns, one at each edge
        if sum(least) <= room:
            for column, width in zip(self.columns, _widths(least, most, room), strict=True):
                column.width = width
            yield from super().__rich_console__(console, options)
            return
        if self.title is not None:
            yield Text(printable(str(self.title)), style="bold")
        names = [printable(str(column.header)) for column in self.columns]
        for row, *cells in zip(self.rows, *(column.cells for column in self.columns), strict=True):
            yield from (Text(), Text.assemble(_text(cells[0]), style=row.style or ""))
            for name, cell in zip(names[1:], cells[1:], strict=True):
                yield Text.assemble(f"  {name}: ", _text(cell), style=row.style or "")
        yield Text()


_UNLIMITED = 10_000
"""A width that no table has."""


def _widths(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """A width for each column, between its least and its most. The widest ones give way where the room is short."""
    for limit in range(max(most, default=0), 0, -1):
        widths = [max(low, min(high, limit)) for low, high in zip(least, most, strict=True)]
        if sum(widths) <= room:
            return widths
    return list(least)


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(str(cell)))


def table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """An empty table. The first column names the rows and is never wrapped; the columns `right` are right-aligned."""
    fresh = WholeTable(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, name in enumerate(left):
        fresh.add_column(name, no_wrap=index == 0)
    for name in right:
        fresh.add_column(name, justify="right")
    return fresh


def print_outcome(
    experiment: "Experiment", results: "Sequence[PolicyResult]", summary: dict[str, Any], report: Path
) -> None:
    """Print a run's results: one line per policy, the path predictions, and where the report is."""
    from testbed.analysis import metrics
    from testbed.analysis.busy import busy_sentence
    from testbed.analysis.short_messages import short_sentence
    from testbed.analysis.training_steps import step_times
    from testbed.report.scales import digits, of_times

    workload, ideal_s = experiment.spec.workload, summary["ideal_s"]
    links = metrics.uplinks(experiment.topology)
    count = len(experiment.seeds)
    trained = step_times(experiment, results)
    seeds = f"{count} seed" if count == 1 else f"{count} seeds"
    times = of_times(result.worst_s for result in results)
    ideal = of_times([ideal_s])
    said = f"{digits(ideal.of(ideal_s))} {ideal.unit}"
    outcome = table(
        f"{workload.kind}, {workload.bytes:,} bytes, {experiment.ranks} ranks, {seeds}; ideal {said}",
        ["policy"],
        [
            "m",
            f"mean {times.unit}",
            f"worst {times.unit}",
            "x ideal",
            "sent again",
            "worst max/mean uplink",
            "losses" if trained else "bytes",
        ],
    )
    for result in results:
        uneven = max(metrics.balance(metrics.loads(run, links)).max_over_mean for run in result.runs)
        outcome.add_row(
            result.name,
            str(result.m),
            digits(times.of(result.mean_s)),
            digits(times.of(result.worst_s)),
            f"{result.mean_s / ideal_s:.2f}",
            f"{result.retransmits:,}" if experiment.spec.fabric_kind.packets else "-",
            f"{uneven:.2f}",
            _verdict(experiment, result),
        )
    out = console()
    out.print(outcome)
    if trained:
        times = of_times(entry.p99_s for entry in trained)
        columns = [f"median step {times.unit}", f"p99 {times.unit}", "first loss", "last loss", "largest difference"]
        steps = table("", ["policy"], columns)
        for entry in trained:
            difference = f"{entry.largest_difference:.1e}" if entry.largest_difference else "none"
            losses = f"{entry.first_loss:.6f}", f"{entry.last_loss:.6f}"
            steps.add_row(
                entry.name, digits(times.of(entry.median_s)), digits(times.of(entry.p99_s)), *losses, difference
            )
        out.print(steps)
        out.print(f"Differences of losses are those from {trained[0].reference} with the same seed.")
    predictions = summary["predictions"]
    if experiment.spec.fabric_kind.modelled:
        out.print("A model: no real packet was sent, so no byte was verified and no path observed.")
    elif sentences := [
        sentence
        for arrangement in experiment.arrangements
        if (sentence := arrangement.outcome(summary["policies"])) is not None
    ]:
        for sentence in sentences:
            out.print(sentence)
    elif not experiment.predicts:
        out.print("Paths are not predicted: an app of your own programs the switches.")
    else:
        out.print(f"Predicted paths: {predictions['matched']:,} of {predictions['checked']:,} flows went as predicted.")
    if (busy := busy_sentence(run for result in results for run in result.runs)) is not None:
        out.print(Text(printable(busy), style="yellow"))
    lost = sum(run.overruns for result in results for run in result.runs)
    if lost:
        slow = f"This machine was too slow for the rates: the emulation itself dropped {lost:,} packets."
        out.print(Text(printable(slow), style="yellow"))
    if (short := short_sentence(experiment, ideal_s)) is not None:
        out.print(short)
    out.print(f"Report: {report}", soft_wrap=True)


def _verdict(experiment: "Experiment", result: "PolicyResult") -> Text:
    """The cell that says whether the received bytes, or the losses of a training script, were right."""

    if experiment.spec.fabric_kind.modelled:
        return Text("modelled")
    workload = experiment.spec.workload
    if result.verified:
        return Text(workload.RIGHT, style="green")
    return Text("RANKS DIFFER" if workload.TRAINS else "WRONG", style="bold red")
