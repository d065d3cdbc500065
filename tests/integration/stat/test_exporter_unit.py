# SPDX-License-Identifier: Apache-2.0
"""The unit of the hosts' exporter has the capabilities that it needs, and no others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from hostlib import Device

ROOT = Path(__file__).resolve().parents[3]


def test_the_exporters_capabilities_suffice_and_are_needed() -> None:
    """An unprivileged user with those of the unit sees root's device, and with one less does not."""
    text = (ROOT / "deploy" / "systemd" / "paralet-exporter.service").read_text()
    (line,) = re.findall(r"^AmbientCapabilities=(.*)$", text, re.MULTILINE)
    every = [name.removeprefix("CAP_").lower() for name in line.split()]

    def seen(names: list[str]) -> bool:
        sets = ",".join(f"+{name}" for name in names)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps=-all,{sets}"]
        command += [f"--ambient-caps=-all,{sets}", f"--bounding-set=-all,{sets}", "--no-new-privs"]
        stat = [sys.executable, "-m", "testbed", "stat", "--json", str(os.getpid())]
        done = subprocess.run([*command, *stat], cwd=ROOT, capture_output=True, text=True)
        return done.returncode == 0 and bool(json.loads(done.stdout)["processes"])

    with Device("127.0.0.1"):
        assert seen(every)
        for name in every:
            assert not seen([other for other in every if other != name]), name
