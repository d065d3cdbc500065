# SPDX-License-Identifier: Apache-2.0
"""`paralet predict`: the path of a flow, or the source ports that lead to a path. Needs neither root nor a fabric."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from netmodel.printable import printable_lines
from testbed.cli.extras import require
from testbed.cli.fabric import HashName, fabric_of, hash_option, topology_option
from testbed.errors import InputError

if TYPE_CHECKING:
    from netmodel import EcmpHash, Forwarding, Topology
    from netmodel import Path as FabricPath

_SHOWN_PORTS = 8

_End: TypeAlias = tuple[str, int]
"""A host, and the index of its NIC."""


@click.command(
    epilog="Examples: paralet predict h1 h5 50000 --topology experiments/demo.yaml; "
    "paralet predict h1 h5 --via spine2 --topology experiments/demo.yaml"
)
@click.argument("src")
@click.argument("dst")
@click.argument("port", type=click.IntRange(0, 65535), required=False)
@topology_option()
@click.option("--via", metavar="SWITCH", help="List the UDP source ports whose path crosses this switch.")
@click.option(
    "--next-hops",
    "next_hops_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The next hops of Linux routers, in their kernels' order: observations.json of a run on fabric routed, or "
    'JSON such as {"leaf1": {"10.0.1.1": [6, 5]}}. The hash is then linux by default, or that of a spec.',
)
@hash_option
@click.option("--nic", metavar="NAME", help="The NIC of both hosts. Default: that of the spec, else the first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every port.")
def predict(
    src: str,
    dst: str,
    port: int | None,
    topology_file: Path,
    via: str | None,
    next_hops_file: Path | None,
    hash_name: HashName | None,
    nic: str | None,
    as_json: bool,
) -> None:
    """Print the path from host SRC to host DST of a RoCEv2 flow with UDP source port PORT.

    Without PORT: every equal-cost path, and the source ports (49152 to 65535) that take it.
    """
    if port is not None and via is not None:
        raise click.UsageError("give either PORT or --via, not both")
    require("models", "paralet predict")
    from netmodel import NoRouteError

    fabric = fabric_of(topology_file, hash_name, routers=next_hops_file is not None)
    topology, nic = fabric.topology, nic or fabric.nic
    routes = None if next_hops_file is None else _read_routes(next_hops_file, topology)
    for name in (src, dst):
        if not topology.has_host(name):
            raise InputError(f"topology {topology.name} has no host {name!r}")
    if src == dst:
        raise InputError(f"{src} is both source and destination: no link is crossed")
    ends = (src, _nic_index(topology, src, nic)), (dst, _nic_index(topology, dst, nic))
    try:
        answer = (
            _all(topology, *ends, fabric.ecmp_hash, routes)
            if port is None
            else _one(topology, *ends, port, fabric.ecmp_hash, routes)
        )
    except NoRouteError as error:
        raise InputError(str(error)) from error
    if via is not None:
        answer = _crossing(topology, answer, via)
    click.echo(
        json.dumps({"src": src, "dst": dst, "hash": fabric.hash_name, "paths": answer})
        if as_json
        else printable_lines(_text(answer))
    )


def _read_routes(file: Path, topology: "Topology") -> "Forwarding":
    from netmodel.next_hop_files import read_next_hops
    from testbed.traces.files import bytes_of

    try:
        return read_next_hops(bytes_of(file), topology, str(file))
    except ValueError as error:
        raise InputError(str(error)) from error


def _nic_index(topology: "Topology", host: str, nic: str | None) -> int:
    names = [its.name for its in topology.host(host).nics]
    if nic is not None and nic not in names:
        raise InputError(f"--nic {nic}: host {host} has {', '.join(names)}")
    return 0 if nic is None else names.index(nic)


def _one(
    topology: "Topology", src: _End, dst: _End, port: int, ecmp_hash: "EcmpHash", routes: "Forwarding | None"
) -> list[dict[str, Any]]:
    from netmodel import Flow, path_of

    addresses = [topology.host(name).nics[nic].address for name, nic in (src, dst)]
    path = path_of(topology, Flow(addresses[0], addresses[1], port), ecmp_hash, routes=routes)
    return [_described(topology, path, [port])]


def _all(
    topology: "Topology", src: _End, dst: _End, ecmp_hash: "EcmpHash", routes: "Forwarding | None"
) -> list[dict[str, Any]]:
    import numpy as np

    from netmodel import ENTROPY_PORTS, paths_of_ports

    nics = {"src_nic": src[1], "dst_nic": dst[1]}
    paths, index = paths_of_ports(topology, src[0], dst[0], ecmp_hash, routes=routes, **nics)
    return [
        _described(topology, path, (np.flatnonzero(index == number) + ENTROPY_PORTS.start).tolist())
        for number, path in enumerate(paths)
    ]


def _crossing(topology: "Topology", answer: list[dict[str, Any]], via: str) -> list[dict[str, Any]]:
    try:
        topology.switch(via)
    except KeyError:
        raise InputError(f"topology {topology.name} has no switch {via!r}") from None
    found = [entry for entry in answer if via in entry["nodes"]]
    if not found:
        raise InputError(f"no shortest path crosses {via}; where hosts have several NICs, --nic names another")
    return found


def _described(topology: "Topology", path: "FabricPath", ports: list[int]) -> dict[str, Any]:
    last = topology.peer(path[-1])
    delays_s = [delay_s for hop in path if (delay_s := topology.link_at(hop).delay_s) is not None]
    return {
        "nodes": [*(hop.node for hop in path), last.node],
        "out_ports": [str(hop) for hop in path],
        "ports": ports,
        "delay_s": round(math.fsum(delays_s), 12) if delays_s else None,
    }


def _text(answer: list[dict[str, Any]]) -> str:
    return "\n".join(f"{_way(entry)}  {_ports(entry['ports'])}{_delay(entry['delay_s'])}" for entry in answer)


def _way(entry: dict[str, Any]) -> str:
    return " -> ".join([*entry["out_ports"], entry["nodes"][-1]])


def _delay(delay_s: float | None) -> str:
    from netmodel.times import format_seconds

    return "" if delay_s is None else f"  delay {format_seconds(delay_s)}"


def _ports(ports: list[int]) -> str:
    if len(ports) == 1:
        return f"port {ports[0]}"
    dots = ", .." if len(ports) > _SHOWN_PORTS else ""
    return f"{len(ports)} ports: {', '.join(map(str, ports[:_SHOWN_PORTS]))}{dots}"
