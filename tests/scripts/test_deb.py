# SPDX-License-Identifier: Apache-2.0
"""scripts/deb.py: versions of the Debian package."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "deb.py"
SYSTEMS = {
    "deb12": {"ID": "debian", "VERSION_ID": "12"},
    "deb13": {"ID": "debian", "VERSION_ID": "13"},
    "ubuntu24.04": {"ID": "ubuntu", "VERSION_ID": "24.04"},
}


@pytest.fixture
def deb() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("deb", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg compares versions, and is not here")
def test_an_upgrade_to_the_next_debian_takes_its_package(deb: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same commit's packages have versions of their own, as each has modules for one version of Python."""
    monkeypatch.setattr(deb, "output", lambda *words: "" if "tag" in words else "+git202611271200.0123456789ab")
    versions = {}
    for name, system in SYSTEMS.items():
        monkeypatch.setattr(platform, "freedesktop_os_release", lambda system=system: system)
        versions[name] = deb.debian_version("0.1.0")
        assert versions[name] == f"0.1.0+git202611271200.0123456789ab~{name}"
    for newer in (versions["deb13"], "0.1.0+git202611280000.000000000000~deb12", "0.1.1~deb12"):
        subprocess.run(["dpkg", "--compare-versions", newer, "gt", versions["deb12"]], check=True)
