# SPDX-License-Identifier: Apache-2.0
"""`paralet probe`: which source port takes which path to a host, measured. Needs neither root nor a topology."""

import json
import random
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from netmodel.printable import printable
from testbed.cli.extras import require
from testbed.cli.options import FileToWrite
from testbed.errors import InputError, TestbedError

if TYPE_CHECKING:
    from hostlib.probing import ProbeLimits, Target
    from netmodel.probing.inference import FoundTopology, Polarised
    from netmodel.probing.observations import ProbeFile
    from netmodel.probing.paths import PairPaths
    from testbed.probing.survey import Survey, Ttl

_FIRST_PORT, _LAST_PORT = 49152, 65535
_PORTS = 64


class _Ports(click.ParamType[tuple[int, ...]]):
    """A number of source ports, drawn at random, or a range of them."""

    name = "N|FIRST-LAST"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The ports."""
        if isinstance(value, tuple):
            return value
        first, dash, last = str(value).partition("-")
        if first.isdecimal() and not dash and 1 <= int(first) <= _LAST_PORT - _FIRST_PORT + 1:
            # Always the same, so that two runs compare the same ports; at random, since hashes may be linear.
            return tuple(sorted(random.Random(1).sample(range(_FIRST_PORT, _LAST_PORT + 1), int(first))))
        if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= _LAST_PORT:
            return tuple(range(int(first), int(last) + 1))
        raise click.BadParameter(
            f"{value!r} is neither a number (1 to 16384) nor a range such as 49152-49215", ctx, param
        )


class _Ttl(click.ParamType["Ttl"]):
    """`top`, `all`, or a hop."""

    name = "top|all|N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "Ttl":
        """The time to live, or what stands for it."""
        text = str(value)
        if text == "top":
            return "top"
        if text == "all":
            return "all"
        if text.isdecimal() and 1 <= int(text) <= 255:
            return int(text)
        raise click.BadParameter(f"{value!r} is neither top nor all nor a number between 1 and 255", ctx, param)


@click.command(
    epilog="Examples: paralet probe 10.0.1.1; paralet probe node7 node8 --ports 256 --write node1.json; "
    "paralet probe --from-hosts node1.json --from-hosts node2.json --write-topology fabric.yaml"
)
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option(
    "--ports",
    type=_Ports(),
    default=str(_PORTS),
    show_default=True,
    help=f"Source ports: so many of {_FIRST_PORT} to {_LAST_PORT}, always the same ones, or a range.",
)
@click.option("--from", "source", metavar="ADDRESS", help="Address of this host to probe from.  [default: by route]")
@click.option(
    "--destination-port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    default=4791,
    show_default=True,
    help="Port on which the flows are received, since switches hash it.",
)
@click.option("--protocol", type=click.Choice(["udp", "tcp"]), default="udp", show_default=True, help="Of the flows.")
@click.option("--qpn", metavar="N", type=click.IntRange(0, 0xFFFFFF), help="Destination QPN that UDP probes carry.")
@click.option(
    "--ttl",
    type=_Ttl(),
    default="top",
    show_default=True,
    help="Hop at which all ports are asked: the middle of the way, every one, or this one.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(min=0),
    default=1000.0,
    show_default=True,
    help="Probes per second at most; 0: no limit.",
)
@click.option(
    "--router-rate",
    metavar="N",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Answers per second that each router gives this host; 0: no limit.",
)
@click.option(
    "--router-burst",
    metavar="N",
    type=click.FloatRange(min=1),
    default=6.0,
    show_default=True,
    help="Answers that a router gives at once.",
)
@click.option(
    "--time",
    "time_s",
    metavar="S",
    type=click.FloatRange(min=1, max=86400),
    default=60.0,
    show_default=True,
    help="Seconds for each step of a host; what is left then is not asked.",
)
@click.option("--linear", is_flag=True, help="Also find whether the hash is linear, with some 60 further probes.")
@click.option("--names", "dns", is_flag=True, help="Look up the routers' names by reverse DNS.")
@click.option(
    "--topology",
    "topology_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Name routers as this topology does, whose addresses are those of fabric `routed`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every port.")
@click.option("--write", "output", metavar="FILE", type=FileToWrite(), help="Write all answers to this file.")
@click.option(
    "--host-name",
    metavar="NAME",
    default=socket.gethostname,
    help="With --write: name of this host.  [default: its own]",
)
@click.option(
    "--from-hosts",
    "files",
    metavar="FILE",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Send nothing: join what several hosts have written with --write. May be repeated.",
)
@click.option(
    "--write-topology",
    "found_file",
    metavar="FILE",
    type=FileToWrite(),
    help="With --from-hosts: write the topology as found.",
)
@click.option(
    "--write-routers",
    "routers_file",
    metavar="FILE",
    type=FileToWrite(),
    help="With --write-topology: write the port or switch of each address, for `paralet path-service run`.",
)
@click.option(
    "--link-rate",
    metavar="RATE",
    default="100Gbps",
    show_default=True,
    help="With --write-topology: the rate of every link, which probes do not tell.",
)
def probe(
    hosts: tuple[str, ...],
    ports: tuple[int, ...],
    source: str | None,
    destination_port: int,
    protocol: Literal["udp", "tcp"],
    qpn: int | None,
    ttl: "Ttl",
    rate: float,
    router_rate: float,
    router_burst: float,
    time_s: float,
    linear: bool,
    dns: bool,
    topology_file: Path | None,
    as_json: bool,
    output: Path | None,
    host_name: str,
    files: tuple[Path, ...],
    found_file: Path | None,
    routers_file: Path | None,
    link_rate: str,
) -> None:
    """Show the paths to each HOST and the source ports that take them, as the routers on the way tell.

    Packets with a flow's own addresses and ports and a small time to live make each router name itself (ICMP time
    exceeded). No receiver takes them for data. Exit status 1 if no port can be pinned to a path.
    """
    if bool(hosts) == bool(files):
        raise click.UsageError("give either hosts, or what hosts have written with --from-hosts")
    if found_file is not None and not files:
        raise click.UsageError("--write-topology needs --from-hosts: one host does not see the whole fabric")
    if routers_file is not None and found_file is None:
        raise click.UsageError("--write-routers needs --write-topology: the names are those of its switches")
    name = _naming(topology_file, dns)
    if files:
        pinnable = _joined(files, found_file, routers_file, link_rate, name, as_json)
    else:
        from hostlib.probing import ProbeLimits
        from testbed.probing.survey import Questions

        limits = ProbeLimits(rate=rate, router_rate=router_rate, router_burst=router_burst)
        targets = [_target(host, source, destination_port, protocol, qpn) for host in hosts]
        pinnable = _probed(
            targets, Questions(ports, ttl, time_s=time_s, linear=linear), limits, name, output, host_name, as_json
        )
    if not pinnable:
        raise click.exceptions.Exit(1)


def _naming(topology_file: Path | None, dns: bool) -> Callable[[str], str]:
    from testbed.probing.names import dns_name, names_of

    if topology_file is None:
        return dns_name if dns else str
    require("models", "--topology")
    from testbed.cli.fabric import fabric_of

    try:
        known = names_of(fabric_of(topology_file, "linux").topology)
    except ValueError as error:
        raise InputError(f"{topology_file}: {error}") from error
    return lambda address: known.get(address, address)


def _target(
    host: str, source: str | None, destination_port: int, protocol: Literal["udp", "tcp"], qpn: int | None
) -> "Target":
    from hostlib.parameters import Parameters
    from hostlib.probing import SOME_QPN, Target

    try:
        # The first address of the family of --from.
        family = 0 if source is None else socket.AF_INET if ip_address(source).version == 4 else socket.AF_INET6
        address = str(socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM)[0][4][0])
        own = Parameters().address(address) if source is None else str(ip_address(source))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{host} cannot be probed: {reason}") from error
    if own == address or ip_address(address).is_loopback:
        raise InputError(f"{host} is this host: no router is on the way")
    return Target(own, address, destination_port, protocol, SOME_QPN if qpn is None else qpn)


# One host probes


def _probed(
    targets: "list[Target]",
    questions: Any,
    limits: "ProbeLimits",
    name: Callable[[str], str],
    output: Path | None,
    host_name: str,
    as_json: bool,
) -> bool:
    from hostlib import DeviceError
    from hostlib.probing import Prober
    from netmodel.probing.observations import ProbeFile, ProbeFileError, save
    from testbed.probing import nic, reverse_path
    from testbed.probing.remarks import pair_of, remarks
    from testbed.probing.survey import survey

    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    surveys, dropped = [], [reverse_path.dropped()]
    try:
        prober = Prober(limits)
        for target in targets:
            click.echo(f"paralet: probing {printable(target.destination)}", err=True)
            surveys.append(survey(prober, target, questions))
            dropped.append(reverse_path.dropped())
    except (DeviceError, ValueError) as error:
        raise InputError(str(error)) from error
    if output is not None:
        seen = tuple(one for each in surveys for one in each.observations)
        try:
            save(output, ProbeFile(host_name, began, seen))
        except ProbeFileError as error:
            raise TestbedError(str(error)) from error
    found = [(each, pair_of(each)) for each in surveys]
    said = [
        [
            *_statements(pair),
            *remarks(each, pair),
            *nic.remarks_on(each.target.source),
            *reverse_path.remarks_on(after - before),
        ]
        for (each, pair), (before, after) in zip(found, pairwise(dropped), strict=True)
    ]
    if as_json:
        pairs = [
            _pair_json(pair, sentences, each, limits)
            for (each, pair), sentences in zip(found, said, strict=True)
            if pair is not None
        ]
        click.echo(json.dumps({"pairs": pairs, "counters": prober.counters()}))
    else:
        for (each, pair), sentences in zip(found, said, strict=True):
            _print(pair, str(each.target.destination), sentences, name, each, limits)
    return all(pair is not None and pair.pinnable for _, pair in found)


def _statements(pair: "PairPaths | None") -> Iterator[str]:
    return (finding.statement for finding in pair.findings) if pair is not None else iter(())


# Files of several hosts


def _joined(
    files: tuple[Path, ...],
    found_file: Path | None,
    routers_file: Path | None,
    link_rate: str,
    name: Callable[[str], str],
    as_json: bool,
) -> bool:
    require("models", "--from-hosts")
    from netmodel import dump_topology, parse_rate
    from netmodel.probing.inference import InferenceError, infer, polarised
    from netmodel.probing.observations import ProbeFileError, load
    from netmodel.probing.paths import paths_of

    try:
        rate_bps = parse_rate(link_rate)
    except ValueError as error:
        raise InputError(f"--link-rate {link_rate}: {error}") from error
    try:
        read: list[ProbeFile] = [load(file) for file in files]
    except ProbeFileError as error:
        raise InputError(str(error)) from error
    pairs = [pair for file in read for pair in paths_of(file.observations) if pair.paths or pair.findings]
    topology: FoundTopology | None = None
    notes: tuple[str, ...]
    try:
        topology = infer(read, rate_bps=rate_bps)
    except InferenceError as error:
        if found_file is not None:
            raise TestbedError(f"no topology follows from these files: {error}") from error
        notes = (f"no topology follows from these files: {error}",)
        missing: tuple[Polarised, ...] = ()
    else:
        notes, missing = topology.notes, polarised(topology, pairs)
    if found_file is not None and topology is not None:
        owners = {str(address): str(owner) for address, owner in (topology.ports or topology.routers).items()}
        for file, text in (
            (found_file, dump_topology(topology.topology)),
            (routers_file, json.dumps(owners, indent=1)),
        ):
            try:
                if file is not None:
                    file.write_text(text)
            except OSError as error:
                raise TestbedError(f"{file} cannot be written: {error.strerror}") from error
    if as_json:
        click.echo(
            json.dumps(
                {
                    "pairs": [_pair_json(pair, list(_statements(pair))) for pair in pairs],
                    "polarised": [one.statement for one in missing],
                    "notes": notes,
                    "topology": None if topology is None else dump_topology(topology.topology),
                }
            )
        )
    else:
        for pair in pairs:
            _print(pair, pair.pair.destination, list(_statements(pair)), name)
        _say([one.statement for one in missing] + list(notes))
        if topology is not None:
            switches = topology.topology.switches
            _say([f"found {len(switches)} switches and {len(topology.topology.links)} links"])
    return bool(pairs) and all(pair.pinnable for pair in pairs)


# What is printed


def _print(
    pair: "PairPaths | None",
    destination: str,
    sentences: list[str],
    name: Callable[[str], str],
    survey: "Survey | None" = None,
    limits: "ProbeLimits | None" = None,
) -> None:
    from testbed.cli.tables import console, table
    from testbed.probing.picture import picture
    from testbed.probing.remarks import lost_of

    if pair is None or not pair.paths:
        _say([f"{destination}: no path found", *sentences])
        return
    known = sum(len(path.ports) for path in pair.paths)
    even = known / len(pair.paths)
    plural = "path" if len(pair.paths) == 1 else "paths"
    title = f"{pair.pair}: {known} ports on {len(pair.paths)} {plural}"
    if len(pair.paths) > 1:
        title += f", at most {len(pair.paths[0].ports) / even:.2f} times the mean"
    shown = table(title, ["hops"], ["ports", "share", "lost", "round trip"])
    for path, share in zip(pair.paths, pair.shares(), strict=True):
        lost = "" if survey is None or limits is None else "{} of {}".format(*lost_of(survey, path, limits))
        time = "" if path.rtt_s is None else f"{path.rtt_s * 1e3:.3f} ms"
        way = " > ".join("?" if router is None else name(router) for router in path.hops)
        shown.add_row(way, str(len(path.ports)), f"{share:.0%}", lost, time)
    out = console()
    out.print(shown)
    for line in picture(pair.pair.source, pair.pair.destination, pair.paths, name):
        out.print(line, soft_wrap=True)
    _say(sentences)


def _say(sentences: list[str]) -> None:
    for sentence in sentences:
        click.echo(printable(f"- {sentence}"))


def _pair_json(
    pair: "PairPaths",
    sentences: list[str],
    survey: "Survey | None" = None,
    limits: "ProbeLimits | None" = None,
) -> dict[str, Any]:
    from testbed.probing.remarks import lost_of

    paths = []
    for path in pair.paths:
        row: dict[str, Any] = {
            "hops": path.hops,
            "ports": path.ports,
            "probes": path.probes,
            "answers": path.answers,
            "rtt_s": path.rtt_s,
        }
        if survey is not None and limits is not None:
            row["lost"], row["lost_of"] = lost_of(survey, path, limits)
        paths.append(row)
    found: dict[str, Any] = {
        "from": pair.pair.source,
        "to": pair.pair.destination,
        "protocol": pair.pair.protocol,
        "destination_port": pair.pair.destination_port,
        "pinnable": pair.pinnable,
        "paths": paths,
        "silent": pair.silent,
        "undecided": pair.undecided,
        "findings": sentences,
    }
    if survey is not None:
        found["hops"] = survey.hops
        found["told_apart_at"] = survey.told_by
        if survey.linear is not None:
            found["linear"] = survey.linear.affine
    return found
