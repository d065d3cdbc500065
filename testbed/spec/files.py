# SPDX-License-Identifier: Apache-2.0
"""Spec files, read and written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import RootModel, model_validator

from netmodel import (
    load_yaml,
)
from testbed.errors import InputError, Misfit
from testbed.spec.checks import check
from testbed.spec.experiment import Experiment
from testbed.spec.written import FabricName, Spec, TopologyFile


def load(
    path: Path, *, policies: Sequence[str] = (), seeds: int | None = None, fabric: FabricName | None = None
) -> Experiment:
    """Read a spec and check all that can be checked without privileges.

    `policies` keeps only those of that name; `seeds` replaces the spec's seeds by that many, `fabric` its fabric.

    Raises SpecError (the file is wrong) or InputError (an argument is).
    """
    spec = load_yaml(path, Spec)
    if isinstance(spec.topology, TopologyFile):
        topology_file = TopologyFile(file=str((path.parent / spec.topology.file).resolve()))
        spec = spec.model_copy(update={"topology": topology_file})
    if policies:
        spec = _only(spec, policies)
    if seeds is not None:
        spec = spec.model_copy(update={"seeds": seeds})
    if fabric is not None:
        spec = spec.model_copy(update={"fabric": fabric})
    try:
        return check(spec)
    except Misfit as misfit:
        _tell(misfit, path)


def dump(spec: Spec) -> str:
    """YAML that `load` reads back as the same experiment, wherever it lies."""
    return yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True), sort_keys=False)


def _tell(misfit: Misfit, path: Path) -> NoReturn:
    """Raise the SpecError for something found after the file was read: load_yaml knows which line it is in."""

    class Refused(RootModel[Any]):
        @model_validator(mode="after")
        def _refuse(self) -> "Refused":
            raise misfit

    load_yaml(path, Refused)
    raise AssertionError("unreachable: the model refuses everything")


def _only(spec: Spec, names: Sequence[str]) -> Spec:
    known = [policy.name for policy in spec.policies]
    for name in names:
        if name not in known:
            raise InputError(f"the spec has no policy {name!r}; it has {', '.join(known)}")
    return spec.model_copy(update={"policies": [policy for policy in spec.policies if policy.name in names]})
