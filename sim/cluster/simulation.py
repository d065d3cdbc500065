# SPDX-License-Identifier: Apache-2.0
"""Jobs arrive at a cluster, wait, are placed, run and end."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from sdn.isolation.integer_program import Undecided
from sim.cluster.fidelities import FidelityName, contention
from sim.cluster.jobs import Job, steps_of
from sim.cluster.networks import FlowPaths, NetworkName, traffic_of
from sim.cluster.placements import AnyAllocation, Cause, PlacementName, cause, empty_cluster, rule
from sim.cluster.preemption import make_room
from sim.cluster.queues import Queue, QueueName
from sim.cluster.shape import Shape

State = Literal["ended", "running", "preempted", "waiting", "refused"]
"""What has become of a job. One that is `preempted` has run before, and waits to go on."""

_LEAST_S = 1e-9
"""The least remaining work, in seconds, of a job that is preempted just before its end."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """How a cluster places and runs jobs: its shape, and the strategy that is simulated."""

    shape: Shape
    placement: PlacementName = "packed"
    network: NetworkName = "ecmp"
    queue: QueueName = "fifo"
    fidelity: FidelityName = "average"
    lanes: int = 8
    """The number of lanes of a connection (m), for network `paralet`."""
    rounds: int = 1
    """How often a job computes and communicates, for fidelities `steps` and `fair`."""
    optical_switches: int = 8
    """The number of optical switches between leaves and spines, for placement `ocs_vclos`."""
    service_gpu_s: float = 20_000.0
    """For queue `las`: jobs that have had this service, in GPU-seconds, give way to others. The default is about the
    mean of the generator's jobs."""
    checkpoint_s: float = 60.0
    """For queue `las`: how long a preempted job holds its GPUs before it resumes."""
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for a placement and a network that do not fit each other."""
        reserves = self.placement in ("vclos", "ocs_vclos")
        if self.network == "reserved" and not reserves:
            raise ValueError(
                f"network reserved needs a placement that reserves links, vclos or ocs_vclos, not {self.placement}"
            )
        if self.network == "replanned" and (lacking := self.shape.lacks_links_for_all()) is not None:
            raise ValueError(f"network replanned gives every flow links of its own: {lacking}")
        if self.placement == "ocs_vclos" and self.shape.pods > 1:
            raise ValueError("ocs_vclos joins leaves and spines by circuits, which pods do not have; take vclos")
        if self.placement == "ocs_vclos" and self.network not in ("reserved", "ideal"):
            raise ValueError(
                f"ocs_vclos joins leaves by circuits of each job, so its network is reserved, not {self.network}"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job. Times are in seconds from the start of the trace; None if the job did not get so far."""

    job: Job
    state: State
    start_s: float | None = None
    end_s: float | None = None
    leaves: int = 0
    """The number of leaves on which it was placed."""
    reason: str = ""
    """One sentence that says why the job was refused; empty otherwise."""
    pauses: tuple[tuple[float, float], ...] = ()
    """From when to when it had no GPUs, having been preempted. The last pause of a preempted job has no end: inf."""

    @property
    def paused_s(self) -> float:
        """The seconds for which the job was preempted, over all pauses."""
        return sum(to_s - from_s for from_s, to_s in self.pauses)

    @property
    def running_s(self) -> float | None:
        """The job running time (JRT): the seconds for which the job had GPUs. None if it has not ended."""
        return None if self.end_s is None or self.start_s is None else self.end_s - self.start_s - self.paused_s

    @property
    def waiting_s(self) -> float | None:
        """The job waiting time (JWT): seconds from arrival to start, plus all pauses. None if it has not started."""
        return None if self.start_s is None else self.start_s - self.job.arrival_s + self.paused_s

    @property
    def completion_s(self) -> float | None:
        """The job completion time (JCT): seconds from arrival to end. None if it has not ended."""
        return None if self.end_s is None else self.end_s - self.job.arrival_s


Started = Callable[[int, AnyAllocation, FlowPaths | None], None]
"""Told of a job that starts: its place in the trace, what it gets, and the paths of its flows between leaves. There are
none where no flow is between leaves or none can meet another (see `traffic_of`)."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcomes of a trace's jobs, in the order of the trace."""

    outcomes: list[Outcome]
    failures: Counter[Cause]
    """Failed attempts to place a job. A job is tried when it comes first in the queue, and again after releases."""
    gpu_seconds: float
    """The integral over time of the GPUs for which running jobs have asked."""
    end_s: float
    """The simulated time, in seconds, at which the simulation ended."""
    idle_at_end: int
    paths_set: int = 0
    """How often the path of a flow has been planned; once per connection with `pinned`."""
    paths_moved: int = 0
    """How often it has moved a running flow, with `replanned` and another fidelity than `average`."""
    worst_flows: list[tuple[float, float]] = field(default_factory=list)
    """Times in seconds, and the flows on the busiest link from each on, as a mean over the time of collectives."""


def simulate(
    jobs: Sequence[Job],
    scenario: Scenario,
    *,
    until_s: float = float("inf"),
    tell: Callable[[], None] = lambda: None,
    started: Started | None = None,
) -> Result:
    """Run a trace until all jobs have ended, or until `until_s`.

    `tell` is called whenever a job ends or is refused, `started` whenever one starts.
    """
    simulation = _Simulation(jobs, scenario, tell, started)
    simulation.run(until_s)
    return simulation.result()


class _Simulation:
    """All state. Running jobs have slots, the indices of the arrays of their remaining work and their speeds."""

    def __init__(
        self, jobs: Sequence[Job], scenario: Scenario, tell: Callable[[], None], started: Started | None
    ) -> None:
        self._jobs, self._scenario, self._tell, self._started = jobs, scenario, tell, started
        placing, self._rng = (np.random.default_rng(seed) for seed in np.random.SeedSequence(scenario.seed).spawn(2))
        self._place = rule(scenario.placement, placing)
        self._cluster = empty_cluster(scenario.shape, scenario.placement, scenario.optical_switches)
        self._contention = contention(
            scenario.fidelity, scenario.shape, scenario.rounds, replanned=scenario.network == "replanned"
        )
        self._queue = Queue(scenario.queue)
        self._outcomes = [Outcome(job, "waiting") for job in jobs]
        self._arrivals = sorted(range(len(jobs)), key=lambda number: jobs[number].arrival_s)
        self._next_arrival = 0
        self._now_s = 0.0
        self._held: dict[int, tuple[int, AnyAllocation]] = {}
        """By slot: the running job and its allocation."""
        self._free_slots: list[int] = []
        self._remaining = np.full(16, np.inf)
        self._speed = np.ones(16)
        self._alone: set[int] = set()
        """Slots of jobs without flows between leaves."""
        self._restoring: set[int] = set()
        """Slots of jobs that go on after `checkpoint_s`."""
        self._left_s: dict[int, float] = {}
        """By preempted job: the work that it has left, in seconds without contention."""
        self._served_s = np.full(16, np.inf)
        """By slot: when its service reaches the threshold, with queue `las`."""
        self._served: set[int] = set()
        """Jobs whose service has reached it."""
        self._failed: set[int] = set()
        """Jobs that were not placed since the last release, and so would not be placed now."""
        self._failures: Counter[Cause] = Counter()
        self._busy, self._gpu_seconds = 0, 0.0
        self._worst_flows: list[tuple[float, float]] = []

    def run(self, until_s: float) -> None:
        """Arrivals, ends of phases and thresholds of service, in the order of time. Ends come first, arrivals last."""
        while True:
            if self._contention.changed:
                slots, speeds = self._contention.speeds()
                self._speed[slots] = speeds
            left_s = self._remaining / self._speed
            slot = int(left_s.argmin())
            end_s = self._now_s + float(left_s[slot])
            arrival_s = self._arrival_s()
            served_s = float(self._served_s.min())
            time_s = min(end_s, served_s, arrival_s)
            if time_s > until_s or time_s == float("inf"):
                self._advance(min(until_s, time_s) if self._held else self._now_s)
                return
            self._advance(time_s)
            if end_s == time_s:
                self._phase_ended(slot)
            elif served_s == time_s:
                self._reach_threshold(int(self._served_s.argmin()))
            else:
                number = self._arrivals[self._next_arrival]
                self._next_arrival += 1
                self._queue.add(number, self._jobs[number])
                self._admit()

    def result(self) -> Result:
        """What has happened so far."""
        return Result(
            self._outcomes,
            self._failures,
            self._gpu_seconds,
            self._now_s,
            len(self._cluster.idle),
            self._contention.paths_set,
            self._contention.paths_moved,
            self._worst_flows,
        )

    def _arrival_s(self) -> float:
        if self._next_arrival == len(self._arrivals):
            return float("inf")
        return self._jobs[self._arrivals[self._next_arrival]].arrival_s

    def _advance(self, time_s: float) -> None:
        passed_s = time_s - self._now_s
        self._remaining -= self._speed * passed_s
        self._contention.advance(passed_s)
        self._gpu_seconds += self._busy * passed_s
        self._now_s = time_s

    def _phase_ended(self, slot: int) -> None:
        if slot in self._restoring:
            self._restoring.discard(slot)
            self._begin(slot)
            return
        work = None if slot in self._alone else self._contention.next(slot)
        if work is not None:
            self._remaining[slot] = work
            return
        number = self._release(slot)
        self._outcomes[number] = replace(self._outcomes[number], state="ended", end_s=self._now_s)
        self._tell()
        self._note_worst()
        self._admit()

    def _release(self, slot: int) -> int:
        """A running job's GPUs and slot become free. Returns the job."""
        number, allocation = self._held.pop(slot)
        self._alone.discard(slot)
        self._remaining[slot], self._speed[slot], self._served_s[slot] = np.inf, 1.0, np.inf
        heappush(self._free_slots, slot)
        self._cluster = self._cluster.release(allocation)  # type: ignore[arg-type]  # a rule and its cluster agree
        self._busy -= self._jobs[number].gpus
        self._failed.clear()
        return number

    def _reach_threshold(self, slot: int) -> None:
        """A running job gives way from now on."""
        self._served_s[slot] = np.inf
        self._served.add(self._held[slot][0])
        self._failed.clear()
        self._admit()

    def _preempt(self, slot: int) -> None:
        """A running job loses its GPUs and waits again."""
        number = self._held[slot][0]
        if slot in self._restoring:
            self._restoring.discard(slot)  # it has done nothing
        else:
            left_s = max(0.0, float(self._remaining[slot]))
            left_s = left_s if slot in self._alone else self._contention.leave(slot, left_s)
            self._left_s[number] = max(_LEAST_S, left_s)
        self._release(slot)
        job, before = self._jobs[number], self._outcomes[number]
        pauses = (*before.pauses, (self._now_s, float("inf")))
        self._outcomes[number] = replace(before, state="preempted", pauses=pauses)
        self._queue.add(number, job, served=True)

    def _note_worst(self) -> None:
        before = self._worst_flows[-1][1] if self._worst_flows else 0.0
        if (worst := self._contention.worst) != before:
            self._worst_flows.append((self._now_s, worst))

    def _admit(self) -> None:
        """Place waiting jobs until the first of the queue has to wait, and behind it those that backfilling allows.

        With `las` every waiting job is tried, and running ones may have to give way.
        """
        if self._scenario.queue == "las":
            while self._admit_by_service():
                pass
            return
        while len(self._queue) and self._placed(self._queue.first(), first=True):
            pass
        if self._scenario.queue == "backfill" and len(self._queue) > 1:
            self._backfill()

    def _admit_by_service(self) -> bool:
        """Try every waiting job once. Returns whether some were preempted, which may now fit elsewhere."""
        preempted = False
        for place, number in enumerate(self._queue):
            known = number in self._failed
            if not known and not self._placed(number, first=place == 0) and number not in self._served:
                preempted |= self._placed_instead(number)
        return preempted

    def _placed_instead(self, number: int) -> bool:
        """Whether a job was placed after running ones were preempted, the latest arrivals first."""
        job = self._jobs[number]
        slots = [slot for slot, (other, _) in self._held.items() if other in self._served]
        slots.sort(key=lambda slot: -self._held[slot][0])
        found = make_room(self._cluster, self._place, job, [self._held[slot][1] for slot in slots])
        if found is None:
            return False
        allocation, lost = found
        for victim in lost:
            self._preempt(slots[victim])
        self._queue.remove(number)
        self._failed.discard(number)
        self._start(number, allocation)
        return True

    def _backfill(self) -> None:
        """EASY backfilling: a later job starts when it does not delay the first by what is known.

        The first job gets its GPUs when enough running ones have ended. A later job starts if it will have ended by
        then without contention, or if it takes only GPUs that the first one will not need.
        """
        first, *others = self._queue
        needed = self._jobs[first].gpus
        idle = len(self._cluster.idle)
        start_s = self._now_s
        left_s = self._remaining / self._speed
        for slot in sorted(self._held, key=lambda slot: float(left_s[slot])):
            if idle >= needed:
                break
            idle += self._jobs[self._held[slot][0]].gpus
            start_s = self._now_s + float(left_s[slot])
        spare = idle - needed
        for number in others:
            job = self._jobs[number]
            in_time = self._now_s + job.run_s <= start_s
            if (in_time or job.gpus <= spare) and self._placed(number, first=False) and not in_time:
                spare -= job.gpus

    def _placed(self, number: int, *, first: bool) -> bool:
        """Whether a waiting job waits no longer: it was placed or refused."""
        job = self._jobs[number]
        if number in self._failed:
            return False
        why: Cause | None = None
        try:
            allocation = self._place(self._cluster, job.name, job.gpus)
        except Undecided:
            allocation, why = None, "undecided"
        except ValueError as error:
            self._queue.remove(number)
            self._outcomes[number] = Outcome(job, "refused", reason=str(error))
            self._tell()
            return True
        if allocation is None:
            self._failed.add(number)
            if first:
                self._failures[why or cause(self._cluster, self._place, job.gpus)] += 1
            return False
        self._queue.remove(number)
        self._start(number, allocation)
        return True

    def _start(self, number: int, allocation: AnyAllocation) -> None:
        """A waiting job gets its GPUs and links, for the first time or after a pause."""
        job, before = self._jobs[number], self._outcomes[number]
        self._cluster = self._cluster.take(allocation)  # type: ignore[arg-type]  # a rule and its cluster agree
        slot = self._slot()
        self._held[slot] = (number, allocation)
        self._busy += job.gpus
        leaves = len(allocation.leaves)
        if self._scenario.queue == "las" and number not in self._served:  # such jobs are never preempted
            self._served_s[slot] = self._now_s + self._scenario.service_gpu_s / job.gpus
        if before.state == "preempted":
            pauses = (*before.pauses[:-1], (before.pauses[-1][0], self._now_s))
            leaves = max(leaves, before.leaves)
            self._outcomes[number] = replace(before, state="running", leaves=leaves, pauses=pauses)
            self._restoring.add(slot)
            self._remaining[slot] = self._scenario.checkpoint_s
            return
        self._outcomes[number] = Outcome(job, "running", self._now_s, leaves=leaves)
        self._begin(slot)

    def _begin(self, slot: int) -> None:
        """A job that has its GPUs begins to work, or goes on with what it had left."""
        number, allocation = self._held[slot]
        job, scenario = self._jobs[number], self._scenario
        if (left_s := self._left_s.get(number)) is not None:
            job = replace(job, run_s=left_s)
        traffic = None
        untimed = scenario.network == "replanned" and scenario.fidelity == "average"  # the speed is 1 throughout
        if len(allocation.leaves) > 1 and job.communication and not untimed:
            steps = steps_of(job.pattern, job.gpus, scenario.shape.gpus_per_server)
            traffic = traffic_of(
                scenario.shape,
                scenario.network,
                allocation,
                steps,
                self._contention.load,
                self._rng,
                scenario.lanes,
                with_paths=scenario.fidelity == "fair" or self._started is not None,
            )
        if self._started is not None:
            self._started(number, allocation, None if traffic is None else traffic.paths)
        if traffic is None:
            self._alone.add(slot)
        self._remaining[slot] = job.run_s if traffic is None else self._contention.start(slot, job, traffic)
        self._note_worst()

    def _slot(self) -> int:
        if self._free_slots:
            return heappop(self._free_slots)
        slot = len(self._held)
        if slot == len(self._remaining):
            self._remaining = np.concatenate([self._remaining, np.full(slot, np.inf)])
            self._speed = np.concatenate([self._speed, np.ones(slot)])
            self._served_s = np.concatenate([self._served_s, np.full(slot, np.inf)])
        return slot
