# SPDX-License-Identifier: Apache-2.0
"""setup.py: what goes into a wheel and into a folder without Git. CMake is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = '[project]\nname = "sample"\nversion = "1"\n[tool.setuptools]\npackages = ["hostlib", "testbed"]\n'


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder without Git, with two packages."""
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for package in ("hostlib", "testbed"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for tool in ("cmake", "strip"):
        program = tmp_path / "tools" / tool
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return tmp_path


def set_up(sources: Path, *words: str) -> None:
    path = f"{sources / 'tools'}:{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", *words],
        cwd=sources,
        env={**os.environ, "PATH": path, "PARALET_COMMIT": "0123456789ab"},
        check=True,
        timeout=120,
    )


def test_a_wheel_has_nothing_of_an_earlier_build(sources: Path) -> None:
    """Such as the native engine, once the models alone are built."""
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    packages = sources / "build" / f"lib.{platform}"
    (packages / "hostlib").mkdir(parents=True)
    (packages / "hostlib" / "_engine.so").touch()
    set_up(sources, "build")
    found = sorted(str(file.relative_to(packages)) for file in packages.rglob("*") if file.is_file())
    assert found == ["hostlib/__init__.py", "testbed/__init__.py", "testbed/commit"]


def test_a_folder_without_git_keeps_its_commit(sources: Path) -> None:
    """Nothing else tells it to an editable install of the models alone, since the engine is not there."""
    set_up(sources, "build_ext", "--inplace")
    assert (sources / "testbed" / "commit").read_text() == "0123456789ab"
