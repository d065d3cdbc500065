# SPDX-License-Identifier: Apache-2.0
"""`paralet export`: a topology or the traffic of a spec in formats of other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from testbed.cli.extras import require
from testbed.errors import InputError

if TYPE_CHECKING:
    from netmodel import Topology

Form = Literal["yaml", "topo", "containerlab", "cm"]


@click.command(
    epilog="Examples: paralet export experiments/demo.yaml --to containerlab; "
    "paralet export fabric.topo --to yaml --output fabric.yaml"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(["yaml", "topo", "containerlab", "cm"]),
    required=True,
    help="yaml: a topology file of ours; topo: htsim's topology; containerlab: containerlab's YAML; cm: htsim's "
    "connection matrix of the spec's workload.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
def export(file: Path, form: Form, output: Path | None) -> None:
    """Print the topology of FILE, or with `--to cm` its traffic, in a format of another program.

    FILE is a spec or a topology: YAML, htsim's .topo, topology.properties of floodns, or topology.txt of ns-3. Traffic
    needs a spec.
    """
    require("models", "paralet export")
    from netmodel import SpecError

    try:
        text = _connections(file) if form == "cm" else _written(_topology(file), form)
    except SpecError:
        raise
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(str(error)) from error
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}") from error


def _written(topology: "Topology", form: Form) -> str:
    from netmodel import dump_topology
    from netmodel.containerlab import write_containerlab
    from netmodel.htsim import write_topo

    if form == "topo":
        return write_topo(topology)
    return write_containerlab(topology) if form == "containerlab" else dump_topology(topology)


def _topology(file: Path) -> "Topology":
    from netmodel import Document, TopologySpec, is_foreign, load_topology

    if is_foreign(file):
        return load_topology(file)
    document = Document.read(file)
    if not isinstance(document.data, dict) or "topology" not in document.data:
        return document.as_model(TopologySpec).topology
    from testbed import spec

    return spec.load(document).topology


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
