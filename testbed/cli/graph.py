# SPDX-License-Identifier: Apache-2.0
"""`paralet graph`: a topology as a picture."""

import webbrowser
from pathlib import Path

import click

from netmodel.printable import printable
from testbed.cli.extras import require
from testbed.cli.options import FileToWrite
from testbed.errors import TestbedError


@click.command(epilog="Example: paralet graph experiments/demo.yaml --out demo.svg --open")
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE",
    type=FileToWrite(),
    help="File for the picture. Default: the topology's name with .svg, in the working folder.",
)
@click.option("--open", "opened", is_flag=True, help="Show it in a browser.")
def graph(spec_file: Path, out: Path | None, opened: bool) -> None:
    """Draw the topology of the file SPEC as an SVG picture.

    SPEC is an experiment or a topology. Hosts are at the bottom, and switches by their distance from hosts. Under the
    pointer a browser shows the addresses of hosts, and the ports and rates of links. Needs no root.
    """
    require("models", "paralet graph")
    from testbed.report.topology_picture import svg_of
    from testbed.spec import load_bare

    topology = load_bare(spec_file).built
    file = Path(f"{topology.name}.svg") if out is None else out
    file.write_text(svg_of(topology))
    click.echo(printable(f"Picture: {file}"))
    if opened and not webbrowser.open(file.resolve().as_uri()):
        raise TestbedError(f"there is no browser here to show {file}")
