# SPDX-License-Identifier: Apache-2.0
"""The names of the package: all can be imported, and the import of the package alone needs no other package."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import netmodel

ROOT = Path(__file__).parents[2]


def test_every_public_name_can_be_imported() -> None:
    for name in netmodel.__all__:
        assert getattr(netmodel, name) is not None
    assert sorted(netmodel._MODULE_OF) == sorted(netmodel.__all__)


def test_no_public_name_is_that_of_a_module_which_would_take_its_place() -> None:
    assert not {module.name for module in pkgutil.iter_modules(netmodel.__path__)} & set(netmodel.__all__)


def test_the_package_alone_imports_neither_numpy_nor_pydantic() -> None:
    program = "import sys, netmodel; print(*{'numpy', 'pydantic', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
