# SPDX-License-Identifier: Apache-2.0
"""`paralet run`: check a spec, run it in a sandbox, judge what was seen, write the results."""

import json
import sys
from pathlib import Path
from typing import Any

import click

import emul
from emul import sandbox
from testbed import results, spec
from testbed.errors import InputError, TestbedError
from testbed.spec import Experiment

_OWN_STATUS = (1, 2)
"""With these the runner has said on standard error what went wrong."""


@click.command(epilog="Example: paralet run experiments/demo.yaml --policy ecmp --policy pinned --seeds 2")
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option(
    "--results",
    "results_dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    help="Folder that gets a folder NAME with the results, and the link `latest` to it.",
)
@click.option("--seeds", metavar="N", type=click.IntRange(min=1), help="Run N seeds instead of the spec's.")
@click.option("--policy", "policies", metavar="NAME", multiple=True, help="Run only this policy; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of a table.")
@click.pass_context
def run(
    context: click.Context,
    spec_file: Path,
    results_dir: Path,
    seeds: int | None,
    policies: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the experiment in the file SPEC and write a report.

    Needs root: the fabric is emulated in namespaces of its own, which vanish when the run ends. Writes summary.json,
    report.html, plots, CSV files and logs to DIR/NAME, where NAME is the spec's.
    """
    experiment = spec.load(spec_file, policies=policies, seeds=seeds)
    require_machine()
    folder = results_dir / experiment.spec.name
    _make(folder)
    (folder / results.SPEC).write_text(spec.dump(experiment.spec))
    _run_in_sandbox(folder)
    summary = _judge(experiment, folder, as_json)
    context.exit(0 if all(policy["verified"] for policy in summary["policies"]) else 1)


def require_machine() -> None:
    """Raises InputError with the first thing that an emulation needs and this machine lacks."""
    for finding in emul.probe():
        if not finding.ok:
            remedy = f"; try: {finding.remedy}" if finding.remedy else ""
            raise InputError(f"{finding.name}: {finding.detail}{remedy} (`paralet doctor` shows everything)")


def _make(folder: Path) -> None:
    try:
        results.prepare(folder)
    except OSError as error:
        raise InputError(f"cannot write results to {folder}: {error.strerror}") from error


def _run_in_sandbox(folder: Path) -> None:
    """Run `testbed.runner`. Raises what its exit status means; it has told the reason itself."""
    argv = [sys.executable, "-m", "testbed.runner"]
    argv += ["--spec", str(folder / results.SPEC), "--out", str(folder / results.OBSERVATIONS)]
    argv += ["--log-dir", str(folder / results.LOGS)]
    try:
        status = sandbox.run(argv)
    except sandbox.SandboxError as error:
        raise InputError(str(error)) from error
    if status in (130, 143):
        raise click.Abort
    if status in _OWN_STATUS:
        raise click.exceptions.Exit(status)
    if status:
        raise TestbedError(f"the run ended with status {status}; its logs are in {folder / results.LOGS}")


def _judge(experiment: Experiment, folder: Path, as_json: bool) -> dict[str, Any]:
    """Compute and write everything that follows from the observations; print the outcome."""
    from testbed import metrics, report  # matplotlib takes half a second, which errors should not wait for
    from testbed.cli.tables import print_outcome
    from testbed.observations import Observations

    observations = Observations.load(folder / results.OBSERVATIONS)
    policy_results = metrics.by_policy(experiment, observations)
    checks = metrics.check_flows(experiment, observations)
    summary = results.summary(experiment, policy_results, checks)
    results.write_tables(folder, experiment, policy_results, checks)
    page = report.write(folder, experiment, policy_results, checks, summary["ideal_s"])
    results.write_summary(folder, summary)
    results.point_latest(folder)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        print_outcome(experiment, policy_results, summary, page)
    return summary
