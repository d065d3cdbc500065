# SPDX-License-Identifier: Apache-2.0
"""Options that describe a fabric: its topology file and the hash of its switches."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import click

from testbed.errors import InputError

if TYPE_CHECKING:
    from netmodel import EcmpHash, Topology
    from testbed.spec import Experiment, RouterSettings

_Command = TypeVar("_Command", bound=Callable[..., Any])

HashName = Literal["ovs", "linux", "linux-crc32", "crc16", "crc32", "xor", "rules", "port-ranges"]
HASHES: tuple[HashName, ...] = get_args(HashName)


def hash_of(name: HashName, topology: "Topology") -> "EcmpHash":
    """The hash with this name. Raises ValueError when the switches of `topology` cannot have the rules."""
    from netmodel import CrcHash, LinuxCrcHash, LinuxL4Hash, OvsHash, XorHash, forwarding
    from netmodel.port_ranges import PortRanges
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
        case "port-ranges":
            return PortRanges.of(topology, forwarding(topology))


def topology_option(also: str = "", *, required: bool = True) -> Callable[[_Command], _Command]:
    """Adds --topology FILE, passed as `topology_file`. `also` is appended to its help."""
    return click.option(
        "--topology",
        "topology_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        required=required,
        help=f"A topology, or an experiment spec that has one. {also}".rstrip(),
    )


def hash_option(command: _Command) -> _Command:
    """Adds --hash, passed as `hash_name` (None when it is not given)."""
    return click.option(
        "--hash",
        "hash_name",
        type=click.Choice(HASHES),
        help="Hash by which switches choose among equal paths; rules: bits of source ports; port-ranges: what "
        "`paralet export` writes for switches. Default: ovs; rules if FILE is a spec with pinning: rules, that of its "
        "routers if its fabric is routed.",
    )(command)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric as a topology or a spec describes it."""

    topology: "Topology"
    hash_name: HashName
    ecmp_hash: "EcmpHash"
    """The hash of that name."""
    nic: str | None = None
    """The NIC that carries the traffic of a spec."""
    routers: "RouterSettings | None" = None
    """Those of a spec whose switches are routers."""


def fabric_of(file: Path, hash_name: HashName | None, *, routers: bool = False) -> Fabric:
    """The fabric in `file`, which is a topology or a spec. Its hash is `hash_name`, by default that of its switches.

    `routers`: the switches are routers of Linux, whatever fabric a spec names. Raises SpecError, and InputError when
    rules do not fit the topology.
    """
    topology, experiment = _read(file)
    usual: HashName = "linux" if routers else "ovs"
    if experiment is None:
        name = hash_name or usual
        return Fabric(topology, name, _hash_of(name, topology))
    spec = experiment.spec
    settings = spec.routers if spec.fabric_kind.routers else None
    if routers or settings is not None:
        usual = "linux-crc32" if spec.routers.hash == "crc32" else "linux"
        if hash_name in (None, usual):
            try:
                return Fabric(topology, usual, spec.routers.ecmp_hash(topology), spec.nic, settings)
            except ValueError as error:  # of a spec whose fabric is not routed, so that nothing has checked it
                raise InputError(f"{file}: routers.hash_offset: {error}") from error
    elif spec.pinning == "rules":
        usual = "rules"
    name = hash_name or usual
    return Fabric(topology, name, _hash_of(name, topology), spec.nic, settings)


def _hash_of(name: HashName, topology: "Topology") -> "EcmpHash":
    try:
        return hash_of(name, topology)
    except ValueError as error:
        raise InputError(f"--hash {name}: {error}") from error


def _read(file: Path) -> "tuple[Topology, Experiment | None]":
    from netmodel import Document, TopologySpec, is_foreign, load_topology

    if is_foreign(file):
        return load_topology(file), None
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return document.as_model(TopologySpec).topology, None
    # Imported here: a path service that starts again on a topology must answer soon, and this doubles its start.
    from testbed import spec

    experiment = spec.load(document)
    return experiment.topology, experiment
