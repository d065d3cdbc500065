# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.run.runner`: an experiment's runs, inside the sandbox that `paralet run` has made.

It brings the fabric up, carries out the runs (`experiment_runs`) and writes the observations to one file. The analysis
happens outside, so that as little code as possible runs with privileges.

It does not handle Ctrl-C: `paralet run` ends the sandbox with everything in it, and what has ended is kept
(`testbed.analysis.kept_runs`).
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from emul import sandbox
from netmodel.printable import printable
from testbed.analysis.kept_runs import NOT_KEPT, KeptRuns, Runs
from testbed.analysis.observations import Observations
from testbed.live.runs_so_far import Entry, Happened, line
from testbed.progress import Steps
from testbed.result_folder import named_when_full
from testbed.run.agent_processes import AgentProcesses
from testbed.run.bring_up import Up, brought_up
from testbed.run.console.console import FabricConsole
from testbed.run.console.service import ConsoleService
from testbed.run.console.wire import Greeting
from testbed.run.experiment_runs import Runner
from testbed.run.failures import exit_status, fabric_errors
from testbed.run.path_service import PathServices
from testbed.spec import Experiment, all_hosts, load


def run_in_sandbox(
    experiment: Experiment,
    agents: AgentProcesses,
    log_dir: Path,
    steps: Steps,
    tell: Callable[[Entry], None],
    runs: Runs = NOT_KEPT,
) -> Observations:
    """Bring the fabric up, carry out the runs of which `runs` has none, take the fabric down.

    `tell` is called with entries of a journal.

    Raises InputError when the topology cannot be laid out, and TestbedError for every other failure.
    """
    steps.now(f"bringing up {experiment.topology.name}")
    experiment.spec.workload.check_installed()
    with fabric_errors(log_dir):
        services = PathServices(experiment, log_dir)
        with brought_up(experiment, log_dir, services.dead_links) as up, _console(experiment, up, log_dir, tell):
            start = agents.on(up.host_pid)
            runner = Runner(experiment, up.fabric, up.switches, up.arrangers, log_dir, start, services.serving, tell)
            records = list(runner.runs(steps, runs))
            steps.now("taking the fabric down")
    return Observations(runs=records)


def _console(experiment: Experiment, up: Up, log_dir: Path, tell: Callable[[Entry], None]) -> ConsoleService:
    """Takes commands of the user on the fabric, and says what they change: the runs are no longer those of the spec."""

    def changed(what: str) -> None:
        print(printable(f"paralet: by hand: {what}"), file=sys.stderr, flush=True)
        tell(Happened(f"by hand: {what}"))

    greeting = Greeting(experiment.spec.name, experiment.spec.fabric, "run", str(log_dir))
    return ConsoleService(FabricConsole(up.console_fabric, log_dir, changed), greeting, sandbox.SCRATCH_DIR)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Prints errors to standard error. Returns 0, 2 for a wrong input, or 1 for another failure."""
    parser = argparse.ArgumentParser(prog="python -m testbed.run.runner", description=__doc__)
    parser.add_argument(
        "--spec", type=Path, required=True, help="spec file; file names in it are relative to its folder"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write the observations to")
    parser.add_argument("--kept", type=Path, help="file of the runs that have ended; without it none are kept")
    parser.add_argument("--log-dir", type=Path, required=True, help="folder for logs and pcaps")
    parser.add_argument("--journal", type=Path, help="file that gets a line when a run begins, changes links, or ends")
    arguments = parser.parse_args(argv)

    def work() -> None:
        if arguments.journal is None:
            measure(lambda _: None)
            return
        # Open throughout: this tells others which runner writes it (`testbed.live.run_processes`).
        with arguments.journal.open("a", buffering=1) as journal:

            def tell(entry: Entry) -> None:
                journal.write(line(entry))

            measure(tell)

    def measure(tell: Callable[[Entry], None]) -> None:
        experiment = load(arguments.spec, run_code=True)  # `paralet run` has written it
        runs = len(experiment.seeds) * len(experiment.spec.policies)
        with AgentProcesses(all_hosts(experiment)) as agents, Steps(runs) as steps:
            kept = NOT_KEPT if arguments.kept is None else KeptRuns(arguments.kept)
            with named_when_full(arguments.out.parent):
                run_in_sandbox(experiment, agents, arguments.log_dir, steps, tell, kept).save(arguments.out)

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
