# SPDX-License-Identifier: Apache-2.0
"""The report of a plan: one self-contained HTML file, the plot beside it, and all points as CSV and JSON."""

import base64
import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from testbed.report.plots import STYLE
from testbed.research.cluster_plans.job import Job
from testbed.research.cluster_plans.plots import trade_off
from testbed.research.cluster_plans.points import Point, Refused, pareto
from testbed.research.cluster_plans.prices import Prices
from testbed.training.strategies import Strategy

_DPI = 144
_SHOWN = 200
"""Points in the page's table; the CSV file has all."""


def as_row(point: Point) -> dict[str, Any]:
    """A point as one flat mapping, for JSON and CSV."""
    row: dict[str, Any] = {"label": point.label, **point.fabric.model_dump()}
    for field in fields(Point):
        value = getattr(point, field.name)
        if field.name == "parts":
            row |= {"switches": value.switches, "network_tiers": value.tiers, "links": value.links}
        elif field.name == "strategy":
            row |= {field.name: getattr(value, field.name) for field in fields(Strategy)}
        elif field.name == "shares":
            row |= {"jobs": [asdict(share) for share in value]} if value else {}
        elif field.name != "fabric":
            row[field.name] = value
    return row


def strategies(point: Point) -> str:
    """The strategies of a point in words; of a mix with the jobs' names and parts of the time."""
    if not point.shares:
        return said(point.strategy)
    return "; ".join(f"{share.name} ({100 * share.weight:.0f} %): {said(share.strategy)}" for share in point.shares)


def said(strategy: Strategy) -> str:
    """A strategy in a few words."""
    words = [f"tensor {strategy.tensor}", f"pipeline {strategy.pipeline}", f"data {strategy.data}"]
    words += [f"expert {strategy.expert}"] if strategy.expert > 1 else []
    words += [f"{strategy.microbatches} x {strategy.microbatch}"]
    words += [f"{strategy.interleave} chunks"] if strategy.interleave > 1 else []
    words += [f"ZeRO {strategy.zero}"] if strategy.zero else []
    words += [f"{strategy.recomputation} recomputation"] if strategy.recomputation != "none" else []
    return ", ".join(words)


def write(
    folder: Path, job: Job, prices: Prices, found: Sequence[Point], refused: Sequence[Refused], chosen: Point | None
) -> Path:
    """Write `report.html`, `trade_off.png` and `points.csv` into `folder`. Returns the path of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(mpl.RcParams(STYLE)):
        figure, vector = trade_off(found, chosen), io.BytesIO()
        figure.savefig(folder / "trade_off.png", dpi=_DPI, metadata={"Software": None})
        figure.savefig(vector, format="svg", metadata={"Date": None})
    data = base64.b64encode(vector.getvalue()).decode()
    alt = "Days of training and cost per token of every point"
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("testbed.research.cluster_plans", "."), PackageLoader("testbed.report", ".")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    best = pareto(found)
    text = environment.get_template("plan.html.j2").render(
        job=job,
        prices=prices,
        chosen=chosen,
        best=best,
        shown=found[:_SHOWN],
        total=len(found),
        refused=refused[:_SHOWN],
        refusals=len(refused),
        strategies=strategies,
        figure=Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(alt, data),
    )
    path = folder / "report.html"
    path.write_text(text)
    _table(folder / "points.csv", found)
    return path


def _table(path: Path, found: Sequence[Point]) -> None:
    rows = [as_row(point) for point in found]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["label"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
