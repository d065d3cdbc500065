# SPDX-License-Identifier: Apache-2.0
"""Puts numbers and plots together into one HTML file that needs nothing else, and the plots beside it as PNG files."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from testbed import metrics
from testbed.metrics import FlowCheck, PolicyResult
from testbed.report.plots import PLOTS, STYLE, Plot
from testbed.spec import Experiment, dump, leaf_names

_PNG_DPI = 144


def write(
    folder: Path, experiment: Experiment, results: Sequence[PolicyResult], checks: Sequence[FlowCheck], ideal_s: float
) -> Path:
    """Write `report.html` and the plots into `folder`; the path of the report."""
    figures = {plot.name: _save(plot, folder, experiment, results, ideal_s) for plot in PLOTS}
    environment = Environment(
        loader=PackageLoader("testbed.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        experiment=experiment,
        spec=experiment.spec,
        spec_text=dump(experiment.spec),
        ideal_s=ideal_s,
        policies=[_policy_row(experiment, result, ideal_s) for result in results],
        placement=list(zip(experiment.hosts, leaf_names(experiment), strict=True)),
        rule=experiment.spec.placement.rule,
        checks=_check_rows(results, checks),
        seconds=sum(sum(result.completions_s) for result in results),
        figures=figures,
    )
    path = folder / "report.html"
    path.write_text(page)
    return path


def _save(plot: Plot, folder: Path, experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float) -> Markup:
    """Draw a plot into its PNG file; an <img> with the same as SVG, which is sharp at every size."""
    with mpl.rc_context(mpl.RcParams(STYLE)):
        figure = plot.draw(experiment, results, ideal_s)
        figure.savefig(folder / f"{plot.name}.png", dpi=_PNG_DPI)
        vector = io.BytesIO()
        figure.savefig(vector, format="svg", metadata={"Date": None})
    data = base64.b64encode(vector.getvalue()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(plot.alt, data)


def _policy_row(experiment: Experiment, result: PolicyResult, ideal_s: float) -> dict[str, Any]:
    links = metrics.uplinks(experiment.topology)
    balances = [metrics.balance(metrics.loads(run, links)) for run in result.runs]
    return {
        "result": result,
        "mean_ratio": result.mean_s / ideal_s,
        "worst_ratio": result.worst_s / ideal_s,
        "max_over_mean": max(balance.max_over_mean for balance in balances),
        "jain": min(balance.jain for balance in balances),
        "slowest_flow_s": max(flow.completion_s for run in result.runs for flow in run.flows),
    }


def _check_rows(results: Sequence[PolicyResult], checks: Sequence[FlowCheck]) -> list[dict[str, Any]]:
    rows = []
    for result in results:
        own = [check for check in checks if check.policy == result.name]
        checked = [check for check in own if check.checked]
        rows.append(
            {
                "name": result.name,
                "flows": len(own),
                "checked": len(checked),
                "matched": sum(check.matched for check in checked),
                "wrong": [check for check in checked if not check.matched][:5],
            }
        )
    return rows
