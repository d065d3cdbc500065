# SPDX-License-Identifier: Apache-2.0
"""`paralet report`: writes the report of a result folder again, or compares several."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.extras import require
from testbed.cli.options import FileToWrite, to_write
from testbed.errors import InputError
from testbed.result_folder import sole_writer

if TYPE_CHECKING:
    from testbed.analysis.observations import Observations
    from testbed.spec import Experiment


@click.command(epilog="Example: paralet report results/before results/after --out comparison.html")
@click.argument(
    "folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False)
)
@click.option(
    "--out",
    metavar="FILE",
    type=FileToWrite(),
    help="Where to write the comparison of several folders.  [default: comparison.html]",
)
@click.option(
    "--plots",
    type=click.Choice(["svg", "pdf"]),
    multiple=True,
    help="Also write the plots of one FOLDER in this format, for papers: text stays text. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary, or the rows of the comparison, as JSON.")
def report(folders: tuple[Path, ...], out: Path | None, plots: tuple[str, ...], as_json: bool) -> None:
    """Write the report of one result folder again, or compare several result folders in one page.

    A result FOLDER is what `paralet run` has left in results/NAME. Of an interrupted run, the report has the seeds of
    which every policy's run has ended.
    """
    require("models", "paralet report")
    from testbed.cli.outcome import evaluate

    for folder in folders:
        _check_begun(folder)
    if plots and len(folders) > 1:
        raise InputError("--plots writes the plots of one result folder: give one FOLDER")
    if len(folders) > 1:
        _compare(folders, to_write(out or Path("comparison.html")), as_json)
        return
    click.get_current_context().with_resource(sole_writer(folders[0], option=None))
    experiment, observations = _ended(folders[0])
    outcome = evaluate(experiment, observations, folders[0])
    outcome.draw(folders[0], plots)
    outcome.show(as_json)


def _check_begun(folder: Path) -> None:
    from testbed.analysis import results

    if not (folder / results.SPEC).is_file():
        raise InputError(f"{folder} is not a result folder of a run: it has no {results.SPEC}")


def _ended(folder: Path) -> "tuple[Experiment, Observations]":
    from testbed import spec
    from testbed.analysis import results
    from testbed.cli.outcome import ended_of

    return ended_of(folder, spec.load(folder / results.SPEC))


def _compare(folders: Sequence[Path], out: Path, as_json: bool) -> None:
    from testbed.analysis import results
    from testbed.analysis.flows import flows_of
    from testbed.analysis.metrics import by_policy
    from testbed.cli.tables import console, table
    from testbed.report import Compared, write_comparison
    from testbed.report.compare import rows_of
    from testbed.report.scales import said

    ended = [_ended(folder) for folder in folders]
    compared = [
        Compared(
            name,
            experiment,
            by_policy(experiment, flows_of(experiment, observations)),
            results.ideal_of(experiment),
        )
        for name, (experiment, observations) in zip(_names(folders), ended, strict=True)
    ]
    page = write_comparison(out, compared)
    rows = rows_of(compared)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    shown = table("", ["result", "policy"], ["m", "mean", "worst", "x ideal", f"to {compared[0].name}"])
    for row in rows:
        to_first = "-" if row["to_first"] is None else f"{row['to_first']:.2f}"
        times = [said(row[key]) for key in ("mean_s", "worst_s")]
        shown.add_row(row["result"], row["policy"], str(row["m"]), *times, f"{row['x_ideal']:.2f}", to_first)
    console().print(shown)
    console().print(f"Report: {page}", soft_wrap=True)


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of the folders, or their paths where names are the same. Raises InputError for a folder given twice."""
    real = [folder.resolve() for folder in folders]
    for index, path in enumerate(real):
        if path in real[:index]:
            raise InputError(f"{folders[real.index(path)]} and {folders[index]} are the same folder")
    counts = Counter(folder.name for folder in real)
    return [path.name if counts[path.name] == 1 else str(given) for path, given in zip(real, folders, strict=True)]
