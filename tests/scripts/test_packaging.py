# SPDX-License-Identifier: Apache-2.0
"""A wheel has every file that its packages read."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
BUILT = {"__pycache__", "bin", "lib"}
NOT_PACKAGES = {"driver", "native"}
"""Sources in C++."""


def data_files() -> list[Path]:
    """Files in the packages that are neither Python nor made by the build."""
    packages = PROJECT["importlinter"]["root_packages"]
    files = (file for package in packages for file in (ROOT / package).rglob("*") if file.is_file())
    return [
        file
        for file in files
        if file.suffix not in {".py", ".so"} and not {*BUILT, *NOT_PACKAGES} & {*file.relative_to(ROOT).parts}
    ]


def test_every_data_file_is_package_data() -> None:
    patterns = PROJECT["setuptools"]["package-data"]["*"]
    files = data_files()
    assert ROOT / "testbed" / "report" / "report.css" in files
    missing = [
        str(file.relative_to(ROOT)) for file in files if not any(fnmatch(file.name, pattern) for pattern in patterns)
    ]
    assert missing == []
