# SPDX-License-Identifier: Apache-2.0
"""Writes the report: one self-contained HTML file with numbers and plots, and the plots as PNG files beside it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from markupsafe import Markup

from netmodel import Topology, top_switches
from netmodel.times import format_seconds
from testbed.analysis import metrics
from testbed.analysis.arranged import traffic_of
from testbed.analysis.busy import busy_sentence
from testbed.analysis.flows import FlowCheck
from testbed.analysis.jobs import fairness, speeds
from testbed.analysis.link_sharing import sharing
from testbed.analysis.metrics import PolicyResult
from testbed.analysis.probing_cost import probing_cost
from testbed.analysis.recovery import fused_ports, paces_bps, recovery_s, repinned_s
from testbed.analysis.short_messages import short_sentence
from testbed.analysis.training_steps import step_times
from testbed.arrangements import Section
from testbed.provenance import Provenance
from testbed.report.html import render, replay_fields, save_and_embed, save_for_print
from testbed.report.plots import PLOTS, STYLE, Plot
from testbed.report.replay import replay
from testbed.report.scales import of_rates, of_times
from testbed.spec import Experiment, Instance, dump


def write(
    folder: Path,
    experiment: Experiment,
    results: Sequence[PolicyResult],
    checks: Sequence[FlowCheck],
    ideal_s: float,
    provenance: Provenance | None,
) -> Path:
    """Write `report.html` and the plots into `folder`. Returns the path of the report."""
    trained, first = step_times(experiment, results), Instance(experiment, experiment.seeds[0])
    page = render(
        "report.html.j2",
        times=of_times(result.worst_s for result in results),
        rates=of_rates(pace for result in results for run in result.runs for pace in paces_bps(run)),
        experiment=experiment,
        spec=experiment.spec,
        spec_text=dump(experiment.spec, whole=False),
        delays=_delays(experiment.topology),
        ideal_s=ideal_s,
        provenance=provenance,
        policies=[_policy_row(experiment, result, ideal_s) for result in results],
        jobs=[_jobs_row(experiment, result) for result in results] if len(experiment.jobs) > 1 else [],
        recoveries=[_recovery_row(experiment, result) for result in results] if experiment.spec.events else [],
        sharings=[_sharing_row(result) for result in results] if len(experiment.jobs) > 1 else [],
        spines=top_switches(experiment.topology),
        placement=list(zip(first.hosts, first.leaves, strict=True)),
        rule=experiment.spec.placement.rule,
        services=[_service_row(result) for result in results if result.service],
        probings=list(_probing_rows(experiment, results)),
        checks=_check_rows(results, checks),
        sections=_sections(experiment, results),
        relays=_relay_rows(first),
        trained=trained,
        busy=busy_sentence(run for result in results for run in result.runs),
        short=short_sentence(experiment, ideal_s),
        seconds=sum(sum(result.completions_s) for result in results),
        figures=_figures(folder, experiment, results, ideal_s),
        **replay_fields(replay(experiment, results)),
    )
    path = folder / "report.html"
    path.write_text(page)
    return path


def write_plots(
    folder: Path, experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float, formats: Sequence[str]
) -> list[Path]:
    """Write the report's plots into `folder` as files of these formats: "svg" or "pdf". Returns the files."""
    written = []
    for plot in _telling(experiment, results):
        for name in formats:
            with mpl.rc_context(mpl.RcParams(STYLE)):
                written.append(folder / f"{plot.name}.{name}")
                save_for_print(plot.draw(experiment, results, ideal_s), written[-1])
    return written


def _telling(experiment: Experiment, results: Sequence[PolicyResult]) -> list[Plot]:
    return [plot for plot in PLOTS if plot.tells(experiment, results)]


def _figures(
    folder: Path, experiment: Experiment, results: Sequence[PolicyResult], ideal_s: float
) -> dict[str, Markup]:
    """Draw each plot into its PNG file. Returns them for the page, by name."""
    drawn = {}
    for plot in _telling(experiment, results):
        with mpl.rc_context(mpl.RcParams(STYLE)):
            figure = plot.draw(experiment, results, ideal_s)
            drawn[plot.name] = save_and_embed(figure, folder / f"{plot.name}.png", plot.alt)
    return drawn


def _delays(topology: Topology) -> str:
    """The delays that the topology gives to links, in words; empty where it gives none."""
    found = sorted({link.delay_s for link in topology.links if link.delay_s is not None})
    return " to ".join(format_seconds(delay_s) for delay_s in dict.fromkeys((*found[:1], *found[-1:])))


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


def _jobs_row(experiment: Experiment, result: PolicyResult) -> dict[str, Any]:
    index = [fairness(flows) for flows in result.flows]
    pace = [speeds(flows) for flows in result.flows]
    return {
        "name": result.name,
        "mean_fairness": fmean(index),
        "worst_fairness": min(index),
        "slowdowns": [fmean(1 / run[n] for run in pace) for n in range(len(experiment.jobs))],
    }


def _sharing_row(result: PolicyResult) -> dict[str, Any]:
    by_run = [sharing(flows) for flows in result.flows]
    return {
        "name": result.name,
        "by_spine": {
            spine: [f"{job} {count / 1e6:.1f}" for job, count in sorted(jobs.items())]
            for spine, jobs in by_run[0].by_spine.items()
        },
        "links": by_run[0].links,
        "shared_links": max(shared.shared_links for shared in by_run),
        "most_flows": max(shared.most_flows for shared in by_run),
        "strays": sum(shared.strays for shared in by_run),
    }


def _recovery_row(experiment: Experiment, result: PolicyResult) -> dict[str, Any]:
    fused = fused_ports(experiment)
    return {
        "name": result.name,
        "recovery_s": [moment for run in result.runs for moment in recovery_s(run, fused)],
        "cuts_s": [
            (event.done_s - event.at_s, None if event.sent_s is None else event.sent_s - event.at_s)
            for run in result.runs
            for event in run.events
            if event.what.startswith("cut ")
        ],
        "events": [[(event.what, event.at_s, event.done_s) for event in run.events] for run in result.runs],
        "paces": [paces_bps(run) for run in result.runs],
    }


def _sections(experiment: Experiment, results: Sequence[PolicyResult]) -> list[Section]:
    """What the arrangements add to the report."""
    runs = [flows for result in results for flows in result.flows]
    return [section for arrangement in experiment.arrangements for section in arrangement.sections(traffic_of(runs))]


def _relay_rows(first: Instance) -> list[tuple[str, str, str]]:
    """For each relayed pair of ranks with the first seed: sender, receiver, and the sending NIC at every hop."""
    experiment, rows = first.experiment, []
    for job in experiment.jobs:
        for ways in experiment.spec.workload.relayed(job.size).values():
            ranks = [job.first + rank for rank in ways]
            stops = []
            for near, far in pairwise(ranks):
                nic = experiment.topology.host(first.hosts[near]).nics[first.nics_between(near, far)[0]].name
                stops.append(f"{first.hosts[near]} ({nic})")
            ends = first.hosts[ranks[0]], first.hosts[ranks[-1]]
            rows.append((*ends, " → ".join([*stops, ends[1]])))
    return rows


def _service_row(result: PolicyResult) -> dict[str, Any]:
    forecasts = [run.service.get("forecast") or {} for run in result.runs]
    hits, misses = (sum(forecast.get(what, 0) for forecast in forecasts) for what in ("hits", "misses"))
    clients: Counter[str] = Counter()
    for run in result.runs:
        clients.update(run.path_clients)
    return {
        "name": result.name,
        "clients": clients,
        "foreseen": hits + misses,
        "hit_rate": f"{hits / (hits + misses):.0%}" if hits + misses else "-",
    }


def _probing_rows(experiment: Experiment, results: Sequence[PolicyResult]) -> Iterator[dict[str, Any]]:
    """For each run that plans by measured paths: what probing costs, and how soon events were known of."""
    for result in results:
        for run in result.runs:
            cost = probing_cost(run, experiment.topology.ip_header_bytes)
            if cost is not None:
                repinned = zip(run.events, repinned_s(run), strict=True)
                lossy = [" or ".join(each.links) for each in run.lossy_links]
                yield {"name": result.name, "seed": run.seed, "cost": cost, "repinned": list(repinned), "lossy": lossy}


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
