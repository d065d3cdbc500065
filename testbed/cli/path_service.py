# SPDX-License-Identifier: Apache-2.0
"""`paralet path-service`: runs the path service or inspects a running one (docs/path-service.md)."""

import json
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from netmodel.printable import printable
from testbed.cli.endpoints import address_and_port, endpoint_text, ipv4_and_port
from testbed.cli.extras import require
from testbed.cli.fabric import Fabric, HashName, fabric_of, hash_option, topology_option
from testbed.cli.group import OneSentenceGroup
from testbed.cli.options_file import OptionsCommand, option_name, options_file_option, parsed_again
from testbed.cli.path_service_control import COMMANDS
from testbed.cli.path_service_etcd import EtcdOptions, etcd_options
from testbed.cli.path_service_options import channels_of, json_option, operator_of, tls_options, token_file_option
from testbed.errors import InputError, TestbedError, sentence_of

if TYPE_CHECKING:
    from sdn.path_service.run import Look

DEFAULT_PORT = 4792
METRICS_PORT = 9466

_PLANNERS = ("optimal", "greedy", "annealing", "ilp", "ecmp")
"""Ours of `sdn.planners.PLANNERS`, its default first."""
_LIVE = {"planner", "forecast", "rates", "hash_name"}
"""Parameters of `run` that a reload may change."""


@click.group(
    "path-service",
    cls=OneSentenceGroup,
    epilog="Example: paralet path-service run --topology fabric.yaml --token-file token",
)
def path_service() -> None:
    """Plan paths for hosts that announce elephants, and inspect a running path service.

    The other commands find the running path service by --token-file: its socket is in the same folder.
    """


for _command in COMMANDS:
    path_service.add_command(_command)


@path_service.command(
    cls=OptionsCommand,
    epilog="Example: paralet path-service run --topology fabric.yaml --listen 10.0.0.1:4792 --token-file token",
)
@topology_option("It must be a two-level leaf-spine or a Clos of three tiers.")
@click.option(
    "--listen",
    metavar="ADDR:PORT",
    default=f"127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    help="Where hosts connect; with port 0 the kernel chooses one.",
)
@token_file_option
@tls_options
@click.option(
    "--planner",
    metavar=f"[{'|'.join(_PLANNERS)}]",
    default=_PLANNERS[0],
    show_default=True,
    help="The planner, or that of another package.",
)
@hash_option
@click.option(
    "--pinning",
    type=click.Choice(["hash", "measured"]),
    default="hash",
    show_default=True,
    help="How ports are found that take a path: by the switches' hash, or by probes of the hosts.",
)
@click.option(
    "--routers",
    "routers_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="With --pinning measured: the port or switch that has each address by which routers answer. Default: as "
    "fabric routed gives them, if the topology is a spec of that fabric.",
)
@click.option(
    "--lanes",
    type=click.Choice(["distinct", "together"]),
    default="distinct",
    show_default=True,
    help="With --pinning measured: whether the lanes of a host take several planned paths, or one.",
)
@click.option(
    "--router-answers",
    metavar="N",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="With --pinning measured: answers per second that a router gives one host; 0: no limit.",
)
@click.option("--forecast", is_flag=True, help="Learn which elephants repeat, and assign their paths in advance.")
@click.option("--rates", is_flag=True, help="Limit every elephant to its max-min fair rate.")
@click.option(
    "--state",
    "state_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where drains, pins and dead links survive a restart. [default: beside the token file, with .state added]",
)
@click.option(
    "--event-log",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append who asked what, and all events, to FILE; `replay` reads it.",
)
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve metrics for Prometheus at http://ADDRESS:PORT/metrics, to all who reach it.",
)
@click.option(
    "--peer",
    metavar="ADDR:PORT",
    help="Where the other one of two path services listens: one leads, the other follows it and takes over from it.",
)
@click.option("--standby", is_flag=True, help="With --peer: let the other one lead when both have just started.")
@click.option(
    "--lease",
    "lease_s",
    metavar="SECONDS",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    help="With --peer: a service that answers neither the other one nor most hosts for so long is replaced. Give both "
    "the same. With --etcd: one that does not reach etcd for so long; etcd takes whole seconds from 2 on.",
)
@etcd_options
@options_file_option
@json_option
def run(
    topology_file: Path,
    listen: str,
    token_file: Path,
    tls_ca: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    planner: str,
    hash_name: HashName | None,
    pinning: Literal["hash", "measured"],
    routers_file: Path | None,
    lanes: Literal["distinct", "together"],
    router_answers: float,
    forecast: bool,
    rates: bool,
    state_file: Path | None,
    event_log: Path | None,
    metrics: str | None,
    peer: str | None,
    standby: bool,
    lease_s: float,
    etcd: EtcdOptions,
    as_json: bool,
) -> None:
    """Serve until Ctrl-C or SIGTERM. Logs to standard error.

    When hosts can connect, one line on standard output says where. A missing token file is created.
    """
    require("service", "paralet path-service")
    from sdn.path_service.admin import AdminError, admin_socket
    from sdn.path_service.availability.member import Beside
    from sdn.path_service.availability.pair import Times
    from sdn.path_service.control.files import Files, ReadError
    from sdn.path_service.control.store import StoreError
    from sdn.path_service.log_file import LogError
    from sdn.path_service.run import Place, serve
    from sdn.path_service.service import Options
    from sdn.path_service.token import TokenError, made_or_read, read_token
    from sdn.planners import PLANNERS

    address, port = address_and_port("--listen", listen, f"10.0.0.1:{DEFAULT_PORT} or [fd00::1]:{DEFAULT_PORT}")
    metrics_at = None if metrics is None else ipv4_and_port("--metrics", metrics, f"127.0.0.1:{METRICS_PORT}")
    beside = None
    if peer is not None:
        peer_at = address_and_port("--peer", peer, f"10.0.0.2:{DEFAULT_PORT}")
        if peer_at == (address, port):
            raise click.UsageError("--peer is where the other one listens, and --listen where this one does")
        beside = Beside(*peer_at, standby, Times(lease_s, lease_s / 5))
    elif standby:
        raise click.UsageError("--standby needs --peer")
    if etcd.is_given and (peer is not None or state_file is not None):
        raise click.UsageError("with --etcd services need no --peer, and their state is in etcd, not in --state")
    consensus = etcd.store(_called(address, port), lease_s)
    fabric = fabric_of(topology_file, hash_name)
    topology = fabric.topology
    if planner not in PLANNERS:
        raise click.BadParameter(f"{planner!r} is none of {', '.join(PLANNERS)}", param_hint="--planner")
    try:
        PLANNERS[planner].cabling(topology)
    except ValueError as error:  # the path service does not serve the topology
        raise InputError(f"{topology_file}: {error}") from error
    if routers_file is not None and pinning != "measured":
        raise click.UsageError("--routers needs --pinning measured")
    routers = _routers(fabric, routers_file) if pinning == "measured" else None
    try:
        token = made_or_read(token_file)
    except TokenError as error:
        raise InputError(str(error)) from error
    channels = channels_of(tls_ca, tls_certificate, tls_key)
    place = Place(address, port, admin_socket(token_file))

    exported: dict[str, str] = {}

    def export(look: "Look") -> None:
        if metrics_at is not None:
            exported["metrics"] = _export(look, *metrics_at)

    def ready(address: str, port: int) -> None:
        said = {"event": "ready", "listen": endpoint_text(address, port), "admin": str(place.admin), **exported}
        hosts = len(topology.hosts)
        text = f"ready: {hosts} hosts of {topology.name} may connect to {endpoint_text(address, port)}"
        click.echo(json.dumps(said) if as_json else printable(text))
        sys.stdout.flush()

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    options = Options(planner, forecast, rates, lanes, router_answers)
    context = click.get_current_context()
    known_hash = None if pinning == "measured" and hash_name is None else fabric.ecmp_hash

    def reread() -> Files:
        try:
            given = parsed_again(context)
            fixed = [name for name in context.params if name not in _LIVE and given[name] != context.params[name]]
            if fixed:
                names = ", ".join(option_name(context.command, name) for name in fixed)
                raise ReadError(f"{names} cannot change while the service runs: start it again")
            again = fabric_of(topology_file, given["hash_name"])
            options = Options(given["planner"], given["forecast"], given["rates"], lanes, router_answers)
            token = read_token(token_file)
            channels = channels_of(tls_ca, tls_certificate, tls_key)
        except click.ClickException as error:
            raise ReadError(error.format_message()) from error
        except OSError as error:
            raise ReadError(sentence_of(error)) from error
        except (TestbedError, ValueError) as error:
            raise ReadError("; ".join(str(error).splitlines())) from error
        measures = pinning == "measured" and given["hash_name"] is None
        if measures:
            return Files(again.topology, None, None, token, options, channels)
        return Files(again.topology, again.ecmp_hash, again.hash_name, token, options, channels)

    try:
        missing = serve(
            topology,
            options,
            token,
            place,
            ecmp_hash=known_hash,
            routers=routers,
            hash_name=None if known_hash is None else fabric.hash_name,
            event_log=event_log,
            export=export,
            state=state_file or token_file.with_name(f"{token_file.name}.state"),
            beside=beside,
            consensus=consensus,
            reread=reread,
            channels=channels,
            ready=ready,
        )
    except StoreError as error:
        raise InputError(f"--state: {error}") from error
    except LogError as error:
        raise InputError(f"--event-log {error}") from error
    except AdminError as error:
        raise TestbedError(str(error)) from error
    except OSError as error:
        raise TestbedError(f"--listen {listen}: {error.strerror}") from error
    except ValueError as error:  # paths cannot be measured
        raise InputError(f"--pinning {pinning}: {error}") from error
    if missing:
        raise TestbedError(f"{event_log} lacks {missing} events: its disk was full or too slow")


@path_service.command(epilog="Example: paralet path-service status --token-file /etc/paralet/token --json")
@token_file_option
@json_option
def status(token_file: Path, as_json: bool) -> None:
    """Show the numbers of hosts and elephants, the quality of the plan, and refusals."""
    with operator_of(token_file) as operator:
        _show(operator.status(), as_json, _print_status)


@path_service.command(epilog="Example: paralet path-service flows --token-file /etc/paralet/token --most 20")
@token_file_option
@click.option(
    "--most", metavar="N", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Show the oldest N."
)
@json_option
def flows(token_file: Path, most: int, as_json: bool) -> None:
    """Show open elephants: source, destination, age and path."""
    with operator_of(token_file) as operator:
        _show(operator.flows(most), as_json, _print_flows)


@path_service.command(epilog="Example: paralet path-service paths --token-file /etc/paralet/token")
@token_file_option
@json_option
def paths(token_file: Path, as_json: bool) -> None:
    """Show every link between a leaf and a spine, with the number of elephants up and down."""
    with operator_of(token_file) as operator:
        _show(operator.paths(), as_json, _print_paths)


@path_service.command(
    "fail-link",
    epilog="Examples: paralet path-service fail-link leaf1:5 --token-file /etc/paralet/token; "
    "paralet path-service fail-link spine2 --up --token-file /etc/paralet/token",
)
@click.argument("link", metavar="LINK")
@token_file_option
@click.option("--up", is_flag=True, help="Mark the link as working again.")
@json_option
def fail_link(link: str, token_file: Path, up: bool, as_json: bool) -> None:
    """Tell the path service that LINK is dead: elephants get other paths at once. No switch is touched.

    LINK is a port of either end (leaf1:5), two switches (leaf1-spine2: every link between them) or one switch
    (spine2: every link between it and other switches).
    """

    def text(said: dict[str, Any]) -> None:
        for name in said["links"]:
            click.echo(printable(f"{name.replace(' ', ' to ')} is {'up' if said['up'] else 'down'}"))

    with operator_of(token_file) as operator:
        _show(operator.link(link, up), as_json, text)


def _called(address: str, port: int) -> str:
    """What the others call a service that listens there: where it does on all addresses, the machine's name."""
    return endpoint_text(socket.gethostname() if address in ("0.0.0.0", "::") else address, port)


def _export(look: "Look", address: str, port: int) -> str:
    """Serve the figures as metrics. Returns the URL. Raises TestbedError."""
    from testbed.cli.metrics_server import serve
    from testbed.cli.path_service_metrics import PathServiceCollector
    from testbed.provenance import commit, installed_version

    try:
        port = serve(address, port, PathServiceCollector(look, installed_version(), commit()))
    except OSError as error:
        raise TestbedError(f"--metrics {address}:{port}: {error.strerror}") from error
    return f"http://{address}:{port}/metrics"


def _routers(fabric: Fabric, routers_file: Path | None) -> dict[str, str]:
    """The names of routers by address."""
    from netmodel import Document
    from sdn.measured.router_names import names_of

    if routers_file is not None:
        read = Document.read(routers_file).data
        if not isinstance(read, dict) or not all(isinstance(name, str) for pair in read.items() for name in pair):
            raise InputError(f'{routers_file}: give the owner of each address, such as {{"172.16.0.1": "leaf1:5"}}')
        return read
    if fabric.routers is None:
        raise InputError(
            "--pinning measured: it needs the addresses by which routers answer; give --routers, which `paralet probe "
            "--from-hosts` can write"
        )
    return names_of(fabric.topology, unnumbered=fabric.routers.unnumbered)


def _show(said: dict[str, Any], as_json: bool, text: Callable[[dict[str, Any]], None]) -> None:
    if as_json:
        click.echo(json.dumps(said, indent=2))
    else:
        text(said)


def _print_status(said: dict[str, Any]) -> None:
    from netmodel import format_rate

    click.echo(printable(f"{said['topology']}, planner {said['options']['planner']}"))
    click.echo(f"{said['hosts']:d} hosts, {said['elephants']:d} elephants in {said['commodities']:d} commodities")
    if said["slowest_bps"] is not None:
        text = f"slowest elephant {format_rate(round(said['slowest_bps']))}"
        if said["gap"] is not None:
            gap = "the least possible" if said["gap"] == 0 else f"at most {said['gap']:.0%} above the least possible"
            text += f"; congestion {gap}"
        click.echo(printable(text))
    if said["measured"] is not None:
        _print_measured(said["measured"])
    if said["polarised"] is not None:
        click.echo(printable(said["polarised"]))
    if said["dead_links"]:
        click.echo(printable(f"dead: {', '.join(name.replace(' ', ' to ') for name in said['dead_links'])}"))
    _print_control(said["control"])
    if said["availability"] is not None:
        _print_availability(said["availability"])
    if said["forecast"] is not None and said["forecast"]["rate"] is not None:
        click.echo(f"{said['forecast']['rate']:.0%} of forecast elephants came")
    for name, count in {**said["counts"], **{f"refused: {k}": v for k, v in said["refused"].items()}}.items():
        click.echo(printable(f"{count:>12,} {name}"))


def _print_control(said: dict[str, Any]) -> None:
    for drain in said["drains"]:
        state = "empty" if drain["empty"] else f"{drain['elephants']:g} elephants are still on it"
        click.echo(printable(f"drained: {drain['what']}, {state}"))
    for pin in said["pins"]:
        click.echo(printable(f"pinned: {pin['src']} to {pin['dst']} via {' and '.join(pin['via'])}"))
    for sentence in said["without_effect"]:
        click.echo(printable(f"without effect: {sentence}"))
    if said["unwritten"]:
        click.echo(f"{said['unwritten']:d} changes of dead links are not stored yet")


def _print_availability(said: dict[str, Any]) -> None:
    if said["decides"] == "etcd":
        if said["role"] == "leading":
            state = "another one waits" if said["followed"] else "no other one could take over"
        else:
            state = f"{said['peer']} leads" if said["peer"] else "etcd says of none that it leads"
    elif said["role"] == "leading":
        behind = (
            f"followed by {said['peer']}, {said['lag_changes']:d} changes behind, {said['witnesses']:d} hosts decide"
        )
        state = behind if said["followed"] else f"not followed: {said['peer']} could not take over"
    else:
        heard = "" if said["lag_s"] is None else f", heard {said['lag_s']:.1f} s ago"
        state = f"the other one is {said['peer']}{heard}"
    click.echo(printable(f"{said['role']} in generation {said['generation']}; {state}"))


def _print_measured(said: dict[str, Any]) -> None:
    others = said["predicted"] + said["random"] + said["no_choice"]
    click.echo(
        f"{said['probing_hosts']:d} hosts probe; of {said['pairs']:d} pairs {said['pinned']:d} are pinned, "
        f"{said['measuring']:d} being measured, {said['doubtful']:d} in doubt"
    )
    if said["connections"]:
        click.echo(
            f"{said['connections']:d} connections cannot move; of {said['connections_with_port']:d} the path is known"
        )
    if others:
        click.echo(
            f"{others:d} other pairs: {said['no_choice']:d} have one path, {said['predicted']:d} are predicted, "
            f"{said['random']:d} have random ports because their hosts do not probe"
        )
    for why, count in said["given_up"].items():
        click.echo(printable(f"{count:d} pairs given up: {why}"))
    if said["oldest_s"] is not None:
        click.echo(
            f"ports in use were measured at most {said['oldest_s']:.0f} s ago; {said['watched_ports']:d} are watched"
        )
    for event in said["events"]:
        now = "nobody answers" if event["instead"] is None else f"{event['instead']} answers"
        text = f"at {event['at_s']:.1f} s, {event['device']} to {event['peer']}, port {event['port']}: {now}"
        click.echo(printable(f"{text} instead of {event['router']}"))
    for event in said["lossy"]:
        links = " or ".join(link.replace(" ", " to ") for link in event["links"])
        lanes = f"{event['lossy']} of {event['lanes']} lanes over it, of {event['hosts']} hosts"
        click.echo(printable(f"at {event['at_s']:.1f} s, {links} loses packets: {lanes}"))
    for event in said["repinned"]:
        click.echo(
            f"at {event['at_s']:.1f} s, {event['lanes']:d} lanes had other paths; all ports were known again after "
            f"{event['seconds']:.1f} s"
        )


def _print_flows(said: dict[str, Any]) -> None:
    from testbed.cli.tables import console, table

    listing = table("", ["device", "peer", "job", "path"], ["bytes", "for s", "Gbit/s"])
    for flow in said["flows"]:
        measured = "" if flow["measured_bps"] is None else f"{flow['measured_bps'] / 1e9:.3f}"
        paths = flow["lane_paths"] or [flow["path"]]
        way = " | ".join(dict.fromkeys(" ".join(path[1:]) for path in paths)) or "ECMP: no path"
        listing.add_row(
            flow["device"],
            flow["peer"],
            flow["job"] or ("" if flow["ids"] else "expected"),
            way,
            f"{flow['bytes']:,}",
            f"{said['now_s'] - flow['since_s']:.1f}",
            measured,
        )
    console().print(listing)


def _print_paths(said: dict[str, Any]) -> None:
    from testbed.cli.tables import console, table

    listing = table("", ["lower", "upper"], ["up", "down", ""])
    for link in said["links"]:
        state = "dead" if link["dead"] else "drained" if link["drained"] else ""
        listing.add_row(link["lower"], link["upper"], str(link["up"]), str(link["down"]), state)
    console().print(listing)
