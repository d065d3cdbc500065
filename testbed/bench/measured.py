# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.measured`: measured paths on fabrics of routers, compared with what packets really did.

`fabrics` runs a ring over measured paths on fabrics of many kinds, each with a seed and a placement drawn by chance.
For every flow that the path service gave a port, the path that the service said is compared with the ports by which
routers sent the flow, which they note themselves. The time is compared with the ideal, at which every host sends at its
full rate all the time, and with that of the fluid model on planned paths, which knows of shared links and dead routers.
The service limits every elephant to its max-min fair rate, as the model does. `failures` runs the experiments on
failures, and without them. Both print a table in Markdown. Needs root.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml

from netmodel import PortRef, Topology, forwarding, load_topology
from netmodel.printable import printable, printable_lines
from sdn.path_service.log_file import LogError
from sdn.path_service.replay import replay
from testbed.analysis.observations import Observations, RunRecord
from testbed.analysis.probing_cost import probing_cost
from testbed.analysis.recovery import repinned_s
from testbed.errors import TestbedError
from testbed.machine import this_machine

_EXPERIMENTS = Path(__file__).parents[2] / "experiments" / "routed"
_ELEPHANT_BYTES = 65536
_POLICY = {
    "name": "measured",
    "policy": "controller",
    "m": 4,
    "elephant_bytes": _ELEPHANT_BYTES,
    "assign_wait_s": 1,
    "rates": True,
}
_THREE_TIERS = {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}
_TWO_TIERS = {"leaves": 4, "spines": 4, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}

FABRICS: Mapping[str, dict[str, Any]] = {
    "two tiers": {"topology": {"leaf_spine": _TWO_TIERS}},
    "two tiers, IPv6": {"topology": {"leaf_spine": {**_TWO_TIERS, "ipv6": True}}},
    "two tiers, lanes over TCP": {
        "topology": {"leaf_spine": _TWO_TIERS},
        "policies": [{**_POLICY, "transport": "tcp"}],
    },
    "two tiers, parallel links": {"topology": {"leaf_spine": {**_TWO_TIERS, "spines": 2, "parallel_links": 2}}},
    "three tiers": {"topology": {"clos": _THREE_TIERS}},
    "three tiers, 2 to 1": {"topology": {"clos": {**_THREE_TIERS, "hosts_per_leaf": 4}}},
    "three tiers, first of two planes": {"topology": {"clos": {**_THREE_TIERS, "planes": 2}}},
    "three tiers, agg1 dies": {"topology": {"clos": _THREE_TIERS}, "events": [{"at_s": 2.0, "kill": "agg1"}]},
    "three tiers, a CRC as hash": {
        "topology": {"clos": _THREE_TIERS},
        "routers": {"hash": "crc32", "hash_offset": {"agg": 8}},
    },
    "three tiers, loopbacks answer": {"topology": {"clos": _THREE_TIERS}, "routers": {"unnumbered": True}},
    "three tiers, 16 hosts, agg1 dies": {
        "topology": {"clos": {**_THREE_TIERS, "pods": 4}},
        "events": [{"at_s": 2.0, "kill": "agg1"}],
    },
}
"""By name: what the spec of each fabric has beside `spec_of`."""

FAILURES = ("remote_cut", "silent_cut", "router_death")
"""The experiments, by the names of their files."""

Captured = tuple[str, str, int]  # source and destination address, source port


@dataclass(frozen=True, slots=True)
class Compared:
    """Flows that carried an elephant: all, those by a port that the path service gave, and those whose path it knew."""

    flows: int
    planned: int
    same: int


def spec_of(name: str, seed: int, payload: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a ring of all hosts in random order. payload: what each rank holds."""
    return {
        "name": name,
        "fabric": "routed",
        "pinning": "measured",
        "workload": {"kind": "ring_allreduce", "bytes": payload, "slices": 8},  # as many as NCCL sends ahead
        "placement": {"rule": "random", "redraw": True},
        "policies": [_POLICY],
        "seeds": [seed],
        "path_mtu": 4096,
        **changes,
    }


def model_of(spec: Mapping[str, Any], topology: Topology) -> dict[str, Any]:
    """The spec of the same run in the fluid model, on planned paths. What is killed has its links cut."""
    events = [
        {"at_s": event["at_s"], "cut": str(link.a)}
        for event in spec.get("events", ())
        for link in topology.links
        if event["kill"] in (link.a.node, link.b.node)
    ]
    kept = {key: value for key, value in spec.items() if key not in ("fabric", "pinning", "policies", "routers")}
    return {**kept, "fabric": "fluid", "policies": [{"name": "planned", "policy": "controller"}], "events": events}


def said_paths(event_log: Path) -> dict[Captured, list[str]]:
    """The path that the service said last of each port that it gave, as the ports by which packets leave.

    Raises LogError and OSError.
    """
    said: dict[Captured, list[str]] = {}
    for step in replay([event_log]):
        if not step.sends and not said:
            continue
        for flow in step.service.flows(1 << 16):
            paths = flow["lane_paths"] or [flow["path"]] * len(flow["ports"])
            for port, path in zip(flow["ports"], paths, strict=True):
                if path:
                    said[flow["device"], flow["peer"], port] = path
    return said


def compared(topology: Topology, run: RunRecord, said: Mapping[Captured, Sequence[str]]) -> Compared:
    """Compare each captured flow that carried an elephant's data with what the service said.

    A path is compared at its switches that had a choice, since only there flows are noted. Other switches may have
    noted where the flow went before routes changed.
    """
    choices = forwarding(topology).groups
    hosts = {str(nic.address): host.name for host in topology.hosts for nic in host.nics}
    sent = {(entry.lane.peer, entry.lane.port) for entry in run.lanes if entry.lane.tx_bytes >= _ELEPHANT_BYTES}
    flows = planned = same = 0
    for seen in run.seen:
        if (seen.dst, seen.src_port) not in sent or seen.src not in hosts:
            continue
        flows += 1
        path = said.get((seen.src, seen.dst, seen.src_port))
        if path is None:
            continue
        planned += 1
        to = ip_address(seen.dst)
        nodes = {PortRef.parse(port).node for port in path}
        chosen = {port for port in path if len(choices.get(PortRef.parse(port).node, {}).get(to, ())) > 1}
        same += chosen == {port for port in seen.ports if PortRef.parse(port).node in nodes}
    return Compared(flows, planned, same)


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a run, or why the spec was refused."""

    name: str
    seed: int
    refused: str = ""
    over_ideal: float = 0.0
    over_model: float = 0.0
    completion_s: float = 0.0
    verified: bool = False
    again: int = 0
    compared: Compared = Compared(0, 0, 0)
    probes: int = 0
    part_of_bytes: float = 0.0
    first_ports_s: float = 0.0
    part_of_time: float = 0.0
    repinned_s: tuple[float | None, ...] = ()
    lossy: tuple[str, ...] = ()


def ran(name: str, spec: Mapping[str, Any], *, modelled: bool) -> Ran:
    """Run a spec that has one policy, with measured paths, and one seed; if `modelled`, in the fluid model too.

    Raises TestbedError where that fails.
    """
    seed = spec["seeds"][0]
    with tempfile.TemporaryDirectory() as scratch:
        results, refused = _results(name, spec, Path(scratch))
        if refused:
            return Ran(name, seed, refused=refused)
        (run,) = Observations.load(results / "observations.json").runs
        topology = load_topology(results / "logs" / "topology.yaml")
        summary = yaml.safe_load((results / "summary.json").read_text())
        cost = probing_cost(run, topology.ip_header_bytes)
        assert cost is not None  # its path service measures
        said = said_paths(results / "logs" / f"path-service-{run.policy}-{run.seed}.jsonl")
        over_model = 0.0
        if modelled:
            model, _ = _results(name, model_of(spec, topology), Path(scratch) / "model")
            over_model = run.completion_s / Observations.load(model / "observations.json").runs[0].completion_s
        return Ran(
            name,
            seed,
            over_ideal=run.completion_s / summary["ideal_s"],
            over_model=over_model,
            completion_s=run.completion_s,
            verified=run.wrong_bytes == 0,
            again=sum(entry.lane.retransmits for entry in run.lanes),
            compared=compared(topology, run, said),
            probes=cost.probes + cost.watches,
            part_of_bytes=cost.part_of_bytes,
            first_ports_s=cost.first_ports_s,
            part_of_time=cost.part_of_time,
            repinned_s=tuple(repinned_s(run)),
            lossy=tuple(" or ".join(link.links).replace(" ", " to ") for link in run.lossy_links),
        )


def _results(name: str, spec: Mapping[str, Any], folder: Path) -> tuple[Path, str]:
    """Run a spec below a folder. Returns where its results are, and why it was refused, or an empty string."""
    folder.mkdir(exist_ok=True)
    (folder / "spec.yaml").write_text(yaml.safe_dump(dict(spec)))
    argv = [sys.executable, "-m", "testbed", "run", str(folder / "spec.yaml"), "--results", str(folder / "results")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    refused = done.stderr.strip().splitlines()[-1].partition(": pinning: ")[2] if done.returncode == 2 else ""
    if done.returncode and not refused:
        raise TestbedError(f"{name}, seed {spec['seeds'][0]}: {done.stderr.strip()[-1000:]}")
    return folder / "results" / "latest", refused


def fabrics_table(runs: Iterable[Ran]) -> Iterator[str]:
    """The lines of the table of `fabrics`."""
    names = [
        "fabric",
        "over the ideal",
        "over the model",
        "flows with planned ports",
        "captured where the service said",
    ]
    yield from _head([*names, "probes", "of the bytes", "first ports after", "of the time"])
    for run in runs:
        if run.refused:
            yield _line([run.name, f"refused: {run.refused}", *[""] * 7])
            continue
        said = run.compared
        planned, same = f"{said.planned} of {said.flows}", f"{said.same} of {said.planned}"
        shares = f"{run.part_of_bytes:.2%}", f"{run.first_ports_s:.2f} s", f"{run.part_of_time:.1%}"
        times = f"{run.over_ideal:.2f}", f"{run.over_model:.2f}"
        yield _line([run.name, *times, planned, same, f"{run.probes:,}", *shares])


def failures_table(undisturbed: Ran, runs: Iterable[Ran]) -> Iterator[str]:
    """The lines of the table of `failures`."""
    names = ["what", "over the undisturbed", "wrong bytes", "sent again"]
    yield from _head([*names, "all ports known again after the failure", "after its end", "named"])
    for run in (undisturbed, *runs):
        ends = ["-" if seconds is None else f"{seconds:.1f} s" for seconds in run.repinned_s] or ["-", "-"]
        over = f"{run.completion_s / undisturbed.completion_s:.2f}"
        wrong, named = "none" if run.verified else "some", ", ".join(run.lossy) or "-"
        yield _line([run.name, over, wrong, f"{run.again}", *ends, named])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(names: Sequence[str]) -> tuple[str, str]:
    return _line(names), f"|{len(names) * '---|'}"


def _failures(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The experiments on failures, first without the events of the first one."""
    for number, name in enumerate(FAILURES):
        spec = yaml.safe_load((_EXPERIMENTS / f"{name}.yaml").read_text())
        policies = [policy for policy in spec["policies"] if policy["policy"] == "controller"]
        spec |= {"policies": policies, "seeds": [seed]}
        if number == 0:
            yield "nothing fails", {key: value for key, value in spec.items() if key != "events"}
        yield name.replace("_", " "), spec


def main(argv: Sequence[str]) -> int:
    """Print the table. Returns the exit status: 1 where a byte was wrong, or a path was not what the service said."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.bench.measured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["fabrics", "failures"])
    parser.add_argument("--seed", type=int, help="default: by chance; it is printed")
    parser.add_argument("--bytes", default="6 MiB", help="what each rank holds, for `fabrics` (default: 6 MiB)")
    parser.add_argument("--fabric", action="append", choices=list(FABRICS), help="for `fabrics`: these (default: all)")
    parser.add_argument("--no-rates", action="store_true", help="for `fabrics`: the service limits no elephant")
    arguments = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1, 10_000) if arguments.seed is None else arguments.seed
    machine, load = str(this_machine()), os.getloadavg()[0]
    found = []
    try:
        if arguments.what == "failures":
            specs = list(_failures(seed))
        else:
            specs = [
                (name, spec_of("measured", seed + number, arguments.bytes, changes))
                for number, (name, changes) in enumerate(FABRICS.items())
                if name in (arguments.fabric or FABRICS)
            ]
            if arguments.no_rates:
                for _, spec in specs:
                    spec["policies"] = [{**policy, "rates": False} for policy in spec["policies"]]
        for name, spec in specs:
            print(printable(f"{name}, seed {spec['seeds'][0]}"), file=sys.stderr, flush=True)
            found.append(ran(name, spec, modelled=arguments.what == "fabrics"))
            print(printable(f"  {found[-1]}"), file=sys.stderr, flush=True)
    except (LogError, TestbedError) as error:
        print(printable(f"measured: {error}"), file=sys.stderr)
        return 1
    table = failures_table(found[0], found[1:]) if arguments.what == "failures" else fabrics_table(found)
    print(printable_lines("\n".join(table)))
    print()
    print(printable(f"{machine}; load average {load:.0f}; first seed {seed}"))
    kept = [run for run in found if not run.refused]
    said = arguments.what == "failures" or all(run.compared.same == run.compared.planned for run in kept)
    return 0 if all(run.verified for run in kept) and said else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
