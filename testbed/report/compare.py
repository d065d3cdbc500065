# SPDX-License-Identifier: Apache-2.0
"""The comparison of several results: one self-contained HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from testbed.analysis.metrics import PolicyResult
from testbed.report.html import embedded, render, replay_fields
from testbed.report.plots import STYLE, comparison
from testbed.report.replay import replay
from testbed.spec import FABRICS, Experiment


@dataclass(frozen=True, slots=True)
class Compared:
    """The results of one experiment, under a unique name. `ideal_s` is in seconds."""

    name: str
    experiment: Experiment
    results: Sequence[PolicyResult]
    ideal_s: float


def rows_of(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """A row for each policy of each result: its times in seconds, and relative to the ideal and to the first result.

    `to_first` is the ratio of `x_ideal` to that of the same policy in the first result; None where that has no such
    policy. Ratios to the ideal compare results of different sizes.
    """
    first = {result.name: result.mean_s / compared[0].ideal_s for result in compared[0].results}
    rows = []
    for entry in compared:
        for result in entry.results:
            x_ideal = result.mean_s / entry.ideal_s
            rows.append(
                {
                    "result": entry.name,
                    "fabric": entry.experiment.spec.fabric,
                    "policy": result.name,
                    "m": result.m,
                    "runs": len(result.runs),
                    "ideal_s": entry.ideal_s,
                    "mean_s": result.mean_s,
                    "worst_s": result.worst_s,
                    "x_ideal": x_ideal,
                    "to_first": x_ideal / first[result.name] if result.name in first else None,
                    "retransmits": result.retransmits,
                    "verified": result.verified,
                    "right": entry.experiment.spec.workload.RIGHT,
                }
            )
    return rows


def write_comparison(path: Path, compared: Sequence[Compared]) -> Path:
    """Write the page to `path` and return it. It has a replay if the fabrics of all results have the same links."""
    rows = rows_of(compared)
    with mpl.rc_context(mpl.RcParams(STYLE)):
        ratios = [{row["policy"]: row["x_ideal"] for row in rows if row["result"] == entry.name} for entry in compared]
        figure = comparison([entry.name for entry in compared], ratios)
        plot = embedded(figure, "Mean completion time of every policy in every result, relative to the ideal")
    page = render(
        "compare.html.j2",
        fabrics=FABRICS,
        compared=compared,
        rows=rows,
        figure=plot,
        **replay_fields(_replay_of_all(compared)),
    )
    path.write_text(page)
    return path


def _replay_of_all(compared: Sequence[Compared]) -> dict[str, Any] | None:
    """One replay with the runs of all results, or None."""
    moving = [replay(entry.experiment, entry.results) for entry in compared]
    first = moving[0]
    if first is None:
        return None
    runs = []
    for entry, its in zip(compared, moving, strict=True):
        if its is None or any(its[key] != first[key] for key in ("lower", "upper", "links")):
            return None
        runs += [{**run, "name": f"{entry.name}: {run['name']}"} for run in its["runs"]]
    return {**first, "runs": runs}
