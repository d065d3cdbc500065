# SPDX-License-Identifier: Apache-2.0
"""The models against the emulation: completion times of the same specs, seeds and paths."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from testbed.simulate.validation import Agreement, Model, compare

pytestmark = pytest.mark.alone

SPECS = Path(__file__).parents[3] / "experiments" / "validation"
WITHIN = {"pinned": 0.10, "paralet": 0.10, "ecmp": 0.15}
ATTEMPTS = 3
"""Other load makes an emulated run longer, never shorter, so the shortest of several runs is the best estimate."""


def off(runs: list[Agreement], shortest: dict[tuple[str, int], float], kind: str) -> float:
    """How far the model's mean completion over the seeds is from the emulated one."""
    own = [run for run in runs if run.kind == kind]
    return abs(fmean(run.modelled_s for run in own) / fmean(shortest[run.policy, run.seed] for run in own) - 1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("spec", "model"),
    [*((path.stem, "fluid") for path in sorted(SPECS.glob("*.yaml"))), ("packet/marks", "packet")],
)
def test_completion_times_agree(spec: str, model: Model, tmp_path: Path) -> None:
    shortest: dict[tuple[str, int], float] = {}
    found: dict[str, float] = {}
    for _ in range(ATTEMPTS):
        runs = compare(SPECS / f"{spec}.yaml", tmp_path, model)
        for run in runs:
            key = run.policy, run.seed
            shortest[key] = min(run.mininet_s, shortest.get(key, run.mininet_s))
        found = {kind: off(runs, shortest, kind) for kind in WITHIN}
        if all(found[kind] <= WITHIN[kind] for kind in WITHIN):
            return
    assert found == {kind: pytest.approx(0, abs=WITHIN[kind]) for kind in WITHIN}
