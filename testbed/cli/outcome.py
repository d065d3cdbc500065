# SPDX-License-Identifier: Apache-2.0
"""From the observations in a result folder to its results, its report and what a command prints."""

import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from netmodel import LocatedError, Location
from netmodel.printable import printable
from testbed.analysis import results
from testbed.analysis.kept_runs import KeptRuns, whole_part
from testbed.analysis.metrics import PolicyResult
from testbed.analysis.observations import Observations
from testbed.analysis.recorded import check_recorded
from testbed.errors import InputError, sentence_of
from testbed.provenance import Provenance
from testbed.spec import Experiment, check


def observations_of(folder: Path, experiment: Experiment) -> Observations:
    """The observations in the result folder of `experiment`.

    Raises InputError when they cannot be read, are damaged, or are of another experiment or version.
    """
    path = folder / results.OBSERVATIONS
    try:
        observations = Observations.load(path)
        check_recorded(experiment, observations)
    except OSError as error:
        raise InputError(sentence_of(error)) from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise _damaged(path, first["loc"], first["msg"]) from error
    except LocatedError as error:
        raise _damaged(path, error.where, str(error)) from error
    return observations


def ended_of(folder: Path, experiment: Experiment) -> tuple[Experiment, Observations]:
    """The experiment in a result folder with its observations; of an interrupted run the part that has ended.

    Says on standard error which part that is. Raises InputError as `observations_of` does, and where no run has ended.
    """
    path = folder / results.KEPT
    if (folder / results.OBSERVATIONS).is_file() or not path.is_file():
        return experiment, observations_of(folder, experiment)
    try:
        kept = KeptRuns(path).kept
    except OSError as error:
        raise InputError(sentence_of(error)) from error
    except ValidationError as error:
        raise _damaged(path, (), error.errors(include_input=False)[0]["msg"]) from error
    policies, seeds = whole_part(experiment, kept)
    if not policies:
        raise InputError(f"{folder} has no run that has ended; run the experiment again")
    chosen = [policy for policy in experiment.spec.policies if policy.name in policies]
    part = check(experiment.spec.model_copy(update={"policies": chosen, "seeds": seeds}))
    runs = [run for run in kept if run.policy in policies and run.seed in seeds]
    observations = Observations(runs=runs)
    try:
        check_recorded(part, observations)
    except LocatedError as error:
        raise _damaged(path, error.where, str(error)) from error
    asked = len(experiment.spec.policies) * len(experiment.seeds)
    said = f"{folder} is of an interrupted run: {len(kept)} of {asked} runs have ended"
    named = f"seeds {', '.join(map(str, seeds))} of {', '.join(policies)}"
    print(printable(f"paralet: {said}, and the report has {named}"), file=sys.stderr)
    return part, observations


def _damaged(path: Path, where: Location, why: str) -> InputError:
    place = ".".join(map(str, where)) or "its start"
    return InputError(
        f"{path} is damaged, or is of another spec or version of paralet, at {place}: {why}; run the experiment again"
    )


def _provenance_of(folder: Path) -> Provenance | None:
    try:
        return results.read_provenance(folder)
    except ValueError as error:
        said = f"{folder / results.PROVENANCE} is damaged, or is of another version of paralet"
        raise InputError(f"{said}; remove it, or run the experiment again") from error


@dataclass(frozen=True, slots=True)
class Outcome:
    """The evaluated results of an experiment, as written to its result folder."""

    experiment: Experiment
    results: Sequence[PolicyResult]
    summary: dict[str, Any]
    page: Path

    def draw(self, folder: Path, formats: Sequence[str]) -> None:
        """Write the report's plots into `folder` in these formats too: "svg" or "pdf"."""
        from testbed import report

        report.write_plots(folder, self.experiment, self.results, self.summary["ideal_s"], formats)

    def show(self, as_json: bool) -> None:
        """Print the summary as JSON, or a table."""
        from testbed.cli.tables import print_outcome

        if as_json:
            click.echo(json.dumps(self.summary, indent=2))
        else:
            print_outcome(self.experiment, self.results, self.summary, self.page)


def evaluate(experiment: Experiment, observations: Observations, folder: Path) -> Outcome:
    """Compute metrics from the observations, and write results and report into `folder`.

    Raises InputError if the folder's provenance is damaged.
    """
    from testbed import report
    from testbed.analysis import metrics
    from testbed.analysis.flows import check_flows, flows_of

    gc.freeze()  # observations and transfers live on: no collection need walk them
    try:
        runs = flows_of(experiment, observations)
        policy_results = metrics.by_policy(experiment, runs)
        checks = check_flows(experiment, runs)
        provenance = _provenance_of(folder)
        summary = results.summary(experiment, policy_results, checks, provenance)
        results.write_tables(folder, experiment, policy_results, checks)
        page = report.write(folder, experiment, policy_results, checks, summary["ideal_s"], provenance)
        results.write_summary(folder, summary)
    finally:
        gc.unfreeze()
    return Outcome(experiment, policy_results, summary, page)
