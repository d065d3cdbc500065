# SPDX-License-Identifier: Apache-2.0
"""Options that describe a fabric: its topology file and the hash of its switches."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import click

from testbed.errors import InputError

if TYPE_CHECKING:
    from netmodel import EcmpHash, Topology
    from testbed.spec import RouterSettings

_Command = TypeVar("_Command", bound=Callable[..., Any])

HashName = Literal["ovs", "linux", "linux-crc32", "crc16", "crc32", "xor", "rules"]
HASHES: tuple[HashName, ...] = get_args(HashName)


def hash_of(name: HashName, topology: "Topology") -> "EcmpHash":
    """The hash with this name. Raises ValueError when the switches of `topology` cannot have the rules."""
    from netmodel import CrcHash, LinuxCrcHash, LinuxL4Hash, OvsHash, XorHash
    from sdn.openflow.source_rules import SourcePortRules

    match name:
        case "ovs":
            return OvsHash()
        case "linux":
            return LinuxL4Hash()
        case "linux-crc32":
            return LinuxCrcHash()
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
        "FILE is a spec with pinning: rules, that of its routers if its fabric is routed.",
    )(command)


def fabric_of(
    file: Path, hash_name: HashName | None, *, routers: bool = False
) -> "tuple[Topology, HashName, EcmpHash]":
    """The topology in `file`, which is a topology or a spec; the name of its switches' hash; and the hash.

    `routers`: the switches are routers of Linux, whatever fabric a spec names. Raises SpecError, and InputError when
    rules do not fit the topology.
    """
    topology, usual, its_own = _read(file, routers)
    name = usual if hash_name is None else hash_name
    if name == usual and its_own is not None:
        return topology, name, its_own
    try:
        return topology, name, hash_of(name, topology)
    except ValueError as error:
        raise InputError(f"--hash {name}: {error}") from error


def routers_of(file: Path) -> "RouterSettings | None":
    """The settings of routers of a spec; None for a file that is none, or whose switches are no routers.

    Raises SpecError.
    """
    from netmodel import Document, is_foreign

    if is_foreign(file):
        return None
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return None
    from testbed import spec

    written = spec.load(document).spec
    return written.routers if written.fabric_kind.routers else None


def _read(file: Path, routers: bool) -> "tuple[Topology, HashName, EcmpHash | None]":
    """The topology, the name of the hash that its switches use by default, and that hash where a spec sets it."""
    from netmodel import Document, TopologySpec, is_foreign, load_topology

    plain: HashName = "linux" if routers else "ovs"
    if is_foreign(file):
        return load_topology(file), plain, None
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return document.as_model(TopologySpec).topology, plain, None
    # Imported here: a path service that starts again on a topology must answer soon, and this doubles its start.
    from testbed import spec

    experiment = spec.load(document)
    topology, written = experiment.topology, experiment.spec
    if routers or written.fabric_kind.routers:
        name: HashName = "linux-crc32" if written.routers.hash == "crc32" else "linux"
        return topology, name, written.routers.ecmp_hash(topology)
    return topology, "rules" if written.pinning == "rules" else "ovs", None
