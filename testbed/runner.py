# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.runner`: an experiment's runs, inside the sandbox that `paralet run` has made.

It brings the fabric up once, starts one agent per rank, and for every seed and policy lets the agents open their
devices, connect, start at the same instant and report. What was seen goes to one file; judging it is not done here, so
that as little as possible runs with privileges.
"""

import argparse
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np

from emul import FabricError, MininetFabric
from emul.capture import CaptureError
from emul.controller import ControllerError
from emul.layout import LayoutError
from emul.ovs import OvsError
from emul.sandbox import SandboxError
from netmodel import Flow, PortRef, SpecError, Topology, forwarding
from testbed import messages
from testbed.agents import AGENT_ARGV, Agents
from testbed.demands import bytes_by_pair, disjoint_paths
from testbed.errors import InputError, TestbedError
from testbed.observations import LinkLoad, Observations, PairFlow, RankLane, RunRecord, Sample, SeenFlow
from testbed.ports import port_tables
from testbed.progress import Steps
from testbed.spec import Experiment, Policy, load

SAMPLE_S = 0.1
"""Time between two readings of the link counters during a run."""

_START_DELAY_S = 0.1
"""From telling the agents to start to the start itself: all have got the order by then."""

_PATIENCE_S = 15.0
"""How much longer than an agent's own limit the runner waits, so that the agent's more precise error wins."""


class Counters(Protocol):
    """The part of `emul.LinkCounters` that is used here: what left by a port, and what its queue dropped."""

    @property
    def tx_bytes(self) -> int:
        """Bytes of Ethernet frames."""

    @property
    def tx_packets(self) -> int:
        """Frames."""

    @property
    def dropped(self) -> int:
        """Frames that the port's queue dropped."""


class Fabric(Protocol):
    """The part of `emul.MininetFabric` that is used here."""

    def popen(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[Any]":
        """Start a command on a host."""

    def link_counters(self) -> Mapping[PortRef, Counters]:
        """Counters of every switch port."""

    def observed_ports(self, switch_name: str) -> Mapping[Flow, int]:
        """Where the switch has really sent each flow for which it had a choice."""

    def overruns(self) -> Mapping[PortRef, int]:
        """Packets lost at each switch port for want of CPU."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The link counters at one moment."""

    at_s: float
    counters: Mapping[PortRef, Counters]
    overruns: int


class Runner:
    """The runs of one experiment on a fabric that is up."""

    def __init__(self, experiment: Experiment, fabric: Fabric, log_dir: Path, argv: Sequence[str] = AGENT_ARGV) -> None:
        self._experiment = experiment
        self._fabric = fabric
        self._log_dir = log_dir
        self._argv = argv
        self._seen: set[tuple[str, Flow]] = set()
        routes = forwarding(experiment.topology).groups
        self._choosing = [
            switch for switch, groups in routes.items() if any(len(ports) > 1 for ports in groups.values())
        ]

    def runs(self, steps: Steps) -> Iterator[RunRecord]:
        """Run every policy with every seed. Policies take turns, so that a drift of the machine hits all alike."""
        experiment = self._experiment
        steps.now(f"starting {experiment.ranks} agents")
        with Agents(self._fabric.popen, experiment.hosts, self._log_dir, self._argv) as agents:
            for seed in experiment.seeds:
                for policy in experiment.spec.policies:
                    steps.now(f"{policy.name} (m = {policy.m}), seed {seed}")
                    yield self._run(agents, policy, seed)
                    steps.advance()

    def _run(self, agents: Agents, policy: Policy, seed: int) -> RunRecord:
        experiment, limits = self._experiment, self._experiment.spec.timeouts
        agents.tell(self._prepare_orders(policy, seed))
        prepared = agents.hear(messages.Prepared, limits.start_s)
        agents.tell(self._connect_orders(prepared))
        agents.hear(messages.Connected, limits.connect_s + _PATIENCE_S)

        before = self._read(0.0)
        at_s = time.monotonic() + _START_DELAY_S
        agents.tell(dict.fromkeys(range(experiment.ranks), messages.Start(at_s=at_s, timeout_s=limits.run_s)))
        readings: list[_Reading] = []
        finished = agents.hear(
            messages.Finished,
            limits.run_s + _PATIENCE_S,
            every_s=SAMPLE_S,
            meanwhile=lambda: readings.append(self._read(at_s)),
        )
        after = self._read(at_s)
        readings.append(after)
        agents.tell(dict.fromkeys(range(experiment.ranks), messages.Close()))
        agents.hear(messages.Closed, limits.connect_s)
        return self._record(policy, seed, at_s, finished, before, after, readings)

    def _prepare_orders(self, policy: Policy, seed: int) -> dict[int, messages.Prepare]:
        experiment = self._experiment
        workload = experiment.spec.workload
        tables: dict[int, dict[int, list[int]]] = {}
        if policy.policy == "pinned":
            paths = disjoint_paths(experiment.topology, experiment.hosts, workload.schedule(experiment.ranks, seed))
            tables = port_tables(experiment.topology, experiment.hosts, paths, policy.m, seed)
        return {
            rank: messages.Prepare(
                rank=rank,
                ranks=experiment.ranks,
                seed=seed,
                workload=workload,
                device=self._device(policy, rank, tables.get(rank, {}), seed),
            )
            for rank in range(experiment.ranks)
        }

    def _device(self, policy: Policy, rank: int, table: Mapping[int, list[int]], seed: int) -> messages.DeviceConfig:
        experiment = self._experiment
        return messages.DeviceConfig(
            address=experiment.address(rank),
            lanes=policy.m,
            # A rank that sends to no other leaf has nothing to pin.
            policy="ecmp" if policy.policy == "pinned" and not table else policy.policy,
            ports={experiment.address(peer): ports for peer, ports in table.items()} or None,
            seed=int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]),
            path_mtu=experiment.spec.path_mtu,
            line_rate_bps=experiment.line_rate_bps(rank),
            flowlet_bytes=policy.flowlet_bytes,
            mice_bytes=policy.mice_bytes,
        )

    def _connect_orders(self, prepared: Mapping[int, messages.Prepared]) -> dict[int, messages.Connect]:
        """Every rank gets the handles that its destinations made for it."""
        handles: dict[int, dict[int, str]] = {rank: {} for rank in prepared}
        for destination, report in prepared.items():
            for source, handle in report.handles.items():
                handles[source][destination] = handle
        timeout_s = self._experiment.spec.timeouts.connect_s
        return {rank: messages.Connect(handles=own, timeout_s=timeout_s) for rank, own in handles.items()}

    def _read(self, start_s: float) -> _Reading:
        counters = self._fabric.link_counters()
        return _Reading(time.monotonic() - start_s, counters, sum(self._fabric.overruns().values()))

    def _record(
        self,
        policy: Policy,
        seed: int,
        at_s: float,
        finished: Mapping[int, messages.Finished],
        before: _Reading,
        after: _Reading,
        readings: Sequence[_Reading],
    ) -> RunRecord:
        experiment = self._experiment
        workload = experiment.spec.workload
        demands = bytes_by_pair(workload.schedule(experiment.ranks, seed), workload.item_bytes)
        discards: dict[str, int] = {}
        for report in finished.values():
            for reason, count in report.discards.items():
                discards[reason] = discards.get(reason, 0) + count
        watched = host_ports(experiment.topology)
        return RunRecord(
            policy=policy.name,
            m=policy.m,
            seed=seed,
            completion_s=max(report.finished_s for report in finished.values()) - at_s,
            wrong_bytes=sum(report.wrong_bytes for report in finished.values()),
            step_finished_s=[
                [moment - at_s for moment in finished[rank].step_finished_s] for rank in range(experiment.ranks)
            ],
            flows=[
                PairFlow(src=src, dst=dst, bytes=count, completion_s=finished[dst].last_arrival_s[src] - at_s)
                for (src, dst), count in demands.items()
            ],
            lanes=[RankLane(rank=rank, lane=lane) for rank in sorted(finished) for lane in finished[rank].lanes],
            discards=discards,
            overruns=after.overruns - before.overruns,
            links=[
                LinkLoad(
                    port=str(port),
                    tx_bytes=last.tx_bytes - before.counters[port].tx_bytes,
                    tx_packets=last.tx_packets - before.counters[port].tx_packets,
                    dropped=last.dropped - before.counters[port].dropped,
                )
                for port, last in sorted(after.counters.items())
            ],
            samples=[
                Sample(
                    at_s=reading.at_s,
                    tx_bytes={
                        str(port): reading.counters[port].tx_bytes - before.counters[port].tx_bytes for port in watched
                    },
                )
                for reading in readings
            ],
            seen=self._newly_seen(),
        )

    def _newly_seen(self) -> list[SeenFlow]:
        """Flows that some switch did not forward at the last call: the datapath remembers those of earlier runs."""
        fresh: dict[Flow, list[str]] = {}
        for switch in self._choosing:
            for flow, port in self._fabric.observed_ports(switch).items():
                if (switch, flow) not in self._seen:
                    self._seen.add((switch, flow))
                    fresh.setdefault(flow, []).append(str(PortRef(switch, port)))
        return [
            SeenFlow(src=str(flow.src), dst=str(flow.dst), src_port=flow.src_port, dst_port=flow.dst_port, ports=ports)
            for flow, ports in fresh.items()
        ]


def host_ports(topology: Topology) -> list[PortRef]:
    """The switch ports that hosts are plugged into."""
    return [topology.peer(PortRef(host.name, index + 1)) for host in topology.hosts for index in range(len(host.nics))]


def run_in_sandbox(experiment: Experiment, log_dir: Path, steps: Steps) -> Observations:
    """Bring the fabric up, run everything, take the fabric down. Raises TestbedError."""
    steps.now(f"bringing up {experiment.topology.name}")
    try:
        with MininetFabric(experiment.topology, log_dir=log_dir, pcap=experiment.pcap) as fabric:
            records = list(Runner(experiment, fabric, log_dir).runs(steps))
            steps.now("taking the fabric down")
    except LayoutError as error:
        raise InputError(str(error)) from error
    except (CaptureError, ControllerError, FabricError, OvsError, SandboxError) as error:
        raise TestbedError(f"{error} (logs: {log_dir})") from error
    return Observations(runs=records)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0, or the exit status of the error whose sentence it has printed; 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m testbed.runner", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="a spec; file names in it are relative to its folder")
    parser.add_argument("--out", type=Path, required=True, help="file that takes the observations")
    parser.add_argument("--log-dir", type=Path, required=True, help="folder for logs and pcaps")
    arguments = parser.parse_args(argv)
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):  # the fabric then comes down in order instead of all at once
        signal.signal(number, interrupt)
    try:
        experiment = load(arguments.spec)
        with Steps(len(experiment.seeds) * len(experiment.spec.policies)) as steps:
            run_in_sandbox(experiment, arguments.log_dir, steps).save(arguments.out)
    except KeyboardInterrupt:
        return 130
    except (InputError, SpecError) as error:
        print(f"paralet: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if interrupted.is_set():  # what failed on the way down, in whatever way, failed because of it
            return 130
        if not isinstance(error, TestbedError):
            raise
        print(f"paralet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
