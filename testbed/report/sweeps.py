# SPDX-License-Identifier: Apache-2.0
"""The page of `paralet sweep`: the curve that was asked for, and every number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from testbed.analysis.sweeps import Row
from testbed.report.html import save_and_embed
from testbed.report.plots import PALETTE, STYLE
from testbed.report.scales import digits, of_sizes, of_times
from testbed.report.sheet import Part, Table, write_sheet

_MOST_CURVES = 8
"""Pictures of one page: combinations of the values that are not on the axis."""


def write(folder: Path, name: str, fabric: str, rows: Sequence[Row]) -> Path:
    """Write `report.html` and the curves as PNG files into `folder`. Returns the page.

    The horizontal axis has the key with the most values, numbers if any key has numbers; each combination of the other
    keys' values has a picture of its own, of the first eight.
    """
    axis = axis_of(rows)
    parts = []
    if axis is not None:
        groups = _by_others(rows, axis)
        for number, (others, group) in enumerate(list(groups.items())[:_MOST_CURVES], start=1):
            with mpl.rc_context(mpl.RcParams(STYLE)):
                file = folder / ("curve.png" if len(groups) == 1 else f"curve-{number}.png")
                picture = save_and_embed(curve(group, axis), file, f"Completion time over {axis}, a line per policy")
            heading = f"Completion time over {axis}" + (f" with {others}" if others else "")
            parts.append(Part(heading, picture=picture))
        if len(groups) > _MOST_CURVES:
            left = f"{len(groups) - _MOST_CURVES} further combinations of values are only in the table."
            parts[-1] = Part(parts[-1].heading, picture=parts[-1].picture, note=left)
    parts.append(_table(rows))
    seeds = max(row.seeds for row in rows)
    lead = f"{len(rows)} combinations of values and policy on the {fabric} model, {seeds} seed{'s' * (seeds > 1)} each."
    return write_sheet(folder / "report.html", f"{name}, swept", lead, parts)


def axis_of(rows: Sequence[Row]) -> str | None:
    """The key for the horizontal axis; None if no key has two values."""
    values = {key: {str(row.parameters[key]): row.parameters[key] for row in rows} for key in rows[0].parameters}
    several = [key for key, found in values.items() if len(found) > 1]
    return max(several, key=lambda key: (all(map(_is_number, values[key].values())), len(values[key])), default=None)


def curve(rows: Sequence[Row], axis: str) -> Figure:
    """Mean completion time divided by the ideal over the values of `axis`: a line per policy, up to its worst seed."""
    figure = Figure(figsize=(8.0, 3.8))
    axes = figure.subplots()
    numbers = all(_is_number(row.parameters[axis]) for row in rows)
    # Keys that end so are sizes, and are read best in a unit of theirs.
    scale = of_sizes(row.parameters[axis] for row in rows) if numbers and axis.endswith("bytes") else None
    names = list(dict.fromkeys(str(row.parameters[axis]) for row in rows))
    for index, policy in enumerate(dict.fromkeys(row.policy for row in rows)):
        own = [row for row in rows if row.policy == policy]
        if numbers:
            own.sort(key=lambda row: float(row.parameters[axis]))
        places = [row.parameters[axis] if numbers else names.index(str(row.parameters[axis])) for row in own]
        if scale is not None:
            places = [scale.of(place) for place in places]
        means = [row.mean_s / row.ideal_s for row in own]
        colour = PALETTE[index % len(PALETTE)]
        axes.plot(places, means, "o-", ms=4, lw=1.6, color=colour, label=policy)
        axes.fill_between(places, means, [row.worst_s / row.ideal_s for row in own], color=colour, alpha=0.15, lw=0)
    if numbers and _is_wide([float(row.parameters[axis]) for row in rows]):
        axes.set_xscale("log")
    if not numbers:
        axes.set_xticks(range(len(names)), names)
    axes.axhline(1.0, color=STYLE["text.color"], lw=1.2, ls="--", label="ideal")
    axes.set_xlabel(axis if scale is None else f"{axis} ({scale.unit})")
    axes.set_ylabel("completion time / ideal")
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.set_title("Mean of the seeds (line) up to the worst seed (shade)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _by_others(rows: Sequence[Row], axis: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        others = ", ".join(f"{key} = {value}" for key, value in row.parameters.items() if key != axis)
        groups.setdefault(others, []).append(row)
    return groups


def _table(rows: Sequence[Row]) -> Part:
    keys = list(rows[0].parameters)
    scale = of_times(row.worst_s for row in rows)
    headings = [*keys, "policy", "m", "seeds", f"mean ({scale.unit})", f"worst ({scale.unit})", "mean / ideal"]
    cells = [
        [
            *(str(row.parameters[key]) for key in keys),
            row.policy,
            str(row.m),
            str(row.seeds),
            digits(scale.of(row.mean_s)),
            digits(scale.of(row.worst_s)),
            f"{row.mean_s / row.ideal_s:.2f}",
        ]
        for row in rows
    ]
    table = Table(headings, cells, names=len(keys) + 1)
    return Part("Every combination", table=table, note="sweep.csv has a line for each seed, with times of flows.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_wide(values: Sequence[float]) -> bool:
    """Whether they are read better on a logarithmic axis."""
    return min(values) > 0 and max(values) >= 10 * min(values)
