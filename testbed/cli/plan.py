# SPDX-License-Identifier: Apache-2.0
"""`paralet plan`: compares fabrics, scales and strategies for a training job."""

import json
from pathlib import Path

import click

from testbed.cli.extras import require
from testbed.cli.options import results_folder
from testbed.errors import InputError
from testbed.result_folder import sole_writer


@click.command(epilog="Example: paralet plan experiments/plan/gpt_175b.yaml")
@click.argument("job_file", metavar="JOB", type=click.Path(path_type=Path))
@click.option(
    "--prices", "prices_file", metavar="FILE", type=click.Path(path_type=Path), help="Prices instead of ours."
)
@results_folder("a folder NAME-plan with the results")
@click.option("--jobs", type=click.IntRange(1), help="Processes over which scales are spread. Default: this one only.")
@click.option("--scheduler", metavar="ADDRESS", help="Spread scales over the workers of this Dask scheduler.")
@click.option("--json", "as_json", is_flag=True, help="Print all points as one JSON object instead of a table.")
def plan(
    job_file: Path,
    prices_file: Path | None,
    results_dir: Path,
    jobs: int | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Find the best strategy of a training job on every fabric and at every scale of the file JOB.

    DIR/NAME-plan gets report.html, points.csv with all points, trade_off.png, and chosen.yaml, a spec of the chosen
    point for `paralet run`; other jobs of a mix have chosen-JOB.yaml. NAME is the job's.
    """
    require("models", "paralet plan")
    from netmodel import load_yaml
    from testbed.research.cluster_plans import page
    from testbed.research.cluster_plans.experiment import job_points, left_out, write_spec
    from testbed.research.cluster_plans.job import Job
    from testbed.research.cluster_plans.points import Point, Refused, choice, pareto, points
    from testbed.research.cluster_plans.prices import load_prices

    if jobs is not None and scheduler is not None:
        raise InputError("give either --jobs (processes on this machine) or --scheduler (a Dask cluster), not both")
    job, prices = load_yaml(job_file, Job), load_prices(prices_file)
    folder = results_dir / f"{job.name}-plan"
    click.get_current_context().with_resource(sole_writer(folder))
    try:
        every = list(points(job, prices, jobs=jobs, scheduler=scheduler))
    except ValueError as error:
        raise InputError(f"{job_file}: {error}") from None
    found, refused = (
        [entry for entry in every if isinstance(entry, Point)],
        [entry for entry in every if isinstance(entry, Refused)],
    )
    if not found:
        raise InputError(f"{job_file}: no fabric has a point; {refused[0].gpus} GPUs: {refused[0].reason}")
    chosen = choice(job, found)
    report = page.write(folder, job, prices, found, refused, chosen)
    for old in folder.glob("chosen*.yaml"):
        old.unlink()
    notes = [] if chosen is not None else ["No spec: no point is within the limits."]
    for number, (member, point) in enumerate([] if chosen is None else job_points(job, chosen)):
        spec = folder / (f"chosen-{member.name}.yaml" if number else "chosen.yaml")
        try:
            spec.write_text(write_spec(member, point))
            notes += [f"Spec: {spec}", *filter(None, [left_out(point)])]
        except ValueError as error:
            notes.append(f"No spec of {member.name}: {error}.")
    if as_json:
        listed = {
            "name": job.name,
            "prices": prices.dated,
            "points": [page.as_row(point) for point in found],
            "pareto": [found.index(point) for point in pareto(found)],
            "chosen": None if chosen is None else found.index(chosen),
            "refused": [{"gpus": entry.gpus, **entry.fabric.model_dump(), "reason": entry.reason} for entry in refused],
        }
        click.echo(json.dumps(listed, indent=2))
        return
    from testbed.cli.tables import console, table

    listing = table(
        f"{job.name}: {len(found)} points, {len(refused)} refused; prices of {prices.dated}",
        ["fabric"],
        ["GPUs", "iteration s", "exposed s", "use %", "capital M$", "MW", "days", "$/Mtoken"],
    )
    for point in pareto(found):
        numbers = (
            point.iteration_s,
            point.exposed_s,
            100 * point.utilisation,
            point.capital_usd / 1e6,
            point.watts / 1e6,
            point.days,
        )
        cells = [f"{number:.4g}" for number in (*numbers, 1e6 * point.usd_per_token)]
        listing.add_row(point.label, f"{point.gpus:,}", *cells, style="bold" if point == chosen else None)
    out = console()
    out.print(listing)
    if chosen is not None:
        out.print(
            f"Chosen by {job.choose}{job.within.said}: {chosen.label}, {chosen.gpus:,} GPUs; {page.strategies(chosen)}"
        )
    out.print(f"Report: {report}", soft_wrap=True)
    for line in notes:
        out.print(line, soft_wrap=True)
