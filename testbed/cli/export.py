# SPDX-License-Identifier: Apache-2.0
"""`paralet export`: a topology or the traffic of a spec in formats of other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from testbed.cli.extras import require
from testbed.errors import InputError

if TYPE_CHECKING:
    from netmodel import Topology

Form = Literal["yaml", "topo", "containerlab", "containerlab-frr", "cm"]


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
    "cm: htsim's connection matrix of the spec's workload.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file, or into this folder.")
def export(file: Path, form: Form, output: Path | None) -> None:
    """Print the topology of FILE, or with `--to cm` its traffic, in a format of another program.

    FILE is a spec or a topology: YAML, htsim's .topo, topology.properties of floodns, or topology.txt of ns-3. Traffic
    needs a spec.
    """
    require("models", "paralet export")
    from netmodel import SpecError

    if form == "containerlab-frr" and output is None:
        raise click.UsageError("--to containerlab-frr writes several files: give their folder by --output")
    try:
        if form == "containerlab-frr":
            assert output is not None
            _write_lab(file, output)
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


def _write_lab(file: Path, folder: Path) -> None:
    """Write the lab of the routers in a spec or a topology."""
    from netmodel.containerlab_frr import write_router_lab

    lab = write_router_lab(*_read(file))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    for name, text in lab.items():
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
