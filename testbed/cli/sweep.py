# SPDX-License-Identifier: Apache-2.0
"""`paralet sweep`: simulates a spec with many parameter values, on all cores or on a Dask cluster."""

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from netmodel.printable import printable
from testbed.cli.extras import require
from testbed.cli.options import results_folder, seeds_and_policies
from testbed.errors import InputError
from testbed.result_folder import sole_writer

if TYPE_CHECKING:
    from testbed.spec import FabricName


@click.command(
    epilog="Example: paralet sweep experiments/demo.yaml --fabric fluid --set policies.paralet-8.m=2,8,32 --seeds 10"
)
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE,..",
    multiple=True,
    help="Values for a key of the spec, such as workload.bytes=1048576,4194304 or policies.NAME.m=1,4. Repeatable; "
    "all combinations run.",
)
@seeds_and_policies
@click.option("--fabric", type=click.Choice(["fluid", "packet"]), help="Run on this fabric instead of the spec's.")
@results_folder("a folder NAME-sweep with the results")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Number of processes (default: all cores).")
@click.option("--scheduler", metavar="ADDRESS", help="Run on the workers of this Dask scheduler instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def sweep(
    spec_file: Path,
    settings: tuple[str, ...],
    seeds: int | None,
    policies: tuple[str, ...],
    fabric: "FabricName | None",
    results_dir: Path,
    jobs: int | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Run the spec in the file SPEC on a model with every combination of values and every seed.

    DIR/NAME-sweep/points has a file for every combination and seed, where NAME is the spec's. Existing points are not
    computed again, so an interrupted sweep resumes when the command is repeated. sweep.csv has a line for each policy
    of each point, and report.html the curve over the key with the most values.
    """
    require("models", "paralet sweep")
    from testbed import spec
    from testbed.analysis.sweeps import rows as rows_of
    from testbed.report import sweeps as report
    from testbed.simulate import sweep as sweeps

    if jobs is not None and scheduler is not None:
        raise InputError("give either --jobs (processes on this machine) or --scheduler (a Dask cluster), not both")
    experiment = spec.load(spec_file, policies=policies, seeds=seeds, fabric=fabric)
    if not experiment.spec.fabric_kind.modelled:
        raise InputError(f"a sweep runs on a model, not on {experiment.spec.fabric}; try --fabric fluid")
    values: dict[str, list[Any]] = {}
    for setting in settings:
        key, chosen = _values(setting)
        if key in values:
            raise InputError(f"--set {setting}: {key} already has values; give all values in one --set")
        values[key] = chosen
    asked = sweeps.points(experiment, values)
    folder = results_dir / f"{experiment.spec.name}-sweep"
    click.get_current_context().with_resource(sole_writer(folder))
    results = sweeps.sweep(asked, folder / "points", jobs=jobs, scheduler=scheduler)
    _write_table(folder / "sweep.csv", results)
    rows = rows_of(results)
    page = report.write(folder, experiment.spec.name, experiment.spec.fabric, rows)
    if as_json:
        listed = {"spec": experiment.spec.name, "points": len(results), "rows": [asdict(row) for row in rows]}
        click.echo(json.dumps(listed, indent=2))
        return
    from testbed.cli.tables import console, table
    from testbed.report.scales import digits, of_times

    times = of_times(row.worst_s for row in rows)
    listing = table(
        f"{experiment.spec.name}, {len(results)} points",
        ["values", "policy"],
        ["m", "seeds", f"mean {times.unit}", f"worst {times.unit}", "x ideal"],
    )
    for row in rows:
        said = ", ".join(f"{key}={value}" for key, value in row.parameters.items())
        numbers = (
            str(row.m),
            str(row.seeds),
            digits(times.of(row.mean_s)),
            digits(times.of(row.worst_s)),
            f"{row.mean_s / row.ideal_s:.2f}",
        )
        listing.add_row(said, row.policy, *numbers)
    console().print(listing)
    click.echo(printable(f"Every point: {folder / 'sweep.csv'}"))
    click.echo(printable(f"Report: {page}"))


def _values(setting: str) -> tuple[str, list[Any]]:
    """Parse KEY=VALUE,VALUE: the key and its values, read as YAML. Raises InputError."""
    import yaml

    key, equals, text = setting.partition("=")
    try:
        values = yaml.safe_load(f"[{text}]")
        json.dumps(values)
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"--set {setting}: the values are not YAML that a spec can contain") from error
    if not key or not equals or not values:
        raise InputError(f"--set {setting}: write it like workload.bytes=1048576,4194304")
    return key, values


def _write_table(path: Path, results: list[dict[str, Any]]) -> None:
    keys = list(results[0]["parameters"])
    columns = ["completion_s", "fct_mean_s", "fct_p99_s", "fct_max_s"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*keys, "seed", "policy", "m", *columns, "ideal_s"])
        for result in results:
            for policy in result["policies"]:
                values = [result["parameters"][key] for key in keys]
                measured = [f"{policy[column]:.9g}" for column in columns]
                writer.writerow(
                    [*values, result["seed"], policy["name"], policy["m"], *measured, f"{result['ideal_s']:.9g}"]
                )
