# SPDX-License-Identifier: Apache-2.0
"""``requirements.lock`` is that of pyproject.toml, and what is wrong with one is said without the network."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def locked() -> ModuleType:
    spec = importlib.util.spec_from_file_location("locked", ROOT / "scripts" / "locked.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["locked"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_lock_is_current(locked: ModuleType) -> None:
    assert locked.faults(PROJECT, LOCK) == []
    names = {pin.name for pin in locked.pins(LOCK)}
    assert {"numpy", "click", "pybind11", "setuptools", "pytest", "auditwheel"} <= names


def test_another_requirement_needs_another_lock(locked: ModuleType) -> None:
    project = PROJECT["project"]
    changed = {**PROJECT, "project": {**project, "dependencies": [*project["dependencies"], "new>=1"]}}
    faults = locked.faults(changed, LOCK)
    assert faults == [
        "requirements.lock was made from other requirements than those of pyproject.toml: run scripts/lock.sh",
        "requirements.lock has no new: run scripts/lock.sh",
    ]


def test_a_package_without_a_hash_is_found(locked: ModuleType) -> None:
    bare = re.sub(r"(?m)^(click==\S+) \\\n(?:    --hash=\S+(?: \\)?\n)+", r"\1\n", LOCK)
    assert bare != LOCK
    assert locked.faults(PROJECT, bare) == ["requirements.lock has no hash of click: run scripts/lock.sh"]
