# SPDX-License-Identifier: Apache-2.0
"""`paralet run`: checks a spec, runs it in a sandbox or a guest, evaluates the observations, writes the results."""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

import emul
from emul import guest, sandbox
from netmodel.printable import printable_lines
from testbed.cli.extras import require
from testbed.cli.options import results_folder, seeds_and_policies
from testbed.errors import InputError, TestbedError

if TYPE_CHECKING:
    from testbed.analysis.kept_runs import KeptRuns
    from testbed.analysis.observations import Observations
    from testbed.cli.outcome import Outcome
    from testbed.spec import Experiment, FabricKind, FabricName

GIVEN = Path("/dev/stdin")
"""The file in which a runner in a sandbox finds what it is to do."""

_OWN_STATUS = (1, 2)
"""Exit statuses for which the runner has already printed the reason on standard error."""


@click.command(epilog="Example: paralet run experiments/demo.yaml --policy ecmp --policy pinned --seeds 2")
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@results_folder("a folder NAME with the results, and the link `latest` to it")
@seeds_and_policies
@click.option(
    "--fabric",
    type=click.Choice(["mininet", "routed", "fluid", "packet", "softroce"]),
    help="Run on this fabric instead of the spec's.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    metavar="SECONDS",
    type=click.IntRange(min=1),
    default=guest.GuestOptions().time_limit_s,
    show_default=True,
    help="Time limit of a guest, including its boot.",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace earlier results in DIR/NAME. Without it they stay: see the text above."
)
@click.option("--watch", is_flag=True, help="Show lanes, links and finished runs meanwhile, as `paralet top` does.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of a table.")
@click.pass_context
def run(
    context: click.Context,
    spec_file: Path,
    results_dir: Path,
    seeds: int | None,
    policies: tuple[str, ...],
    fabric: "FabricName | None",
    time_limit_s: int,
    overwrite: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Run the experiment in the file SPEC and write a report.

    Fabrics mininet (Open vSwitch) and routed (routers with BGP) need root: they are emulated in namespaces of their
    own, which are removed when the run ends. Fabrics fluid and packet are models and need no root. On fabric softroce,
    hosts have RDMA devices of the Linux kernel; if this machine's kernel lacks them, the run happens in a guest, which
    is slow. Writes summary.json, report.html, plots, CSV files and logs to DIR/NAME, where NAME is the spec's.

    Each run is kept when it ends. After Ctrl-C or a failure the same command goes on where it stopped, and `paralet
    report` shows what is there. If DIR/NAME has other results, the new ones go to DIR/NAME-2, and so on.
    """
    require("models", "paralet run")
    from testbed import spec

    experiment = spec.load(spec_file, policies=policies, seeds=seeds, fabric=fabric, run_code=True)
    if watch:
        require("top", "--watch")
    if watch and (experiment.spec.fabric_kind.modelled or _takes_guest(experiment)):
        raise InputError("--watch shows processes of this machine: a model has none, and a guest's are its own")
    if watch and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("--watch needs a terminal: leave it out, or use `paralet top --json` beside the run")
    held = context.with_resource(ExitStack())
    _, outcome = carry_out(
        experiment, spec_file, results_dir, held, overwrite=overwrite, time_limit_s=time_limit_s, watch=watch
    )
    outcome.show(as_json)
    context.exit(0 if all(result.verified for result in outcome.results) else 1)


def carry_out(
    experiment: "Experiment",
    spec_file: Path,
    results_dir: Path,
    held: ExitStack,
    *,
    overwrite: bool = False,
    time_limit_s: int = guest.GuestOptions().time_limit_s,
    watch: bool = False,
) -> "tuple[Path, Outcome]":
    """Run an experiment and evaluate it: the result folder, which `held` keeps to this process, and the outcome.

    The options are those of `paralet run`. Raises TestbedError, and click's Exit where a runner has said on standard
    error what failed.
    """
    from testbed import spec
    from testbed.analysis import results
    from testbed.cli.outcome import evaluate, observations_of
    from testbed.cli.run_folder import run_folder
    from testbed.provenance import provenance

    modelled = experiment.spec.fabric_kind.modelled
    if not modelled:
        require_fabric(experiment.spec.fabric_kind)
        _check_time(experiment, spec_file)
    written = spec.dump(experiment.spec)
    folder, kept = run_folder(results_dir / experiment.spec.name, written, overwrite, held)
    _say_where(folder, results_dir / experiment.spec.name, kept, len(experiment.seeds) * len(experiment.spec.policies))
    (folder / results.SPEC).write_text(written)
    results.write_provenance(folder, provenance(sys.argv))
    if modelled:
        observations = _model(experiment, folder, kept)
    else:
        if _takes_guest(experiment):
            _run_in_guest(folder, time_limit_s)
        elif watch:
            _run_watched(folder, written)
        else:
            run_in_sandbox(_runner_argv(folder, GIVEN), folder / results.LOGS, written)
        observations = observations_of(folder, experiment)
    outcome = evaluate(experiment, observations, folder)
    (folder / results.KEPT).unlink(missing_ok=True)  # the observations have all of them
    if not results.point_latest(folder):
        print(printable_lines(f"paralet: {folder.parent / 'latest'} is no link, so it stays as it is"), file=sys.stderr)
    return folder, outcome


def _takes_guest(experiment: "Experiment") -> bool:
    """Whether this kernel lacks the RDMA devices that the fabric needs, and a guest has them."""
    from emul import rxe

    return experiment.spec.fabric_kind.rdma and not rxe.per_namespace()


def require_fabric(kind: "FabricKind") -> None:
    """Raises InputError that names the first thing that this machine lacks for a fabric with real packets."""
    from emul.routed import requirements

    require("fabric", f"fabric {kind.name}")
    require_machine()
    if kind.routers and (lacking := requirements.lack()) is not None:
        raise InputError(f"fabric {kind.name}: {lacking.what}; {lacking.remedy}")


def require_machine() -> None:
    """Raises InputError that names the first requirement of emulation that this machine does not meet."""
    for finding in emul.probe():
        if not finding.ok:
            remedy = f"; try: {finding.remedy}" if finding.remedy else ""
            raise InputError(f"{finding.name}: {finding.detail}{remedy} (`paralet doctor` shows everything)")


def _check_time(experiment: "Experiment", spec_file: Path) -> None:
    """Raises InputError if no run can end in its time. The first seed stands for all: others move as many bytes."""
    from testbed.spec import Instance

    run_s, ideal_s = experiment.timeouts.run_s, Instance(experiment, experiment.seeds[0]).ideal_s()
    if run_s < ideal_s:
        said = f"a run takes {ideal_s:.3g} s at least, and timeouts.run_s allows {run_s:g} s"
        raise InputError(f"{spec_file}: {said}: raise it, or send fewer bytes")


def _say_where(folder: Path, asked: Path, kept: "KeptRuns", runs: int) -> None:
    """Say on standard error what is not as the user may expect it: another folder, or runs that are not repeated."""
    if kept.kept:
        said = f"{folder} has {len(kept.kept)} of {runs} runs from before; they are kept (--overwrite: start anew)"
    elif folder != asked:
        said = f"{asked} has other results, so these go to {folder} (--overwrite: replace them)"
    else:
        return
    print(printable_lines(f"paralet: {said}"), file=sys.stderr)


def _model(experiment: "Experiment", folder: Path, kept: "KeptRuns") -> "Observations":
    """Run on a modelled fabric, in this process, and save what was observed. Raises TestbedError."""
    from testbed import progress
    from testbed.analysis import results
    from testbed.simulate.models import observe

    with progress.Steps(len(experiment.seeds) * len(experiment.spec.policies), every_s=2.0) as steps:
        observations = observe(experiment, steps, kept)
    observations.save(folder / results.OBSERVATIONS)
    return observations


def _runner_argv(folder: Path, spec_file: Path) -> list[str]:
    from testbed.analysis import results

    argv = [sys.executable, "-m", "testbed.run.runner"]
    argv += ["--spec", str(spec_file), "--out", str(folder / results.OBSERVATIONS)]
    argv += ["--kept", str(folder / results.KEPT)]
    return [*argv, "--log-dir", str(folder / results.LOGS), "--journal", str(folder / results.JOURNAL)]


def _run_watched(folder: Path, written: str) -> None:
    """The same as `run_in_sandbox`, with the view on the terminal and the progress in a file."""
    from testbed.analysis import results
    from testbed.cli.watching import watching

    log = folder / results.LOGS / "progress.log"
    with log.open("w+") as progress_log:
        try:
            with watching(folder / results.SPEC, folder / results.JOURNAL, log):
                run_in_sandbox(_runner_argv(folder, GIVEN), folder / results.LOGS, written, progress_log)
        except click.exceptions.Exit:
            progress_log.seek(0)
            sys.stderr.write(printable_lines("".join(line for line in progress_log if line.startswith("paralet: "))))
            raise


def run_in_sandbox(argv: list[str], logs: Path, given: str, output: IO[str] | None = None) -> None:
    """Run a runner in a sandbox, with its standard error to `output`. `logs` is for messages.

    It reads `given` from the file GIVEN, which has no other name, so that no other process changes it.

    Raises the exception that matches its exit status (see `_check`).
    """
    try:
        # What has ended is on the disk, so the runner needs no time for an orderly end.
        stderr = None if output is None else output.fileno()
        with tempfile.TemporaryFile() as standard_input:
            standard_input.write(given.encode())
            standard_input.flush()
            status = sandbox.run(argv, stdin=standard_input, stderr=stderr, grace_s=0.0)
    except sandbox.SandboxError as error:
        raise InputError(str(error)) from error
    _check(status, logs)


def _run_in_guest(folder: Path, time_limit_s: int) -> None:
    """Run `testbed.run.runner` in a guest, where it reads the spec in `folder`. The console is logged, too."""
    from testbed.analysis import results

    folder = folder.resolve()
    options = guest.GuestOptions(time_limit_s=time_limit_s, writable=[folder])
    console = folder / results.LOGS / "guest.log"
    print("paralet: this kernel has no SoftRoCE for namespaces: starting a guest, which is slow", file=sys.stderr)
    try:
        argv = _runner_argv(folder, folder / results.SPEC)
        status = guest.run(argv, log=console, options=options, output=sys.stderr.buffer)
    except guest.GuestError as error:
        raise TestbedError(str(error)) from error
    _check(status, folder / results.LOGS)


def _check(status: int, logs: Path) -> None:
    from testbed import progress

    if status:
        progress.sweep()
    if status in (130, 143):
        raise click.Abort
    if status in _OWN_STATUS:
        raise click.exceptions.Exit(status)
    if status:
        raise TestbedError(f"the run ended with status {status}; its logs are in {logs}")
