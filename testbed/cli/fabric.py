# SPDX-License-Identifier: Apache-2.0
"""Options that describe a fabric: its topology file and the hash of its switches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from netmodel import CrcHash, Document, EcmpHash, LinuxL4Hash, OvsHash, Topology, TopologySpec, XorHash
from sdn.openflow.source_rules import SourcePortRules
from testbed.errors import InputError

_Command = TypeVar("_Command", bound=Callable[..., Any])

HASHES: dict[str, Callable[[Topology], EcmpHash]] = {
    "ovs": lambda _: OvsHash(),
    "linux": lambda _: LinuxL4Hash(),
    "crc16": lambda _: CrcHash("crc16"),
    "crc32": lambda _: CrcHash("crc32"),
    "xor": lambda _: XorHash(),
    "rules": SourcePortRules.of,
}


def topology_option(also: str = "") -> Callable[[_Command], _Command]:
    """Adds --topology FILE, passed as `topology_file`. `also` is appended to its help."""
    return click.option(
        "--topology",
        "topology_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        required=True,
        help=f"A topology, or an experiment spec that has one. {also}".rstrip(),
    )


def hash_option(command: _Command) -> _Command:
    """Adds --hash, passed as `hash_name` (None when it is not given)."""
    return click.option(
        "--hash",
        "hash_name",
        type=click.Choice(list(HASHES)),
        help="Hash by which switches choose among equal paths; rules: bits of source ports. Default: ovs, or rules if "
        "FILE is a spec with pinning: rules.",
    )(command)


def fabric_of(file: Path, hash_name: str | None) -> tuple[Topology, str, EcmpHash]:
    """The topology in `file`, which is a topology or a spec; the name of its switches' hash; and the hash.

    Raises SpecError, and InputError when rules do not fit the topology.
    """
    topology, usual = _read(file)
    name = usual if hash_name is None else hash_name
    try:
        return topology, name, HASHES[name](topology)
    except ValueError as error:
        raise InputError(f"--hash {name}: {error}") from error


def _read(file: Path) -> tuple[Topology, str]:
    """The topology, and the name of the hash that its switches use by default."""
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return document.as_model(TopologySpec).topology, "ovs"
    # Imported here: a path service that starts again on a topology must answer soon, and this doubles its start.
    from testbed import spec

    experiment = spec.load(document)
    return experiment.topology, "rules" if experiment.spec.pinning == "rules" else "ovs"
