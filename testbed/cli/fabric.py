# SPDX-License-Identifier: Apache-2.0
"""Options that describe a fabric: its topology file and the hash of its switches."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import click

from testbed.errors import InputError

if TYPE_CHECKING:
    from netmodel import EcmpHash, Topology

_Command = TypeVar("_Command", bound=Callable[..., Any])

HashName = Literal["ovs", "linux", "crc16", "crc32", "xor", "rules"]
HASHES: tuple[HashName, ...] = get_args(HashName)


def hash_of(name: HashName, topology: "Topology") -> "EcmpHash":
    """The hash with this name. Raises ValueError when the switches of `topology` cannot have the rules."""
    from netmodel import CrcHash, LinuxL4Hash, OvsHash, XorHash
    from sdn.openflow.source_rules import SourcePortRules

    match name:
        case "ovs":
            return OvsHash()
        case "linux":
            return LinuxL4Hash()
        case "crc16" | "crc32":
            return CrcHash(name)
        case "xor":
            return XorHash()
        case "rules":
            return SourcePortRules.of(topology)


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
        type=click.Choice(HASHES),
        help="Hash by which switches choose among equal paths; rules: bits of source ports. Default: ovs; rules if "
        "FILE is a spec with pinning: rules, linux if its fabric is routed.",
    )(command)


def fabric_of(file: Path, hash_name: HashName | None) -> "tuple[Topology, HashName, EcmpHash]":
    """The topology in `file`, which is a topology or a spec; the name of its switches' hash; and the hash.

    Raises SpecError, and InputError when rules do not fit the topology.
    """
    topology, usual = _read(file)
    name = usual if hash_name is None else hash_name
    try:
        return topology, name, hash_of(name, topology)
    except ValueError as error:
        raise InputError(f"--hash {name}: {error}") from error


def _read(file: Path) -> "tuple[Topology, HashName]":
    """The topology, and the name of the hash that its switches use by default."""
    from netmodel import Document, TopologySpec, is_foreign, load_topology

    if is_foreign(file):
        return load_topology(file), "ovs"
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return document.as_model(TopologySpec).topology, "ovs"
    # Imported here: a path service that starts again on a topology must answer soon, and this doubles its start.
    from testbed import spec

    experiment = spec.load(document)
    if experiment.spec.fabric_kind.routers:
        return experiment.topology, "linux"
    return experiment.topology, "rules" if experiment.spec.pinning == "rules" else "ovs"
