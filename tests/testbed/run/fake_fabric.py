# SPDX-License-Identifier: Apache-2.0
"""Fabrics and observations without a network: processes of this machine, and flows on their predicted paths."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from emul import LinkFault
from emul.flow_dump import ObservedFlow
from netmodel import Flow, Link, PortRef
from sdn.failover.detours import Detours
from sdn.openflow.steering import Steering
from testbed.analysis.flows import predicted_choices, predicted_path
from testbed.analysis.observations import (
    JobRecord,
    LaneCounters,
    LinkLoad,
    Observations,
    PairFlow,
    RankLane,
    RunRecord,
    Sample,
    SeenFlow,
)
from testbed.arrangements import Arranger
from testbed.live.runs_so_far import Entry
from testbed.run import experiment_runs
from testbed.run.agents import StartAgent
from testbed.run.experiment_runs import Runner
from testbed.run.run_record import host_ports
from testbed.run.steering import SteeredSwitches
from testbed.run.timeline import Timeline
from testbed.spec import Experiment, Instance
from tests.testbed.run.agent_forker import ForkedAgent


def agents_by(*argv: str) -> StartAgent:
    """Starts agents as programs of this machine."""

    def start(host: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)

    return start


def forked(transport: str) -> StartAgent:
    """Starts agents over this transport."""
    return lambda host, stderr: ForkedAgent(transport, stderr)


TCP_AGENT = forked("tcp")
HOSTLIB_AGENT = forked("hostlib")


@dataclass(frozen=True)
class FakeCounters:
    tx_bytes: int
    tx_packets: int
    dropped: int
    rx_bytes: int = 0
    rx_packets: int = 0


@dataclass(frozen=True)
class FakeFaults:
    lost: int
    corrupted: int
    marked: int = 0
    late: int = 0
    dropped: int = 0


class FakeFabric:
    """Its counters grow with every reading."""

    def __init__(self, experiment: Experiment) -> None:
        self._topology = experiment.topology
        self._readings = 0
        self.link_changes: list[tuple[Link, bool]] = []
        self.steered: list[Steering | None] = []
        self.rates: list[tuple[Link, float]] = []
        self.faults: list[tuple[PortRef, LinkFault]] = []
        self.detours: list[Detours] = []

    def link_counters(self) -> Mapping[PortRef, FakeCounters]:
        self._readings += 1
        switches = {switch.name for switch in self._topology.switches}
        counters = FakeCounters(1000 * self._readings, self._readings, 0, 500 * self._readings, self._readings)
        return {port: counters for port in self._topology.linked_ports() if port.node in switches}

    def observed_ports(self, switch_name: str) -> Mapping[Flow, int]:
        return {Flow(IPv4Address("127.1.0.1"), IPv4Address("127.1.1.1"), 50_000): 3} if switch_name == "leaf1" else {}

    def overruns(self) -> Mapping[PortRef, int]:
        return {}

    def crossing(self, link: Link, within_s: float) -> Sequence[ObservedFlow]:
        return [ObservedFlow(Flow(IPv4Address("127.1.0.1"), IPv4Address("127.1.1.1"), 50_000), "", "", 2, 4000, 0.1)]

    def allow_detours(self) -> None:
        pass

    def set_detours(self, plan: Detours) -> None:
        self.detours.append(plan)

    def steer(self, steering: Steering | None) -> None:
        self.steered.append(steering)

    def check_switches(self) -> None:
        pass

    def strays(self) -> Mapping[PortRef, int]:
        return {PortRef("leaf1", 1): 0, PortRef("leaf1", 2): 7}

    def set_rate(self, link: Link, part: float) -> None:
        self.rates.append((link, part))

    def fault_counts(self) -> Mapping[PortRef, FakeFaults]:
        return {PortRef("leaf1", 3): FakeFaults(self._readings, 2 * self._readings)}

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        self.faults.append((port, fault))

    def set_link(self, link: Link, up: bool) -> None:
        self.link_changes.append((link, up))


def arrangers(made: Experiment, fabric: FakeFabric) -> list[Arranger]:
    """What puts the arrangements of an experiment into effect on a fabric."""
    return [arrangement.on(fabric) for arrangement in made.arrangements]  # type: ignore[arg-type]


class _Whole(Timeline):
    """A timeline that is left when all of its events have happened, or one has failed."""

    def __exit__(self, *error: Any) -> None:
        if self._events:
            self._thread.join()
        super().__exit__(*error)


def outlast_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every run last until its events have happened, however soon its data have arrived."""
    monkeypatch.setattr(experiment_runs, "Timeline", _Whole)


def runner_on(
    made: Experiment,
    logs: Path,
    start: StartAgent,
    fabric: FakeFabric | None = None,
    tell: Callable[[Entry], None] = lambda _: None,
) -> Runner:
    """The runner of an experiment on such a fabric, with the experiment's arrangements in effect."""
    fabric = FakeFabric(made) if fabric is None else fabric
    return Runner(made, fabric, SteeredSwitches(fabric, made), arrangers(made, fabric), logs, start, tell=tell)


def made_up(experiment: Experiment, wrong_bytes: int = 0) -> Observations:
    """Observations of runs in which every flow takes its predicted path and times grow with the seed."""
    runs = []
    for seed in experiment.seeds:
        instance = Instance(experiment, seed)
        for place, policy in enumerate(experiment.spec.policies):
            total_s = 1.0 + 0.1 * seed + 0.5 * place
            pairs = [(rank, (rank + 1) % experiment.ranks) for rank in range(experiment.ranks)]
            generator = np.random.default_rng([seed, place])
            lanes, seen, sent = [], [], dict.fromkeys(map(str, experiment.topology.linked_ports()), 0)
            for src, dst in pairs:
                for number in range(policy.m):
                    flow = Flow(
                        IPv4Address(instance.address(src)),
                        IPv4Address(instance.address(dst)),
                        int(generator.integers(0xC000, 0x10000)),
                    )
                    lanes.append(
                        RankLane(
                            rank=src,
                            lane=LaneCounters(
                                peer=str(flow.dst),
                                lane=number,
                                port=flow.src_port,
                                port_method="soft",
                                tx_bytes=10_000,
                                tx_packets=10,
                                flowlets=2,
                                retransmits=1,
                                timeouts=0,
                                rtt_s=0.001,
                            ),
                        )
                    )
                    routes = instance.routes(policy)
                    ports = predicted_choices(instance, flow, routes)
                    for port in predicted_path(instance, flow, routes):
                        sent[str(port)] += 10_100
                    seen.append(
                        SeenFlow(
                            src=str(flow.src), dst=str(flow.dst), src_port=flow.src_port, dst_port=4791, ports=[*ports]
                        )
                    )
            watched = [str(port) for port in host_ports(experiment.topology)]
            runs.append(
                RunRecord(
                    policy=policy.name,
                    m=policy.m,
                    seed=seed,
                    completion_s=total_s,
                    wrong_bytes=wrong_bytes,
                    step_finished_s=[[total_s * (step + 1) / 6 for step in range(6)] for _ in range(experiment.ranks)],
                    flows=[PairFlow(src=src, dst=dst, bytes=10_000, completion_s=total_s) for src, dst in pairs],
                    lanes=lanes,
                    discards={},
                    overruns=0,
                    links=[
                        LinkLoad(port=port, tx_bytes=n, tx_packets=n // 1000, dropped=0) for port, n in sent.items()
                    ],
                    samples=[
                        Sample(at_s=total_s * part, tx_bytes={port: int(1e5 * part) for port in watched})
                        for part in (0.25, 0.5, 1.0)
                    ],
                    seen=seen,
                    jobs=[
                        JobRecord(name=job.name, ranks=job.size, completion_s=total_s * (n + 1) / len(experiment.jobs))
                        for n, job in enumerate(experiment.jobs)
                    ],
                )
            )
    return Observations(runs=runs)
