# SPDX-License-Identifier: Apache-2.0
"""Whether observations that were read from a file can be those of an experiment. Metrics and plots rely on it."""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise, product

import numpy as np
from pydantic import BaseModel

from netmodel import IPPROTO_TCP, IPPROTO_UDP, LocatedError, Location
from testbed.analysis.observations import LinkHistory, Observations, RunRecord, Sample
from testbed.spec import Experiment, Instance

_LARGEST = float(1 << 62)


def check_recorded(experiment: Experiment, observations: Observations) -> None:
    """Raises LocatedError, which says where, for observations that no run of the experiment leaves behind."""
    expected = set(product((policy.name for policy in experiment.spec.policies), experiment.seeds))
    lanes = {policy.name: policy.m for policy in experiment.spec.policies}
    found: set[tuple[str, int]] = set()
    known = _Known(experiment)
    for number, run in enumerate(observations.runs):
        where = ("runs", number)
        if (run.policy, run.seed) not in expected or run.m != lanes[run.policy]:
            raise LocatedError(f"the spec has no run of policy {run.policy!r}, m {run.m}, seed {run.seed}", where)
        if (run.policy, run.seed) in found:
            raise LocatedError(f"policy {run.policy!r} has two runs of seed {run.seed}", where)
        found.add((run.policy, run.seed))
        _check_numbers(run, where)
        known.check(run, where)
    if missing := sorted(expected - found):
        policy, seed = missing[0]
        raise LocatedError(f"policy {policy!r} has no run of seed {seed}", ("runs",))


class _Known:
    """The ranks, jobs, ports and addresses that an experiment has."""

    def __init__(self, experiment: Experiment) -> None:
        topology = experiment.topology
        self._ranks = range(experiment.ranks)
        self._jobs = [(job.name, job.size) for job in experiment.jobs]
        # Of cables that no circuit uses, too: a run counts on every port.
        ports = {port for fabric in (topology, experiment.cabled) for port in fabric.linked_ports()}
        self._ports = {str(port) for port in ports}
        self._switch_ports = {str(port) for port in ports if not topology.has_host(port.node)}
        self._between = {
            str(end)
            for link in topology.links
            for end in (link.a, link.b)
            if not any(topology.has_host(port.node) for port in (link.a, link.b))
        }
        self._addresses = {str(nic.address) for host in topology.hosts for nic in host.nics}
        self._members = range(max(1, len(Instance(experiment, experiment.seeds[0]).fused)))
        self._events = {event.what for event in experiment.spec.events}

    def check(self, run: RunRecord, where: Location) -> None:
        """Raises LocatedError for a run that refers to something else, or has too few entries."""
        if [(job.name, job.ranks) for job in run.jobs] != self._jobs:
            raise LocatedError("the jobs are not those of the spec", (*where, "jobs"))
        for place, job in enumerate(run.jobs):
            _above_zero(job.completion_s, (*where, "jobs", place, "completion_s"))
        _above_zero(run.completion_s, (*where, "completion_s"))
        if len(run.step_finished_s) != len(self._ranks) or not any(run.step_finished_s):
            raise LocatedError("there is not a list for each rank, with steps", (*where, "step_finished_s"))
        for place, flow in enumerate(run.flows):
            _known((flow.src, flow.dst), self._ranks, (*where, "flows", place), "rank")
        if not any(flow.bytes for flow in run.flows):
            raise LocatedError("no rank has sent anything", (*where, "flows"))
        for place, entry in enumerate(run.lanes):
            at = (*where, "lanes", place)
            _known([entry.rank], self._ranks, (*at, "rank"), "rank")
            ends = [entry.lane.peer] if entry.lane.local is None else [entry.lane.peer, entry.lane.local]
            _known(ends, self._addresses, (*at, "lane"), "address")
            _known([entry.lane.port], range(1 << 16), (*at, "lane", "port"), "port")
            _known([entry.lane.member], self._members, (*at, "lane", "member"), "fused NIC")
        _known((load.port for load in run.links), self._ports, (*where, "links"), "port")
        self._check_samples(run.samples, (*where, "samples"))
        if run.history is not None:
            self._check_history(run.history, (*where, "history"))
        for place, seen in enumerate(run.seen):
            at = (*where, "seen", place)
            _known((seen.src, seen.dst), self._addresses, at, "address")
            _known((seen.src_port, seen.dst_port), range(1 << 16), at, "port")
            _known([seen.protocol], (IPPROTO_TCP, IPPROTO_UDP), (*at, "protocol"), "flow of protocol")
            _known(seen.ports, self._switch_ports, at, "port")
        for place, event in enumerate(run.events):  # a run may end before some
            _known([event.what], self._events, (*where, "events", place, "what"), "event")
            _known(event.concerned, self._switch_ports, (*where, "events", place), "port")

    def _check_samples(self, samples: Sequence[Sample], where: Location) -> None:
        for place, sample in enumerate(samples):
            _known(sample.tx_bytes, self._switch_ports, (*where, place), "port")
            if sample.tx_bytes.keys() != samples[0].tx_bytes.keys():
                raise LocatedError("the ports are not those of the first sample", (*where, place))
        _ascending([sample.at_s for sample in samples], where)

    def _check_history(self, history: LinkHistory, where: Location) -> None:
        _known(history.ports, self._between or self._switch_ports, (*where, "ports"), "port between switches")
        if len(set(history.ports)) < len(history.ports):
            raise LocatedError("a port occurs twice", (*where, "ports"))
        if [len(row) for row in history.tx_bytes] != [len(history.ports)] * len(history.at_s):
            raise LocatedError("there is not a list for each moment, with a number for each port", (*where, "tx_bytes"))
        _ascending(history.at_s, (*where, "at_s"))


def _check_numbers(value: object, where: Location) -> None:
    """Raises LocatedError for a number that is not finite, or larger than a counter of 62 bits."""
    if isinstance(value, BaseModel):
        for name, inner in value:
            if name != "service":  # as the service has told it
                _check_numbers(inner, (*where, name))
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(inner, (*where, name))
    elif isinstance(value, list) and value and isinstance(value[0], int | float):  # thousands of them, at once
        if not (np.abs(np.array(value, dtype=np.float64)) < _LARGEST).all():
            raise LocatedError("a number is not finite or too large", where)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _check_numbers(inner, (*where, place))
    elif isinstance(value, int | float) and not abs(value) < _LARGEST:
        raise LocatedError(f"{value:g} is not finite or too large", where)


def _known(values: Iterable[object], known: Collection[object], where: Location, what: str) -> None:
    for value in values:
        if value not in known:
            raise LocatedError(f"the experiment has no {what} {str(value)[:60]!r}", where)


def _above_zero(time_s: float, where: Location) -> None:
    if time_s <= 0:
        raise LocatedError(f"{time_s:g} s is not a time above 0", where)


def _ascending(moments_s: Sequence[float], where: Location) -> None:
    if any(later <= earlier for earlier, later in pairwise(moments_s)):
        raise LocatedError("the moments do not ascend", where)
