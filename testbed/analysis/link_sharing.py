# SPDX-License-Identifier: Apache-2.0
"""Which links and spines the data of each job cross, and which links jobs share. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netmodel import PortRef
from testbed.analysis import metrics
from testbed.analysis.observations import RunRecord
from testbed.spec import Experiment


@dataclass(frozen=True, slots=True)
class Crossing:
    """The payload of one flow and its path between switches."""

    job: str
    ports: Sequence[PortRef]
    bytes: int


@dataclass(frozen=True, slots=True)
class LinkSharing:
    """One run: `by_spine` has each job's payload bytes, `shared_links` the link directions that jobs share."""

    by_spine: Mapping[str, Mapping[str, int]]
    links: int
    shared_links: int
    most_flows: int
    strays: int


def crossings(experiment: Experiment, run: RunRecord) -> list[Crossing]:
    """The predicted paths of all data that left their leaf. The report compares predictions with observations."""
    placed = experiment.at(run.seed)
    routes = placed.routes(run.policy)
    rank_of = {placed.address(rank): rank for rank in range(placed.ranks)}
    flows = metrics.carried(experiment, run)
    return [
        Crossing(placed.job_of(rank_of[str(flow.src)]).name, ports, flows[flow])
        for flow, path in metrics.predicted_paths(placed, flows, routes).items()
        if str(flow.src) in rank_of and (ports := path[1:-1])
    ]


def sharing(experiment: Experiment, run: RunRecord) -> LinkSharing:
    """Link sharing among the jobs of one run."""
    role = {switch.name: switch.role for switch in experiment.topology.switches}
    by_spine: dict[str, Counter[str]] = {name: Counter() for name, what in role.items() if what == "spine"}
    jobs: defaultdict[PortRef, set[str]] = defaultdict(set)
    flows: Counter[PortRef] = Counter()
    for crossing in crossings(experiment, run):
        for port in crossing.ports:
            jobs[port].add(crossing.job)
            flows[port] += 1
            if port.node in by_spine:
                by_spine[port.node][crossing.job] += crossing.bytes
    return LinkSharing(
        by_spine=by_spine,
        links=len(jobs),
        shared_links=sum(len(there) > 1 for there in jobs.values()),
        most_flows=max(flows.values(), default=0),
        strays=sum(run.strays.values()),
    )
