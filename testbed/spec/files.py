# SPDX-License-Identifier: Apache-2.0
"""Reads and writes spec files.

A process reads a spec file once, with `load`, and passes on the Experiment. The runner is another process: `paralet
run` writes the spec with `dump` to a file that refers to no other file, and the runner reads that.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import ValidationError

from netmodel import (
    Document,
    LocatedError,
    Location,
    Mistake,
    PortRef,
    SpecError,
    TopologySpec,
    is_foreign,
    load_topology,
)
from testbed.conflict import Conflict
from testbed.errors import InputError
from testbed.spec.bare_fabric import BareFabric
from testbed.spec.checks import examine
from testbed.spec.experiment import Experiment
from testbed.spec.fabrics import FabricName
from testbed.spec.policies import one_per_m
from testbed.spec.settings import OpenFlowSettings
from testbed.spec.written import Spec, TopologyFile
from testbed.workloads import PythonFiles

_HasTopology = TypeVar("_HasTopology", Spec, BareFabric)

_STAND_INS: dict[str, Any] = {
    "name": "unread",
    "topology": {"leaf_spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 1, "host_rate": "1 Gbit/s"}},
    "workload": {"kind": "ring_allreduce", "bytes": 1024},
    "policies": [{"name": "unread", "policy": "ecmp"}],
}
"""Values for required sections that could not be read."""


def load(
    source: Path | Document,
    *,
    policies: Sequence[str] = (),
    seeds: int | None = None,
    fabric: FabricName | None = None,
    run_code: bool = False,
) -> Experiment:
    """Read a spec, and its topology if that is a separate file, and make every check that needs no privileges.

    Names of files start at the spec's folder.

    `policies` keeps only policies of these names. `seeds` replaces the spec's seeds by seeds 1 to that number, and
    `fabric` replaces the spec's fabric.

    With `run_code` a Python file that the spec names as its workload is run. Leave it out unless the user has given the
    spec to be run: one from elsewhere could do anything.

    Raises SpecError with all mistakes of the files, or InputError for a wrong argument.
    """
    document = (source if isinstance(source, Document) else Document.read(source)).spread("policies", one_per_m)
    spec, mistakes, unread = _read(document, PythonFiles(Path(document.file).parent) if run_code else None)
    spec = with_app(spec, Path(document.file).parent)
    spec, of_topology = with_topology(spec, Path(document.file).parent)
    if of_topology:
        mistakes += of_topology
        unread.append(("topology",))
    try:
        workload = spec.workload.read(Path(document.file).parent, _ranks(spec), _rate_bps(spec))
    except Conflict as error:
        mistakes += document.mistakes(error.below("workload").all)
        workload = Spec.model_validate(_STAND_INS).workload
        unread.append(("workload",))
    spec = spec.model_copy(update={"workload": workload})
    kept = list(range(len(spec.policies)))
    if policies and not any(place[:1] == ("policies",) for place in unread):
        kept = _chosen(spec, policies)
    changes: dict[str, Any] = {"seeds": seeds, "fabric": fabric, "policies": [spec.policies[index] for index in kept]}
    spec = spec.model_copy(update={key: value for key, value in changes.items() if value is not None})
    experiment, found = examine(spec, unread)
    for conflict in found.conflicts:
        if conflict.where[:1] == ("policies",) and len(conflict.where) > 1:  # back to the policy's number in the file
            conflict.where = ("policies", kept[cast(int, conflict.where[1])], *conflict.where[2:])
    if run_code and spec.openflow is not None and not Path(spec.openflow.app).is_file():
        found.add(Conflict(f"there is no file {spec.openflow.app}", "openflow", "app"))
    if mistakes or found.conflicts:
        mistakes += document.mistakes(found.conflicts)
        own = sorted(
            (mistake for mistake in mistakes if mistake.file == document.file), key=lambda mistake: mistake.line or 0
        )
        raise SpecError(*own, *(mistake for mistake in mistakes if mistake.file != document.file))
    assert experiment is not None  # there are no conflicts
    return experiment


def load_bare(file: Path, fabric: FabricName | None = None) -> BareFabric:
    """Read the fabric of a spec, or of a topology by itself. `fabric` replaces the spec's.

    Raises SpecError with all mistakes of the files.
    """
    if is_foreign(file):
        return BareFabric.of(load_topology(file), fabric)
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return BareFabric.of(document.as_model(TopologySpec).topology, fabric)
    bare, mistakes = with_topology(with_app(document.as_model(BareFabric), file.parent), file.parent)
    if mistakes:
        raise SpecError(*mistakes)
    try:
        bare.check()
    except LocatedError as error:
        raise SpecError(*document.mistakes(error.all)) from None
    return bare if fabric is None else bare.model_copy(update={"fabric": fabric})


def dump_bare(bare: BareFabric) -> str:
    """YAML that `load_bare` reads back as the same fabric from any folder."""
    return yaml.safe_dump(bare.model_dump(mode="json", exclude_unset=True), sort_keys=False)


def dump(spec: Spec, *, whole: bool = True) -> str:
    """YAML that `load` reads back as the same experiment from any folder.

    Not `whole`: for people, without the contents of other files.
    """
    left_out = None if whole else {"workload": dict.fromkeys(spec.workload.FROM_FILES, True)}
    return yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True, exclude=left_out), sort_keys=False)


def _read(document: Document, allowed: PythonFiles | None) -> tuple[Spec, list[Mistake], list[Location]]:
    """The spec in a document, its mistakes, and the places whose values were replaced because of them."""
    try:
        return document.as_model(Spec, allowed), [], []
    except SpecError as error:
        mistakes = list(error.mistakes)
        if not isinstance(document.data, dict) or not all(mistake.place for mistake in mistakes):
            raise
    data: dict[Any, Any] = dict(document.data)
    unread: list[Location] = []
    for place in dict.fromkeys(mistake.place for mistake in mistakes):
        key = place[0]
        if key == "policies" and len(place) > 1 and isinstance(place[1], int):
            stand_in = {"name": f"unread-{place[1]}", "policy": "ecmp"}
            data["policies"] = [*data["policies"]]
            data["policies"][place[1]] = stand_in
            unread.append(place[:2])
            continue
        data.pop(key, None)
        unread.append(place[:1])
    for key in _STAND_INS.keys() - data.keys():
        data[key] = _STAND_INS[key]
        unread.append((key,))
    try:
        return Spec.model_validate(data, context=allowed), mistakes, unread
    except ValidationError:  # the stand-in values do not fit the rest, so only the first mistakes are known
        raise SpecError(*mistakes) from None


def with_topology(spec: _HasTopology, folder: Path) -> tuple[_HasTopology, list[Mistake]]:
    """The spec with a topology that is in place, and the mistakes in the file that has it."""
    if not isinstance(spec.topology, TopologyFile):
        return spec, []
    file = (folder / spec.topology.file).resolve()
    try:
        topology = (
            TopologySpec.of(load_topology(file)) if is_foreign(file) else Document.read(file).as_model(TopologySpec)
        )
    except SpecError as error:
        stand_in = TopologySpec.model_validate(_STAND_INS["topology"])
        return spec.model_copy(update={"topology": stand_in}), list(error.mistakes)
    return spec.model_copy(update={"topology": topology}), []


def with_app(spec: _HasTopology, folder: Path) -> _HasTopology:
    """The spec with the absolute name and the digest of the app of its switches, if it has one."""
    if spec.openflow is None:
        return spec
    file = (folder / spec.openflow.app).resolve()
    digest = spec.openflow.sha256  # only who runs it needs the file
    with suppress(OSError):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return spec.model_copy(update={"openflow": OpenFlowSettings(app=str(file), sha256=digest)})


def _ranks(spec: Spec) -> int:
    """The number of ranks of its first job."""
    assert isinstance(spec.topology, TopologySpec)
    placed = spec.placement
    ranks = placed.ranks or len(placed.hosts or spec.topology.topology.hosts)
    if isinstance(spec.jobs, int):
        return ranks // max(spec.jobs, 1)
    return next(iter(spec.jobs.values() if isinstance(spec.jobs, dict) else spec.jobs), ranks)


def _rate_bps(spec: Spec) -> float:
    """The rate of the first host's first NIC."""
    assert isinstance(spec.topology, TopologySpec)
    topology = spec.topology.topology
    return float(topology.link_at(PortRef(topology.hosts[0].name, 1)).rate_bps)


def _chosen(spec: Spec, names: Sequence[str]) -> list[int]:
    """The indices of the policies with these names. Raises InputError for an unknown name."""
    known = [policy.name for policy in spec.policies]
    for name in names:
        if name not in known:
            raise InputError(f"the spec has no policy {name!r}; it has {', '.join(known)}")
    return [index for index, name in enumerate(known) if name in names]
