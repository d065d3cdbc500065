# SPDX-License-Identifier: Apache-2.0
"""Files with times of real packets, made of the results of runs."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.research.papers.paralet import real_runs


def test_results_of_runs_become_multiples_of_the_ideal(tmp_path: Path) -> None:
    folders = {fabric: tmp_path / fabric for fabric in real_runs.FABRICS}
    for number, folder in enumerate(folders.values(), start=1):
        for name in ("one", "other"):
            (folder / name).mkdir(parents=True)
            policies = [{"name": "by-rule", "completions_s": [number * 2.0, 3.0]}]
            (folder / name / "summary.json").write_text(json.dumps({"ideal_s": 2.0, "policies": policies}))
    (tmp_path / "times.csv").write_text(real_runs.collected(folders, ("one", "other")))
    assert real_runs.read(tmp_path / "times.csv") == {
        ("real packets", "one", "by-rule"): [1.0, 1.5],
        ("real packets", "other", "by-rule"): [1.0, 1.5],
        ("model", "one", "by-rule"): [2.0, 1.5],
        ("model", "other", "by-rule"): [2.0, 1.5],
    }
