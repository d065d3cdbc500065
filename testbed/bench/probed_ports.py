# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.probed_ports`: whether data take the paths that probes tell, and how fast ports are probed.

On two and three tiers, over IPv4 and IPv6, with the kernel's hash and an affine one: a user without privilege probes
all 16,384 source ports of RoCEv2 towards another host, and then sends a datagram of data from each. Routers note which
port data leave by, and answer probes without a limit. Prints a table in Markdown. Needs root.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from emul import FabricError, RoutedFabric, sandbox
from hostlib.probing import ProbeLimits, Prober, Target
from netmodel import ROCE_PORT, Flow, LinuxCrcHash, LinuxL4Hash, PortRef, Role, Topology, clos, leaf_spine
from netmodel.printable import printable, printable_lines
from netmodel.router_plan import RouterPlan
from testbed.errors import TestbedError
from testbed.machine import this_machine

ALL_PORTS = range(0xC000, 0x10000)
_RATE_BPS = 1_000_000_000
_TIMEOUT_S = 120.0
_NOBODY = 65534
_UNLIMITED = ("net.ipv4.icmp_ratelimit=0", "net.ipv4.icmp_msgs_per_sec=1000000", "net.ipv4.icmp_msgs_burst=1000000")
_TOPMOST: tuple[Role, ...] = ("spine", "core")


@dataclass(frozen=True, slots=True)
class Scene:
    """A fabric, and the hop of its topmost tier on the way from the first host to the last."""

    name: str
    topology: Topology
    ecmp_hash: LinuxL4Hash | LinuxCrcHash
    ttl: int


@dataclass(frozen=True, slots=True)
class Found:
    """Source ports that were probed; those that a router answered; and those whose data came into the router that
    answered, by the port that it named. rate: answers a second. processor_us: microseconds of one core for a port, with
    the work of the routers that the kernel did at once."""

    ports: int
    answered: int
    agree: int
    rate: float
    processor_us: float


def scenes() -> Iterator[Scene]:
    """All combinations of tiers, IP versions and hashes. An offset of aggs keeps three tiers from polarisation."""
    for tiers, ipv6, affine in product((2, 3), (False, True), (False, True)):
        two = tiers == 2
        topology = leaf_spine(2, 4, 1, _RATE_BPS, ipv6=ipv6) if two else clos(2, 2, 2, 2, 1, _RATE_BPS, ipv6=ipv6)
        crc = LinuxCrcHash.of(topology, {} if two else {"agg": 8})
        name = f"{tiers} | {'IPv6' if ipv6 else 'IPv4'} | {'CRC-32' if affine else 'of the kernel'}"
        yield Scene(name, topology, crc if affine else LinuxL4Hash(), tiers)


def measure(fabric: RoutedFabric, ttl: int, ports: range = ALL_PORTS) -> Found:
    """Probe ports from the first host to the last, and send data from each. Routers answer without a limit from now on.

    Raises FabricError, and TestbedError where ports cannot be probed.
    """
    topology = fabric.topology
    near, far = topology.hosts[0], topology.hosts[-1]
    ends = near.nics[0].address, far.nics[0].address
    for switch in topology.switches:
        argv = [*fabric.enter(switch.name), "sysctl", "-qw", *_UNLIMITED]
        subprocess.run([*argv, "net.ipv6.icmp.ratelimit=0"], check=True, capture_output=True)
    told = _of_host(fabric, near.name, str(ends[0]), str(ends[1]), ttl, ports)
    addresses = RouterPlan(topology).link_addresses
    entered: dict[int, str] = {}
    for switch in topology.switches:
        for flow, out in fabric.observed_ports(switch.name).items():
            into = topology.peer(PortRef(switch.name, out))
            if flow == Flow(*ends, flow.src_port) and topology.switch(into.node).role in _TOPMOST:
                entered[flow.src_port] = str(addresses[into])
    routers = {int(port): str(router) for port, router in told["routers"].items()}
    agree = sum(entered.get(port) == router for port, router in routers.items())
    answered = len(routers)
    return Found(len(ports), answered, agree, answered / told["took_s"], told["used_s"] * 1e6 / max(1, answered))


def _of_host(fabric: RoutedFabric, host: str, source: str, destination: str, ttl: int, ports: range) -> Any:
    """What `as_host` prints on that host. Raises TestbedError when it fails."""
    argv = [sys.executable, "-m", "testbed.bench.probed_ports", "--as-host", source, destination, str(ttl)]
    process = fabric.popen(
        host,
        [*argv, str(ports.start), str(ports.stop)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    said, errors = process.communicate(timeout=2 * _TIMEOUT_S)
    if process.returncode:
        raise TestbedError(f"the prober on {host} ended with status {process.returncode}: {errors.strip()[-400:]}")
    return json.loads(said)


def as_host(source: str, destination: str, ttl: int, ports: range) -> dict[str, Any]:
    """The part of the host, without privilege: by port the router that answered; the seconds that all took, and those
    of processor time."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setuid(_NOBODY)
    prober = Prober(ProbeLimits(rate=0, router_rate=0))
    prober.ask(Target(source, destination), ttl, ports)
    begin_s, idle_s = time.monotonic(), time.process_time()
    prober.run(_TIMEOUT_S)
    took_s, used_s = time.monotonic() - begin_s, time.process_time() - idle_s
    seen = prober.take_observations()
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    for port in ports:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((source, port))
            one.sendto(b"data", (destination, ROCE_PORT))
    routers = {one.source_port: one.router for one in seen if one.answer == "hop"}
    return {"routers": routers, "took_s": took_s, "used_s": used_s}


def main(argv: Sequence[str]) -> int:
    """Print the table, from inside a sandbox that it makes. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.bench.probed_ports",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--as-host", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.as_host:
        source, destination, *numbers = arguments.as_host
        ttl, start, stop = map(int, numbers)
        print(json.dumps(as_host(source, destination, ttl, range(start, stop))))
        return 0
    if not sandbox.inside():
        return sandbox.run([sys.executable, "-m", "testbed.bench.probed_ports", *argv])
    machine, load = str(this_machine()), os.getloadavg()[0]
    found: dict[str, Found] = {}
    try:
        for scene in scenes():
            print(printable(scene.name.replace(" |", ",")), file=sys.stderr, flush=True)
            with (
                tempfile.TemporaryDirectory() as logs,
                RoutedFabric(scene.topology, log_dir=Path(logs), ecmp_hash=scene.ecmp_hash) as fabric,
            ):
                found[scene.name] = measure(fabric, scene.ttl)
    except (FabricError, TestbedError) as error:
        print(printable(f"probed_ports: {error}"), file=sys.stderr)
        return 1
    if arguments.json:
        rows = {name: asdict(one) for name, one in found.items()}
        print(json.dumps({"machine": machine, "load": load, "scenes": rows}))
    else:
        lines = [
            "| tiers | IP | hash | ports | answered | as data go | ports a second | us of a core for a port |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, one in found.items():
            counts = f"{one.ports:,} | {one.answered:,} | {one.agree:,} | {one.rate:,.0f}"
            lines.append(f"| {name} | {counts} | {one.processor_us:.0f} |")
        print(printable_lines("\n".join(lines)))
        print(printable(f"{machine}; load average {load:.0f}"))
    return 0 if all(one.agree == one.ports for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
