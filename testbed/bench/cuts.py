# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.cuts`: what a transfer of `soft` loses when links and switches fail.

One host sends to another over 16 lanes while one thing fails and comes back: on routers with BGP in three tiers, on two
planes of them, and on Open vSwitch. For each case: how many lanes it concerns, for how long they stand still, which
lanes move, and whether all bytes arrive. Prints tables in Markdown. Needs root.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from emul import FabricError, MininetFabric, RoutedFabric, sandbox
from netmodel import (
    EcmpHash,
    Flow,
    Forwarding,
    LinuxL4Hash,
    NoRouteError,
    OvsHash,
    PortRef,
    clos,
    forwarding,
    in_planes,
    leaf_spine,
    path_of,
)
from netmodel import Path as Way
from netmodel.printable import printable, printable_lines
from testbed.bench import failures
from testbed.bench.failures import Case, Fabric, Routers
from testbed.bench.steady_transfer import Lane, SteadyTransfer
from testbed.bench.transfer_end import Policy
from testbed.errors import TestbedError
from testbed.machine import this_machine

AnyFabric = MininetFabric | RoutedFabric

_RATE_BPS = 100_000_000
_SETTLE_S = 3.0
_OPEN_S = 1.0
"""Lanes that have stood still for this long when an observation ends have not come back."""


@dataclass(frozen=True, slots=True)
class Outage:
    """What a failure did to the transfer.

    lanes: those whose data or acknowledgements crossed what failed. moved: those of them that have other paths
    afterwards. others: lanes that did not cross it and have other paths nevertheless. ports: changes of lanes' source
    ports in the whole transfer. still_s: the longest time without progress of a lane that crossed it; all_still_s: of
    all lanes together; None: they went on only when it was mended. end_s: the longest time without progress of any lane
    from the mend on; None: it lasted until the end. again: packets that were sent again in the whole transfer.
    lost: messages that did not arrive, or not as they were sent.
    """

    what: str
    policy: Policy
    lanes: int
    moved: int
    others: int
    ports: int
    still_s: float | None
    all_still_s: float | None
    end_s: float | None
    again: int
    messages: int
    lost: int


@dataclass(frozen=True, slots=True)
class Scene:
    """A fabric, and what fails on it with which policies. The transfer is from its first host to its last one."""

    name: str
    open: Callable[[Path], AbstractContextManager[AnyFabric]]
    cases: Callable[[AnyFabric], Iterator[tuple[Case, Policy]]]


def longest_pause_s(times: Sequence[float], from_s: float, to_s: float) -> float | None:
    """The longest time without an entry of `times` in an interval; None where it had not ended when the interval did.

    times: in ascending order. A pause that is open at the end for less than a second counts as ended.
    """
    edges = [from_s, *(at_s for at_s in times if from_s < at_s < to_s), to_s]
    pauses = [later - earlier for earlier, later in pairwise(edges)]
    if pauses[-1] == max(pauses) and pauses[-1] >= _OPEN_S:
        return None
    return max(pauses)


def three_tiers(fabric: Routers) -> Iterator[Case]:
    """A failure at each tier, near and far from the sender, loud and silent; then those of routers and sessions."""
    topology = fabric.topology
    for port, where in failures.places(topology, 2):
        yield failures.cut(fabric, topology.link_at(port), where)
        yield failures.silent_loss(fabric, [port], where, fabric.settle)
    yield failures.death(fabric, "agg1")
    yield failures.death(fabric, "core1")
    yield failures.drain(fabric, "agg1")
    yield failures.session_reset(fabric, PortRef("leaf1", 2))


def two_planes(fabric: Routers) -> Iterator[Case]:
    """The second NIC of each host, then the second plane, fails."""
    topology = fabric.topology
    for port, where in ((PortRef("h1", 2), "the sender to its leaf"), (PortRef("p2leaf2", 1), "leaf to the receiver")):
        yield failures.cut(fabric, topology.link_at(port), where)
        yield failures.silent_loss(fabric, [port], where, None)
    yield failures.death(fabric, *(switch.name for switch in topology.switches if switch.name.startswith("p2core")))


def two_tiers(fabric: Fabric) -> Iterator[Case]:
    """A link near the sender and one far from it, loud and silent. Switches do not notice silent losses."""
    for port, where in ((PortRef("leaf1", 2), "the sender's leaf to spine"), (PortRef("spine1", 2), "spine to leaf")):
        yield failures.cut(fabric, fabric.topology.link_at(port), where)
        yield failures.silent_loss(fabric, [port], where, None)


def scenes() -> Iterator[Scene]:
    """The fabrics. The first and the last host are in different pods, or under different leaves."""
    pods, planes = clos(2, 2, 4, 2, 1, _RATE_BPS), in_planes(clos(2, 1, 2, 1, 1, _RATE_BPS), 2)
    spines = leaf_spine(2, 4, 1, _RATE_BPS)

    def routed(cases: Callable[[Routers], Iterator[Case]]) -> Callable[[AnyFabric], Iterator[tuple[Case, Policy]]]:
        def chosen(fabric: AnyFabric) -> Iterator[tuple[Case, Policy]]:
            assert isinstance(fabric, RoutedFabric)
            return ((case, "ecmp") for case in cases(fabric))

        return chosen

    def switched(fabric: AnyFabric) -> Iterator[tuple[Case, Policy]]:
        policies: tuple[Policy, ...] = ("ecmp", "adaptive")
        return ((case, policy) for case in two_tiers(fabric) for policy in policies)

    yield Scene("routers, three tiers", lambda logs: RoutedFabric(pods, log_dir=logs), routed(three_tiers))
    yield Scene("routers, two planes", lambda logs: RoutedFabric(planes, log_dir=logs), routed(two_planes))
    yield Scene("Open vSwitch, two tiers", lambda logs: MininetFabric(spines, log_dir=logs), switched)


def observe(fabric: AnyFabric, case: Case, policy: Policy, settle_s: float = _SETTLE_S) -> Outage:
    """Let something fail and come back during a transfer from the first host to the last one.

    settle_s: for how long to look before and after each change. Raises TestbedError and FabricError.
    """
    hosts = fabric.topology.hosts
    with SteadyTransfer(fabric, hosts[0].name, hosts[-1].name, policy) as transfer:
        time.sleep(settle_s)
        before = [_ways(fabric, lane, None) for lane in transfer.lanes()]
        fails_s = time.monotonic()
        case.fail()
        time.sleep(settle_s)
        after = [_ways(fabric, lane, case) for lane in transfer.lanes()]
        mends_s = time.monotonic()
        case.mend()
        time.sleep(settle_s)
        end_s = time.monotonic()
    sent, received = transfer.sent, transfer.received
    failed = case.lossy.union(end for link in case.dead for end in (link.a, link.b))
    lanes = {lane for lane, (data, back) in enumerate(before) if not failed.isdisjoint(data + back)}
    moved = {lane for lane, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
    everything = sorted(at_s for times in sent.progress for at_s in times)
    return Outage(
        what=case.name,
        policy=policy,
        lanes=len(lanes),
        moved=len(lanes & moved),
        others=len(moved - lanes),
        ports=sent.moves,
        still_s=_longest(longest_pause_s(sent.progress[lane], fails_s, mends_s) for lane in sorted(lanes)),
        all_still_s=longest_pause_s(everything, fails_s, mends_s),
        end_s=_longest(longest_pause_s(times, mends_s, end_s) for times in sent.progress),
        again=sent.again,
        messages=sent.messages,
        lost=sent.messages - received.messages + received.wrong,
    )


def _ways(fabric: AnyFabric, lane: Lane, failed: Case | None) -> tuple[Way, Way]:
    """The paths of a lane's data and of its acknowledgements; empty where there is none.

    failed: the case that holds now.
    """
    chosen: EcmpHash = LinuxL4Hash() if isinstance(fabric, RoutedFabric) else OvsHash()

    def way(flow: Flow) -> Way:
        try:
            return path_of(fabric.topology, flow, chosen, routes=_routes(fabric, failed))
        except NoRouteError:
            return ()

    return way(lane.data), way(lane.acknowledgements)


def _routes(fabric: AnyFabric, failed: Case | None) -> Forwarding:
    if isinstance(fabric, RoutedFabric):
        return fabric.routes()
    return forwarding(fabric.topology, frozenset() if failed is None else failed.dead)


def _longest(pauses: Iterable[float | None]) -> float | None:
    """The longest pause, 0 of none; None where one did not end."""
    longest_s = 0.0
    for pause_s in pauses:
        if pause_s is None:
            return None
        longest_s = max(longest_s, pause_s)
    return longest_s


def table(outages: Sequence[Outage]) -> Iterator[str]:
    """The lines of a table in Markdown. A policy is named where it is not ECMP."""
    names = ("what", "lanes on it", "moved", "others moved", "still", "all still", "still at the end", "sent again")
    yield f"| {' | '.join(names)} |"
    yield f"|{len(names) * '---|'}"
    for one in outages:
        what = one.what if one.policy == "ecmp" else f"the same, `{one.policy}` ({one.ports} new ports)"
        pauses = (one.still_s if one.lanes else 0.0, one.all_still_s, one.end_s)
        written = ("until the end" if pause_s is None else f"{pause_s:.2f} s" for pause_s in pauses)
        yield f"| {' | '.join(map(str, (what, one.lanes, one.moved, one.others, *written, one.again)))} |"


def main(argv: Sequence[str]) -> int:
    """Print the tables, from inside a sandbox that it makes. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.bench.cuts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args(argv)
    if not sandbox.inside():
        return sandbox.run([sys.executable, "-m", "testbed.bench.cuts", *argv])
    machine, load = str(this_machine()), os.getloadavg()[0]
    outages: dict[str, list[Outage]] = {}
    try:
        for scene in scenes():
            with tempfile.TemporaryDirectory() as logs, scene.open(Path(logs)) as fabric:
                found = outages.setdefault(scene.name, [])
                for case, policy in scene.cases(fabric):
                    print(printable(f"{scene.name}: {case.name}, {policy}"), file=sys.stderr, flush=True)
                    found.append(observe(fabric, case, policy))
    except (FabricError, TestbedError) as error:
        print(printable(f"cuts: {error}"), file=sys.stderr)
        return 1
    every = [outage for found in outages.values() for outage in found]
    lost = sum(outage.lost for outage in every)
    if arguments.json:
        rows = {name: [asdict(outage) for outage in found] for name, found in outages.items()}
        print(json.dumps({"machine": machine, "load": load, "outages": rows}))
    else:
        for name, found in outages.items():
            print(printable_lines("\n".join((f"{name}:", "", *table(found), ""))))
        messages = sum(outage.messages for outage in every)
        print(printable(f"{messages:,} messages were sent, and {lost} did not arrive as they were sent."))
        print(printable(f"{machine}; load average {load:.0f}"))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
