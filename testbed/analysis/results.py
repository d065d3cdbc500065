# SPDX-License-Identifier: Apache-2.0
"""The result folder: `summary.json` for programs, and CSV files with details."""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from testbed.analysis import metrics
from testbed.analysis.arranged import traffic_of
from testbed.analysis.busy import too_busy
from testbed.analysis.flows import FlowCheck, RunFlows
from testbed.analysis.jobs import fairness
from testbed.analysis.metrics import PolicyResult, Uplink
from testbed.analysis.probing_cost import probing_cost
from testbed.analysis.recovery import fused_ports, paces_bps, recovery_s, repinned_s
from testbed.analysis.training_steps import StepTimes, step_times
from testbed.provenance import Provenance
from testbed.spec import Experiment, Instance

OBSERVATIONS = "observations.json"
SUMMARY = "summary.json"
KEPT = "runs.jsonl"
PROVENANCE = "provenance.json"
SPEC = "spec.yaml"
LOGS = "logs"
JOURNAL = f"{LOGS}/journal.jsonl"


def ideal_of(experiment: Experiment) -> float:
    """Ideal completion time in seconds: the minimum over the seeds, a lower bound for every run."""
    return min(Instance(experiment, seed).ideal_s() for seed in experiment.seeds)


def summary(
    experiment: Experiment,
    results: Sequence[PolicyResult],
    checks: Iterable[FlowCheck],
    provenance: Provenance | None,
) -> dict[str, Any]:
    """The contents of `summary.json`. Its keys are a stable interface; details belong in other files."""
    checked = [check for check in checks if check.checked]
    instances = dict.fromkeys(flows.instance for result in results for flows in result.flows)
    times = {entry.name: entry for entry in step_times(experiment, results)}
    return {
        "spec": experiment.spec.model_dump(mode="json", exclude_unset=True),
        "provenance": None if provenance is None else asdict(provenance),
        "fabric": experiment.spec.fabric,
        "placement": list(experiment.first_hosts),
        "seeds": list(experiment.seeds),
        "ideal_s": min(instance.ideal_s() for instance in instances),
        "policies": [
            {
                "name": result.name,
                "m": result.m,
                "completions_s": result.completions_s,
                "mean_s": result.mean_s,
                "worst_s": result.worst_s,
                "verified": result.verified,
                "retransmits": result.retransmits,
                "wait_s": [run.wait_s for run in result.runs],
                **_of_jobs(experiment, result),
                **_of_events(experiment, result),
                **_of_service(experiment, result),
                **_of_arrangements(experiment, result),
                **_of_training(times.get(result.name), result),
            }
            for result in results
        ],
        "too_busy": any(too_busy(run) for result in results for run in result.runs),
        "predictions": {"checked": len(checked), "matched": sum(check.matched for check in checked)},
    }


def _of_jobs(experiment: Experiment, result: PolicyResult) -> dict[str, Any]:
    """Entries for an experiment with several jobs."""
    if len(experiment.jobs) < 2:
        return {}
    times = {job.name: [run.jobs[n].completion_s for run in result.runs] for n, job in enumerate(experiment.jobs)}
    return {"jobs": times, "fairness": [fairness(flows) for flows in result.flows]}


def _of_events(experiment: Experiment, result: PolicyResult) -> dict[str, Any]:
    """Entries for an experiment with events."""
    if not experiment.spec.events:
        return {}
    return {
        "events": [[event.model_dump() for event in run.events] for run in result.runs],
        "recovery_s": [recovery_s(run, fused_ports(experiment)) for run in result.runs],
        "paces_bps": [paces_bps(run) for run in result.runs],
        **({"repinned_s": [repinned_s(run) for run in result.runs]} if _measures(result) else {}),
    }


def _measures(result: PolicyResult) -> bool:
    return any(run.service.get("measured") for run in result.runs)


def _of_service(experiment: Experiment, result: PolicyResult) -> dict[str, Any]:
    """Entries for policies with a path service: counters of the path service and of the path clients, by run.

    With measured paths also what probing costs, and the links that lost packets.
    """
    if not result.service:
        return {}
    measured: dict[str, Any] = {}
    if _measures(result):
        costs = [probing_cost(run, experiment.topology.ip_header_bytes) for run in result.runs]
        lossy = [[link.model_dump() for link in run.lossy_links] for run in result.runs]
        measured = {"probing": [cost and asdict(cost) for cost in costs], "lossy_links": lossy}
    return {
        **measured,
        "forecasts": [run.service.get("forecast") for run in result.runs],
        "service": [run.service.get("counts", {}) for run in result.runs],
        "clients": [run.path_clients for run in result.runs],
    }


def _of_training(times: StepTimes | None, result: PolicyResult) -> dict[str, Any]:
    """Entries for a training script: seconds of a step, and the losses by run, job and step."""
    if times is None:
        return {}
    return {
        "step_s": {"median": times.median_s, "p99": times.p99_s},
        "losses": [[job.losses for job in run.jobs] for run in result.runs],
        "largest_loss_difference": times.largest_difference,
    }


def _of_arrangements(experiment: Experiment, result: PolicyResult) -> dict[str, Any]:
    """Entries of what is set up on the fabric for the jobs."""
    entries: dict[str, Any] = {}
    for arrangement in experiment.arrangements:
        entries |= arrangement.summary(traffic_of(result.flows))
    return entries


def write_tables(
    folder: Path, experiment: Experiment, results: Sequence[PolicyResult], checks: Iterable[FlowCheck]
) -> None:
    """Write the CSV files: steps, jobs, pairs, lanes, links, throughput and predictions."""
    every = [flows for result in results for flows in result.flows]
    runs = [flows.run for flows in every]
    links = metrics.uplinks(experiment.topology)
    text = cache(str)
    _table(
        folder / "steps.csv",
        ["policy", "seed", "step", "duration_s"],
        (
            (run.policy, run.seed, step, f"{duration:.9f}")
            for run in runs
            for step, duration in enumerate(metrics.step_durations_s(run))
        ),
    )
    _table(
        folder / "jobs.csv",
        ["policy", "seed", "job", "ranks", "hosts", "completion_s", "ideal_alone_s", "fairness"],
        (
            (
                run.policy,
                run.seed,
                job.name,
                job.size,
                " ".join(flows.instance.hosts[job.first : job.first + job.size]),
                f"{record.completion_s:.9f}",
                f"{flows.instance.ideal_s(job):.9f}",
                f"{fairness(flows):.4f}",
            )
            for flows in every
            for run in [flows.run]
            for job, record in zip(experiment.jobs, run.jobs, strict=True)
        ),
    )
    _table(
        folder / "flows.csv",
        ["policy", "seed", "src_rank", "dst_rank", "src_host", "dst_host", "bytes", "completion_s"],
        (
            (
                run.policy,
                run.seed,
                flow.src,
                flow.dst,
                hosts[flow.src],
                hosts[flow.dst],
                flow.bytes,
                f"{flow.completion_s:.9f}",
            )
            for flows in every
            for run, hosts in [(flows.run, flows.instance.hosts)]
            for flow in run.flows
        ),
    )
    lane_fields = ["peer", "lane", "port", "port_method", "tx_bytes", "tx_packets", "flowlets", "retransmits"]
    lane_fields += ["timeouts", "rtt_s"]
    lane_values = attrgetter(*lane_fields)
    _table(
        folder / "lanes.csv",
        ["policy", "seed", "rank", "host", *lane_fields],
        (
            (
                run.policy,
                run.seed,
                entry.rank,
                hosts[entry.rank],
                *lane_values(entry.lane),
            )
            for flows in every
            for run, hosts in [(flows.run, flows.instance.hosts)]
            for entry in run.lanes
        ),
    )
    _table(
        folder / "links.csv",
        [
            "policy",
            "seed",
            "port",
            "uplink_to",
            "tx_bytes",
            "tx_packets",
            "dropped",
            "lost",
            "corrupted",
            "marked",
            "late",
            "predicted_payload_bytes",
        ],
        (row for result in results for flows in result.flows for row in _link_rows(flows, links)),
    )
    _table(
        folder / "throughput.csv",
        ["policy", "seed", "at_s", "to_hosts_bps"],
        ((run.policy, run.seed, f"{at_s:.3f}", round(rate)) for run in runs for at_s, rate in metrics.goodput_bps(run)),
    )
    _table(
        folder / "predictions.csv",
        ["policy", "seed", "src", "dst", "src_port", "tx_bytes", "predicted", "observed", "matched"],
        (
            (
                check.policy,
                check.seed,
                text(check.flow.src),
                text(check.flow.dst),
                check.flow.src_port,
                check.tx_bytes,
                " ".join(check.predicted),
                " ".join(check.observed),
                check.matched if check.checked else "not observed",
            )
            for check in checks
        ),
    )


def write_provenance(folder: Path, provenance: Provenance) -> None:
    """Write `provenance.json` into the result folder of a run that begins."""
    (folder / PROVENANCE).write_text(json.dumps(asdict(provenance), indent=2) + "\n")


def read_provenance(folder: Path) -> Provenance | None:
    """What `write_provenance` wrote. None: the folder has no such file. Raises ValueError for a damaged file."""
    try:
        written = (folder / PROVENANCE).read_bytes()
    except FileNotFoundError:
        return None
    return TypeAdapter(Provenance).validate_json(written, strict=True)


def write_summary(folder: Path, contents: dict[str, Any]) -> None:
    """Write `summary.json`, the outcome for programs, into the result folder."""
    (folder / SUMMARY).write_text(json.dumps(contents, indent=2) + "\n")


def prepare(folder: Path) -> None:
    """Create the result folder and remove files that an earlier run of the same name left there."""
    logs = folder / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    for pattern in (KEPT, "*.csv", "*.png", "*.json", "report.html", SPEC, f"{LOGS}/*"):
        for old in folder.glob(pattern):
            if not old.is_dir():
                old.unlink()


def point_latest(folder: Path) -> bool:
    """Point the link `latest`, beside `folder`, to it. The change is atomic.

    False, and nothing is changed, where a file or folder has that name.
    """
    latest, fresh = folder.parent / "latest", folder.parent / f".latest-{os.getpid()}"
    if latest.exists() and not latest.is_symlink():
        return False
    fresh.symlink_to(folder.name)
    fresh.replace(latest)
    return True


def _link_rows(flows: RunFlows, links: Sequence[Uplink]) -> Iterable[tuple[object, ...]]:
    run, loads = flows.run, flows.predicted_loads(link.port for link in links)
    known = flows.instance.experiment.predicts
    predicted = {str(link.port): (link.spine, load if known else "") for link, load in zip(links, loads, strict=True)}
    for load in run.links:
        spine, payload = predicted.get(load.port, ("", ""))
        sent = load.tx_bytes, load.tx_packets, load.dropped, load.lost, load.corrupted, load.marked, load.late
        yield run.policy, run.seed, load.port, spine, *sent, payload


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
