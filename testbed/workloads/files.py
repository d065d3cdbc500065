# SPDX-License-Identifier: Apache-2.0
"""Workloads in a Python file beside a spec, which names it: `workload: {file: mine.py, ..}`.

Reading such a spec runs the file. Whoever validates a spec therefore says with `PythonFiles`, as the context of the
validation, that its author may run code here.
"""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pydantic import create_model

from testbed.conflict import Conflict
from testbed.workloads.base import Workload


@dataclass(frozen=True, slots=True)
class PythonFiles:
    """Permission to run the files that specs name. Relative names start at `folder`."""

    folder: Path = Path("/")


def names_python(values: object) -> bool:
    """Whether the keys of a workload name a Python file instead of a kind."""
    return isinstance(values, dict) and isinstance(name := values.get("file"), str) and name.endswith(".py")


def from_file(values: Mapping[str, Any], allowed: object) -> Workload:
    """The workload whose class is in the file that its keys name. `allowed` is the context of the validation.

    Raises Conflict when the file must not be run, cannot be imported, or does not have one workload.
    """
    if not isinstance(allowed, PythonFiles):
        said = "it names Python code, which only paralet run carries out, for the spec that it is given"
        raise Conflict(f"{said}; make a package of it, with an entry point", "file")
    path = (allowed.folder / values["file"]).resolve()
    return _class_of(path).model_validate({**values, "file": str(path)})


@cache
def _class_of(path: Path) -> type[Workload]:
    """The workload of a file, with one more key: the file. The file runs once in a process."""
    if not path.is_file():
        raise Conflict(f"there is no file {path}", "file")
    name = f"paralet_workload_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    found = spec_from_file_location(name, path)
    assert found is not None  # the name ends in .py
    assert found.loader is not None
    module = module_from_spec(found)
    sys.modules[name] = module  # its classes look each other up there
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise Conflict(f"{path} cannot be imported: {type(error).__name__}: {error}", "file") from error
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Workload)]
    own = [kind for kind in classes if kind.__module__ == name and not inspect.isabstract(kind)]
    if len(own) != 1:
        said = f"{path} has {len(own)} workloads; let it have one subclass of testbed.workloads.Workload"
        raise Conflict(said, "file")
    if "file" in own[0].model_fields:
        raise Conflict(f"{path}: {own[0].__name__} has a key file, which names the Python file; rename it", "file")
    return create_model(own[0].__name__, __base__=own[0], file=(str, ...))
