# SPDX-License-Identifier: Apache-2.0
"""The runs that an experiment has ended so far, each written when it ends, so that an interruption loses none of them.

The file has a `RunRecord` as JSON on each line. A line without an end is of a run whose writer was killed; its run is
done again.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.analysis.observations import RunRecord
from testbed.spec import Experiment


class Runs:
    """Runs that are carried out one after the other. This class keeps none."""

    def get(self, policy: str, seed: int, run: Callable[[], RunRecord]) -> RunRecord:
        """The run of a policy with a seed: `run` carries it out."""
        return run()


NOT_KEPT = Runs()


class KeptRuns(Runs):
    """Runs that are kept in a file, which need not exist at first."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError for a file whose whole lines are not runs, and OSError for one that cannot be read."""
        self._path = path
        whole = b""
        if path.exists():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(path, len(whole))
        self._runs = [RunRecord.model_validate_json(line) for line in whole.splitlines()]

    @property
    def kept(self) -> Sequence[RunRecord]:
        """In the order in which they ended."""
        return self._runs

    def get(self, policy: str, seed: int, run: Callable[[], RunRecord]) -> RunRecord:
        """The run of a policy with a seed: the kept one, or one that `run` carries out.

        The latter is on the disk when this returns. Raises OSError if it cannot be written.
        """
        for kept in self._runs:
            if (kept.policy, kept.seed) == (policy, seed):
                return kept
        ended = run()
        with self._path.open("ab") as file:
            file.write(ended.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._runs.append(ended)
        return ended


def whole_part(experiment: Experiment, runs: Sequence[RunRecord]) -> tuple[list[str], list[int]]:
    """The policies and seeds of which all runs have ended. Before the first seed is done: its policies so far."""
    ended = {(run.policy, run.seed) for run in runs}
    policies = [policy.name for policy in experiment.spec.policies]
    seeds = [seed for seed in experiment.seeds if all((policy, seed) in ended for policy in policies)]
    if seeds:
        return policies, seeds
    first = experiment.seeds[0]
    return [policy for policy in policies if (policy, first) in ended], [first]
