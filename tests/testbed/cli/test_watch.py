# SPDX-License-Identifier: Apache-2.0
"""`paralet run --watch` where it cannot be. tests/integration/run watches runs."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from testbed.cli import main

ROOT = Path(__file__).parents[3]


def test_a_model_has_nothing_to_watch(tmp_path: Path) -> None:
    spec = str(ROOT / "experiments" / "demo.yaml")
    done = CliRunner().invoke(main, ["run", spec, "--fabric", "fluid", "--watch", "--results", str(tmp_path)])
    assert done.exit_code == 2
    assert done.stderr == (
        "paralet: --watch shows processes of this machine: a model has none, and a guest's are its own\n"
    )
    assert list(tmp_path.iterdir()) == []
