# SPDX-License-Identifier: Apache-2.0
"""`paralet export`: a topology or the traffic of a spec in formats of other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from testbed.cli.extras import require
from testbed.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netmodel import PortRef, Topology
    from netmodel.flow import Address

Form = Literal["yaml", "topo", "containerlab", "containerlab-frr", "cm", "linux-rules", "sonic-acl"]
_FOLDERS = ("containerlab-frr", "linux-rules", "sonic-acl")
"""Forms of several files."""


@click.command(
    epilog="Examples: paralet export experiments/demo.yaml --to containerlab; "
    "paralet export fabric.topo --to yaml --output fabric.yaml"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(get_args(Form)),
    required=True,
    help="yaml: a topology file of ours; topo: htsim's topology; containerlab: containerlab's YAML, with bridges "
    "of Open vSwitch; containerlab-frr: a folder with containerlab's YAML and the configuration of FRR routers; "
    "cm: htsim's connection matrix of the spec's workload; linux-rules, sonic-acl: a file for each switch, with rules "
    "that choose paths by ranges of source ports.",
)
@click.option(
    "--routers",
    "routers_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help='With linux-rules and sonic-acl: JSON with the switch port of each router address, as {"172.16.0.1": '
    '"leaf1:5"}.  [default: the addresses of fabric routed]',
)
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file, or into this folder.")
def export(file: Path, form: Form, routers_file: Path | None, output: Path | None) -> None:
    """Print the topology of FILE, or with `--to cm` its traffic, in a format of another program.

    FILE is a spec or a topology: YAML, htsim's .topo, topology.properties of floodns, or topology.txt of ns-3. Traffic
    needs a spec.
    """
    require("models", "paralet export")
    from netmodel import SpecError

    if form in _FOLDERS and output is None:
        raise click.UsageError(f"--to {form} writes several files: give their folder by --output")
    if routers_file is not None and form not in ("linux-rules", "sonic-acl"):
        raise click.UsageError("--routers is for --to linux-rules and sonic-acl")
    try:
        if form in _FOLDERS:
            assert output is not None
            _write_files(output, _lab(file) if form == "containerlab-frr" else _rules(file, form, routers_file))
            return
        text = _connections(file) if form == "cm" else _written(_read(file)[0], form)
    except SpecError:
        raise
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(str(error)) from error
    if output is None:
        click.echo(text, nl=False)
        return
    _write(output, text)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}") from error


def _lab(file: Path) -> dict[str, str]:
    """The lab of the routers in a spec or a topology, by file."""
    from netmodel.containerlab_frr import write_router_lab

    return write_router_lab(*_read(file))


def _rules(file: Path, form: Form, routers_file: Path | None) -> dict[str, str]:
    """The rules of the switches in a spec or a topology, by file."""
    from netmodel import forwarding, router_addresses
    from netmodel.port_ranges import port_rules
    from netmodel.port_rule_files import linux_rules, sonic_acl

    topology, _ = _read(file)
    addresses = router_addresses(topology).port if routers_file is None else _addresses(routers_file)
    rules = port_rules(topology, forwarding(topology))
    for rule in (rule for own in rules.values() for rule in own):
        if topology.peer(rule.out) not in addresses:
            raise InputError(f"{routers_file}: no address has the port {topology.peer(rule.out)}")
    write, ending = (linux_rules, "rules") if form == "linux-rules" else (sonic_acl, "json")
    return {f"{switch}.{ending}": text for switch, text in write(topology, rules, addresses).items()}


def _addresses(file: Path) -> "dict[PortRef, Address]":
    """By switch port: its address."""
    from ipaddress import ip_address

    from netmodel import Document, PortRef

    read = Document.read(file).data
    if not isinstance(read, dict) or not all(isinstance(name, str) for pair in read.items() for name in pair):
        raise InputError(f'{file}: give the switch port of each address, such as {{"172.16.0.1": "leaf1:5"}}')
    return {PortRef.parse(name): ip_address(address) for address, name in read.items() if ":" in name}


def _write_files(folder: Path, files: "Mapping[str, str]") -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    for name, text in files.items():
        _write(folder / name, text)


def _written(topology: "Topology", form: Form) -> str:
    from netmodel import dump_topology
    from netmodel.containerlab import write_containerlab
    from netmodel.htsim import write_topo

    if form == "topo":
        return write_topo(topology)
    return write_containerlab(topology) if form == "containerlab" else dump_topology(topology)


def _read(file: Path) -> "tuple[Topology, bool]":
    """The topology in a file, and whether the links of its routers have no addresses."""
    from netmodel import Document, TopologySpec, is_foreign, load_topology

    if is_foreign(file):
        return load_topology(file), False
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return document.as_model(TopologySpec).topology, False
    from testbed import spec

    experiment = spec.load(document)
    return experiment.topology, experiment.spec.routers.unnumbered


def _connections(file: Path) -> str:
    """The transfers of the spec's first seed and what they wait for, as flows and triggers.

    Nodes are the topology's hosts in order, as in its .topo file.
    """
    from testbed import spec
    from testbed.simulate.dependencies import dependencies_of
    from testbed.traces.htsim import write_connections
    from testbed.training.tasks import TaskGraph

    experiment = spec.load(file)
    instance = spec.Instance(experiment, experiment.seeds[0])
    transfers = instance.transfers
    found = dependencies_of(experiment, experiment.jobs, transfers)
    number = {host.name: place for place, host in enumerate(experiment.topology.hosts)}
    nodes = [number[host] for host in instance.hosts]
    graph, size = TaskGraph(len(number)), experiment.spec.workload.item_bytes
    for transfer in transfers:
        graph.send(nodes[transfer.src], nodes[transfer.dst], transfer.count * size)
    for pause_s in found.pause_s.tolist():
        graph.join((), delay_s=pause_s)
    for earlier, later in zip(found.earlier.tolist(), found.later.tolist(), strict=True):
        graph.wait(earlier, later)
    return write_connections(graph)
