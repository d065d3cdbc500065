# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.run.replay`: the jobs of a simulated cluster on an emulated fabric, inside the sandbox.

Every job has a thread. It waits until its simulated start, and until the jobs before it have ended that have its hosts
or links. It then takes its links, connects, runs, and gives its links back. `replay_plan` has the jobs.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from emul import MininetFabric, RoutedFabric
from netmodel import EcmpHash, Forwarding, LinuxL4Hash, OvsHash, PortRef, Topology
from sdn.isolation.virtual_clos import SubClos, VirtualClos
from testbed.allocation.ports import device_seed
from testbed.errors import TestbedError
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run.agent_processes import AgentProcesses
from testbed.run.agents import Agents, R, StartAgent
from testbed.run.fabric import Fabric
from testbed.run.failures import exit_status, fabric_errors
from testbed.run.replay_plan import PATH_MTU_BYTES, ReplayJob, ReplayPlan, ReplayStrategy, ports_of
from testbed.run.steering import Steered

_LEAD_S = 1.0
"""A job sets up its connections so long before its start, if its hosts and links are idle then."""

_START_DELAY_S = 0.1
"""From sending the start command to the start itself, at least, so that all agents have received it by then."""

_SETUP_TIMEOUT_S = 120.0
_RUN_TIMEOUT_S = 600.0
_MARGIN_S = 15.0
"""Added to an agent's own time limit: the agent's error says more."""

_QUIET_S = 0.2
"""A job's links are idle when their counters have not changed for so long: acknowledgements may be on their way."""

_DRAINS = 25
"""Waits of this length at most."""

_CHECK_S = 0.2
"""Time between two looks whether another job has failed."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobRecord(_Model):
    """What became of a job. Times are in seconds since the beginning of its strategy's replay."""

    start_s: float
    end_s: float
    """When its last rank was done."""
    wrong_bytes: int
    retransmits: int
    uplink_bytes: dict[str, int]
    """Bytes of frames that its leaf ports sent while it had them, where links are reserved."""


class StrategyRecord(_Model):
    """All jobs of a strategy, in the order of the plan."""

    name: str
    jobs: list[JobRecord]
    uplink_bytes: dict[str, int]
    """Bytes of frames that each leaf's port to a spine or agg sent from the first job's start to the last one's end."""
    strays: dict[str, int]
    """Packets to other jobs' hosts, which switches dropped, by port; only ports with any."""
    overruns: int
    """Packets lost because the emulation lacked processor time."""


class Record(_Model):
    """What a replay has measured, by strategy."""

    strategies: list[StrategyRecord]


class _Abandoned(TestbedError):
    """Another job has failed, so this one goes no further."""


@dataclass(frozen=True, slots=True)
class ReplaySwitches:
    """How the switches of a fabric choose among paths, and who keeps jobs apart."""

    ecmp_hash: EcmpHash
    steered: Steered | None = None
    """None: nobody, as with routers."""
    routes: Callable[[], Forwarding | None] = lambda: None
    """Reads the routes before each strategy; None: those of `netmodel.forwarding`."""


class Replayer:
    """Replays one strategy on a fabric that is up, with an agent on each of `hosts`, in this order.

    Raises InputError for a path of the plan that no source port takes.
    """

    def __init__(
        self,
        topology: Topology,
        strategy: ReplayStrategy,
        fabric: Fabric,
        switches: ReplaySwitches,
        agents: Agents,
        hosts: Sequence[str],
    ) -> None:
        self._topology, self._strategy, self._fabric, self._agents = topology, strategy, fabric, agents
        self._steered = switches.steered
        routes = switches.routes()
        self._ports = {job.name: ports_of(job, topology, switches.ecmp_hash, routes) for job in strategy.jobs}
        self._seats = {host: number for number, host in enumerate(hosts)}
        self._lock = threading.Lock()
        """Guards the fabric and `_holding`."""
        self._holding: dict[int, SubClos] = {}
        self._ended = [threading.Event() for _ in strategy.jobs]
        self._failed = threading.Event()
        self._begin_s = 0.0
        roles = {switch.name: switch.role for switch in topology.switches}
        self._uplinks = [
            port
            for port in topology.linked_ports()
            if roles.get(port.node) == "leaf" and topology.peer(port).node in roles
        ]

    def run(self, steps: Steps) -> StrategyRecord:
        """All jobs. Raises the error of the first job that fails, after all others have stopped."""
        if self._steered is not None:
            self._steered.steer(VirtualClos(()) if self._strategy.isolated else None)
        before, overran = self._fabric.link_counters(), sum(self._fabric.overruns().values())
        self._begin_s = time.monotonic() + _LEAD_S
        with ThreadPoolExecutor(max(1, len(self._strategy.jobs)), thread_name_prefix="job") as pool:
            futures = [pool.submit(self._run, number, steps) for number in range(len(self._strategy.jobs))]
            wait(futures, return_when=FIRST_EXCEPTION)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, _Abandoned)), errors[0])
        after = self._fabric.link_counters()
        strays = self._steered.strays() if self._steered is not None and self._strategy.isolated else {}
        return StrategyRecord(
            name=self._strategy.name,
            jobs=[future.result() for future in futures],
            uplink_bytes={str(port): after[port].tx_bytes - before[port].tx_bytes for port in self._uplinks},
            strays={str(port): count for port, count in strays.items() if count},
            overruns=sum(self._fabric.overruns().values()) - overran,
        )

    def _run(self, number: int, steps: Steps) -> JobRecord:
        try:
            return self._run_job(number, self._strategy.jobs[number], steps)
        except BaseException:
            self._failed.set()
            raise

    def _run_job(self, number: int, job: ReplayJob, steps: Steps) -> JobRecord:
        for other in job.after:
            while not self._ended[other].wait(_CHECK_S):
                self._go_on()
        while (left_s := self._begin_s + job.start_s - _LEAD_S - time.monotonic()) > 0:
            self._failed.wait(left_s)
            self._go_on()
        own = [PortRef.parse(port) for port in job.uplinks]
        before = self._take(number, SubClos(job.name, tuple(job.hosts), tuple(own)))
        self._connect(job)
        at_s = max(self._begin_s + job.start_s, time.monotonic() + _START_DELAY_S)
        self._send(job, dict.fromkeys(range(len(job.hosts)), messages.Start(at_s=at_s, timeout_s=_RUN_TIMEOUT_S)))
        steps.now(f"{self._strategy.name}: {job.name} runs on {len(job.hosts)} hosts")
        finished = self._receive(job, messages.Finished, _RUN_TIMEOUT_S + _MARGIN_S)
        self._send(job, dict.fromkeys(range(len(job.hosts)), messages.Close()))
        self._receive(job, messages.Closed, _SETUP_TIMEOUT_S)
        self._drain(own)
        after = self._release(number)
        self._ended[number].set()
        steps.advance()
        return JobRecord(
            start_s=at_s - self._begin_s,
            end_s=max(report.finished_s for report in finished.values()) - self._begin_s,
            wrong_bytes=sum(report.wrong_bytes for report in finished.values()),
            retransmits=sum(lane.retransmits for report in finished.values() for lane in report.lanes),
            uplink_bytes={str(port): after[port] - before[port] for port in own},
        )

    def _take(self, number: int, own: SubClos) -> dict[PortRef, int]:
        """Give a job its links. Returns the bytes that its leaf ports have sent so far."""
        with self._lock:
            self._holding[number] = own
            return self._isolate(own)

    def _release(self, number: int) -> dict[PortRef, int]:
        """Take a job's links from it. Returns the bytes that its leaf ports have sent until then."""
        with self._lock:
            return self._isolate(self._holding.pop(number))

    def _drain(self, own: Sequence[PortRef]) -> None:
        """Wait until a job's links are idle."""
        before: dict[PortRef, int] | None = None
        for _ in range(_DRAINS if own else 0):
            with self._lock:
                counters = self._fabric.link_counters()
            now = {port: counters[port].tx_bytes for port in own}
            if now == before:
                return
            before = now
            self._failed.wait(_QUIET_S)
            self._go_on()

    def _isolate(self, counted: SubClos) -> dict[PortRef, int]:
        if self._steered is not None and self._strategy.isolated:
            self._steered.steer(VirtualClos(tuple(self._holding.values())))
        counters = self._fabric.link_counters()
        return {port: counters[port].tx_bytes for port in counted.uplinks}

    def _connect(self, job: ReplayJob) -> None:
        self._send(job, {rank: self._prepare(job, rank) for rank in range(len(job.hosts))})
        prepared = self._receive(job, messages.Prepared, _SETUP_TIMEOUT_S)
        handles: dict[int, dict[int, str]] = {rank: {} for rank in prepared}
        for destination, report in prepared.items():
            for source, handle in report.handles.items():
                handles[source][destination] = handle
        self._send(
            job, {rank: messages.Connect(handles=own, timeout_s=_SETUP_TIMEOUT_S) for rank, own in handles.items()}
        )
        self._receive(job, messages.Connected, _SETUP_TIMEOUT_S + _MARGIN_S)

    def _prepare(self, job: ReplayJob, rank: int) -> messages.Prepare:
        host = job.hosts[rank]
        table = self._ports[job.name].get(rank)
        device = messages.DeviceConfig(
            address=self._address(host),
            lanes=self._strategy.lanes,
            policy="pinned" if table else "ecmp",
            ports={self._address(job.hosts[peer]): ports for peer, ports in table.items()} if table else None,
            seed=device_seed(1, self._seats[host]),
            path_mtu=PATH_MTU_BYTES,
            line_rate_bps=self._topology.link_at(PortRef(host, 1)).rate_bps,
        )
        return messages.Prepare(rank=rank, ranks=len(job.hosts), seed=1, device=device, workload=job.workload)

    def _address(self, host: str) -> str:
        return str(self._topology.host(host).nics[0].address)

    def _send(self, job: ReplayJob, commands: Mapping[int, messages.Command]) -> None:
        """Send each rank of a job its command."""
        self._agents.send({self._seats[job.hosts[rank]]: command for rank, command in commands.items()})

    def _receive(self, job: ReplayJob, kind: type[R], timeout_s: float) -> dict[int, R]:
        """A report from every rank of a job."""
        ranks = {self._seats[host]: rank for rank, host in enumerate(job.hosts)}
        reports = self._agents.receive(kind, timeout_s, of=ranks, every_s=_CHECK_S, meanwhile=self._go_on)
        return {ranks[seat]: report for seat, report in reports.items()}

    def _go_on(self) -> None:
        """Raises _Abandoned when another job has failed."""
        if self._failed.is_set():
            raise _Abandoned("another job has failed")


def replay(
    plan: ReplayPlan, topology: Topology, fabric: Fabric, switches: ReplaySwitches, log_dir: Path, start: StartAgent
) -> Record:
    """Replay every strategy on a fabric that is up. `start` starts agents. Raises TestbedError."""
    with Steps(sum(len(strategy.jobs) for strategy in plan.strategies)) as steps:
        steps.now(f"starting {len(plan.hosts)} agents")
        with Agents(start, plan.hosts, log_dir) as agents:
            return Record(
                strategies=[
                    Replayer(topology, strategy, fabric, switches, agents, plan.hosts).run(steps)
                    for strategy in plan.strategies
                ]
            )


@contextmanager
def _brought_up(plan: ReplayPlan, log_dir: Path) -> Iterator[tuple[Fabric, ReplaySwitches, Callable[[str], int]]]:
    """The fabric of a plan, its switches, and what tells a process of a host. Raises the errors of `emul`."""
    if plan.fabric == "mininet":
        with MininetFabric(plan.topology, log_dir=log_dir) as fabric:
            yield fabric, ReplaySwitches(OvsHash(), fabric), fabric.host_pid
        return
    with RoutedFabric(plan.topology, log_dir=log_dir, ecmp_hash=LinuxL4Hash()) as routers:
        yield routers, ReplaySwitches(LinuxL4Hash(), routes=routers.routes), routers.host_pid


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Prints errors to standard error. Returns 0, 2 for a wrong input, or 1 for another failure."""
    parser = argparse.ArgumentParser(prog="python -m testbed.run.replay", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="file with the plan")
    parser.add_argument("--out", type=Path, required=True, help="file to write the record to")
    parser.add_argument("--log-dir", type=Path, required=True, help="folder for logs")
    arguments = parser.parse_args(argv)

    def work() -> None:
        plan = ReplayPlan.model_validate_json(arguments.plan.read_text())
        with (
            fabric_errors(arguments.log_dir),
            AgentProcesses(plan.hosts) as agents,
            _brought_up(plan, arguments.log_dir) as (fabric, switches, host_pid),
        ):
            record = replay(plan, plan.topology, fabric, switches, arguments.log_dir, agents.on(host_pid))
        arguments.out.write_text(record.model_dump_json())

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
