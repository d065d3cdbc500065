# SPDX-License-Identifier: Apache-2.0
"""`paralet cluster`: simulates a cluster at which jobs arrive, run and end."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from netmodel.printable import printable
from testbed.cli.extras import require
from testbed.cli.options import SEEDS_MAX, results_folder
from testbed.result_folder import sole_writer

if TYPE_CHECKING:
    from sim.cluster import Result
    from testbed.analysis.clusters import ClusterMetrics, Times
    from testbed.spec.cluster import ClusterSpec

_COLUMNS = (
    *("strategy", "seed", "job", "gpus", "pattern", "communication", "arrival_s", "ideal_s", "state", "start_s"),
    *("end_s", "leaves", "reason", "preemptions", "paused_s"),
)

_CHANGES = ("paths set", "moved", "preempted")


@click.command(epilog="Example: paralet cluster experiments/clusters/small.yaml")
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option("--seeds", metavar="N", type=click.IntRange(1, SEEDS_MAX), help="Run N seeds instead of the spec's.")
@results_folder("a folder NAME-cluster with the results")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Number of processes (default: all cores).")
@click.option("--replay", is_flag=True, help="Run the jobs of seed 1 with real packets instead, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.pass_context
def cluster(
    context: click.Context,
    spec_file: Path,
    seeds: int | None,
    results_dir: Path,
    jobs: int | None,
    replay: bool,
    as_json: bool,
) -> None:
    """Simulate the jobs of a trace on the cluster of SPEC with every strategy and seed.

    DIR/NAME-cluster, where NAME is the spec's, gets report.html, its plots, summary.json, and jobs.csv with a line for
    each job. A command that was interrupted goes on where it stopped: finished simulations are in the folder runs.

    With --replay the jobs run on an emulated fabric of Open vSwitch or of routers, which needs root, where and when the
    simulation has placed them. SPEC needs the key `replay`. DIR/NAME-cluster gets replay.json. Exit status 1 means that
    bytes were wrong.
    """
    require("models", "paralet cluster")
    from testbed.analysis.clusters import metrics
    from testbed.report.clusters import write
    from testbed.simulate import clusters
    from testbed.spec.cluster import load_cluster

    spec = load_cluster(spec_file)
    if seeds is not None:
        spec = spec.model_copy(update={"seeds": seeds})
    folder = results_dir / f"{spec.name}-cluster"
    context.with_resource(sole_writer(folder))
    if replay:
        require("fabric", "--replay")
        from testbed.cli.cluster_replay import replay as replayed

        context.exit(0 if replayed(spec, folder, as_json=as_json) else 1)
    results = clusters.run(spec, folder / "runs", jobs)
    gpus = spec.cluster.shape.gpus
    found = {name: metrics(runs, gpus) for name, runs in results.items()}
    summary = _summary(spec, found)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    _write_jobs(folder / "jobs.csv", results)
    title = _title(spec, len(next(iter(results.values()))[0].outcomes))
    page = write(folder, spec.name, title, results, found, gpus)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    _print(title, found)
    click.echo(printable(f"Every job and the plots: {folder}"))
    click.echo(printable(f"Report: {page}"))


def _summary(spec: "ClusterSpec", found: Mapping[str, "ClusterMetrics"]) -> dict[str, Any]:
    strategies = [
        {**strategy.model_dump(), "queue": strategy.queue or spec.queue, **asdict(found[strategy.name])}
        for strategy in spec.strategies
    ]
    return {
        "spec": spec.name,
        "gpus": spec.cluster.shape.gpus,
        "fidelity": spec.fidelity,
        "seeds": spec.seeds,
        "strategies": strategies,
    }


def _write_jobs(path: Path, results: Mapping[str, Sequence["Result"]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for name, runs in results.items():
            for seed, run in enumerate(runs, start=1):
                for outcome in run.outcomes:
                    job = outcome.job
                    times = [
                        _exact(job.arrival_s),
                        _exact(job.run_s),
                        outcome.state,
                        _exact(outcome.start_s),
                        _exact(outcome.end_s),
                    ]
                    share = f"{job.communication:.6g}"
                    pauses = [len(outcome.pauses), _exact(outcome.paused_s)]
                    writer.writerow(
                        [
                            name,
                            seed,
                            job.name,
                            job.gpus,
                            job.pattern,
                            share,
                            *times,
                            outcome.leaves,
                            outcome.reason,
                            *pauses,
                        ]
                    )


def _exact(time_s: float | None) -> str:
    return "" if time_s is None else f"{time_s:.3f}"


def _print(title: str, found: Mapping[str, "ClusterMetrics"]) -> None:
    from sim.cluster import CAUSES
    from testbed.cli.tables import console, table
    from testbed.report.scales import digits

    times = table(
        f"{title}; seconds",
        ["strategy"],
        ["JCT", "p50", "p99", "JWT", "p50", "p99", "JRT", "p50", "p99"],
    )
    counted: dict[str, list[float]] = {
        **{cause: [one.failures.get(cause, 0.0) for one in found.values()] for cause in CAUSES},
        "paths set": [one.paths_set for one in found.values()],
        "moved": [one.paths_moved for one in found.values()],
        "preempted": [one.preemptions for one in found.values()],
    }
    counted = {what: counts for what, counts in counted.items() if any(counts)}  # columns of zeros say nothing
    use = table(
        "JRT x ideal, and failed placements per seed",
        ["strategy"],
        ["x ideal", "over leaves", "instability", "GPUs in use", "not ended", *counted],
    )
    for row, (name, outcome) in enumerate(found.items()):
        shown = [*_three(outcome.completion_s), *_three(outcome.waiting_s), *_three(outcome.running_s)]
        times.add_row(name, *shown)
        others = sum(number for state, number in outcome.jobs.items() if state != "ended")
        use.add_row(
            name,
            f"{outcome.stretch:.3f}",
            f"{outcome.stretch_over_leaves.mean:.3f}",
            f"{outcome.instability:.3f}",
            f"{outcome.utilisation:.0%}",
            f"{others:,}",
            *(digits(counts[row], 1) for counts in counted.values()),
        )
    out = console()
    out.print(times)
    out.print(use)


def _title(spec: "ClusterSpec", jobs: int) -> str:
    count = "1 seed" if spec.seeds == 1 else f"{spec.seeds} seeds"
    source = f"one every {spec.trace.mean_gap_s:g} s" if spec.trace else f"of {Path(_file(spec)).name}"
    return f"{spec.cluster.shape.gpus:,} GPUs, {jobs:,} jobs, {source}, {spec.queue}, {count}"


def _file(spec: "ClusterSpec") -> str:
    return "" if spec.trace_file is None else spec.trace_file.file


def _three(times: "Times") -> list[str]:
    return [f"{value:,.0f}" for value in (times.mean, times.p50, times.p99)]
