# SPDX-License-Identifier: Apache-2.0
"""How far the experiment in a result folder has come."""

import time
from functools import cache
from pathlib import Path

from testbed.cli.fabric import hash_of
from testbed.live.fabric_view import FabricView
from testbed.live.runs_so_far import entries, happenings, standing
from testbed.spec import Experiment, Instance


class RunProgress:
    """Follows, from now on, the journal that the runner of an experiment writes."""

    def __init__(self, experiment: Experiment, journal: Path) -> None:
        self._experiment, self._journal = experiment, journal
        self._policies = [policy.name for policy in experiment.spec.policies]
        self._seen: int | None = None
        self._ideal_s = cache(lambda seed: Instance(experiment, seed).ideal_s())

    def take(self) -> tuple[str, list[str]]:
        """How far the runs have come, and a sentence for each event since the last call."""
        try:
            with self._journal.open() as lines:
                journal = entries(lines)
        except FileNotFoundError:  # the run has not begun
            journal = []
        total = len(self._experiment.seeds) * len(self._policies)
        said = standing(journal, self._policies, self._ideal_s, total, time.monotonic())
        new = [] if self._seen is None else happenings(self._seen, journal)
        self._seen = len(journal)
        return said, new


def view_of(experiment: Experiment) -> FabricView | None:
    """The links of its fabric, by the paths that its switches choose; None without links between leaves and spines.

    None on routers too: the order of their next hops, by which they choose, is known inside the run only.
    """
    if experiment.spec.fabric_kind.routers:
        return None
    ecmp_hash = hash_of("rules" if experiment.spec.pinning == "rules" else "ovs", experiment.topology)
    view = FabricView(experiment.topology, ecmp_hash)
    return view if view.pairs else None
