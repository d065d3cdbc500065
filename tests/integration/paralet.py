# SPDX-License-Identifier: Apache-2.0
"""`paralet run`, as integration tests start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(spec: Path, results: Path, timeout_s: float = 240) -> dict[str, Any]:
    """Run a spec, whose results go to a folder in `results`. Returns the summary of a run that went well."""
    argv = [sys.executable, "-c", "from testbed.cli import main; main()", "run", spec, "--results", results, "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary
