# SPDX-License-Identifier: Apache-2.0
"""Spec files, read and written.

A process reads a spec file once, by `load`, and passes the Experiment on. `paralet run` hands it to the runner, which
is another process, as a file that `dump` has written and that needs no other file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from netmodel import Document, Location, Mistake, SpecError, TopologySpec
from testbed.errors import InputError
from testbed.spec.checks import examine
from testbed.spec.experiment import Experiment
from testbed.spec.policies import FabricName
from testbed.spec.written import Spec, TopologyFile

_STAND_INS: dict[str, Any] = {
    "name": "unread",
    "topology": {"leaf_spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 1, "host_rate": "1 Gbit/s"}},
    "workload": {"kind": "ring_allreduce", "bytes": 1024},
    "policies": [{"name": "unread", "policy": "ecmp"}],
}
"""For sections that every spec has, where a spec's own cannot be read."""


def load(
    source: Path | Document,
    *,
    policies: Sequence[str] = (),
    seeds: int | None = None,
    fabric: FabricName | None = None,
) -> Experiment:
    """Read a spec, and its topology where that is a file of its own, and make every check that needs no privileges.

    `policies` keeps only those of that name; `seeds` replaces the spec's seeds by that many, `fabric` its fabric.

    Raises SpecError, with all mistakes of the files, or InputError for a wrong argument.
    """
    document = source if isinstance(source, Document) else Document.read(source)
    spec, mistakes, unread = _read(document)
    spec, of_topology = _with_topology(spec, Path(document.file).parent)
    if of_topology:
        mistakes += of_topology
        unread.append(("topology",))
    kept = list(range(len(spec.policies)))
    if policies and not any(place[:1] == ("policies",) for place in unread):
        kept = _chosen(spec, policies)
    changes: dict[str, Any] = {"seeds": seeds, "fabric": fabric, "policies": [spec.policies[index] for index in kept]}
    spec = spec.model_copy(update={key: value for key, value in changes.items() if value is not None})
    experiment, found = examine(spec, unread)
    for misfit in found.misfits:
        if misfit.where[:1] == ("policies",) and len(misfit.where) > 1:  # the file has those too that are left out
            misfit.where = ("policies", kept[cast(int, misfit.where[1])], *misfit.where[2:])
    if mistakes or found.misfits:
        mistakes += document.mistakes(found.misfits)
        own = sorted((mistake for mistake in mistakes if mistake.file == document.file), key=lambda one: one.line or 0)
        raise SpecError(*own, *(mistake for mistake in mistakes if mistake.file != document.file))
    assert experiment is not None  # nothing has been found
    return experiment


def dump(spec: Spec) -> str:
    """YAML that `load` reads back as the same experiment, wherever it lies."""
    return yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True), sort_keys=False)


def _read(document: Document) -> tuple[Spec, list[Mistake], list[Location]]:
    """The spec in a document, the mistakes in it, and the places that other values stand in for because of them."""
    try:
        return document.as_model(Spec), [], []
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
        return Spec.model_validate(data), mistakes, unread
    except ValidationError:  # what stands in does not fit: only the mistakes themselves can be told
        raise SpecError(*mistakes) from None


def _with_topology(spec: Spec, folder: Path) -> tuple[Spec, list[Mistake]]:
    """The spec with a topology that is in place, and the mistakes in the file that has it."""
    if not isinstance(spec.topology, TopologyFile):
        return spec, []
    try:
        topology = Document.read((folder / spec.topology.file).resolve()).as_model(TopologySpec)
    except SpecError as error:
        stand_in = TopologySpec.model_validate(_STAND_INS["topology"])
        return spec.model_copy(update={"topology": stand_in}), list(error.mistakes)
    return spec.model_copy(update={"topology": topology}), []


def _chosen(spec: Spec, names: Sequence[str]) -> list[int]:
    """The numbers of the policies of these names. Raises InputError."""
    known = [policy.name for policy in spec.policies]
    for name in names:
        if name not in known:
            raise InputError(f"the spec has no policy {name!r}; it has {', '.join(known)}")
    return [index for index, name in enumerate(known) if name in names]
