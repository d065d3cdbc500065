# SPDX-License-Identifier: Apache-2.0
"""Which links and spines the data of each job cross, and which links jobs share. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from netmodel import top_switches
from testbed.analysis.flows import RunFlows


@dataclass(frozen=True, slots=True)
class LinkSharing:
    """One run: `shared_links` counts the link directions that jobs share."""

    by_spine: Mapping[str, Mapping[str, int]]
    """By spine, with three tiers by core: the payload bytes of each job."""
    links: int
    shared_links: int
    most_flows: int
    strays: int


def sharing(flows: RunFlows) -> LinkSharing:
    """Link sharing among the jobs of one run: by the predicted paths of all data that left their leaf.

    The report compares predictions with observations.
    """
    experiment, address = flows.instance.experiment, flows.instance.address
    job_of = {address(rank): number for number, job in enumerate(experiment.jobs) for rank in job.ranks}
    job = np.array([job_of.get(str(flow.src), -1) for flow, _ in flows.sent], dtype=np.int64)
    last = (flows.rows >= 0).sum(axis=1) - 1
    place = np.arange(flows.rows.shape[1])
    between = (place > 0) & (place < last[:, None]) & (job >= 0)[:, None]
    crossing, _ = np.nonzero(between)
    link = flows.rows[between]
    spines = top_switches(experiment.topology)
    payload = np.zeros((len(experiment.jobs), len(flows.links)), dtype=np.int64)
    count = np.zeros_like(payload)
    np.add.at(payload, (job[crossing], link), flows.bytes[crossing])
    np.add.at(count, (job[crossing], link), 1)
    by_spine: dict[str, Counter[str]] = {spine: Counter() for spine in spines}
    for number, column in zip(*(index.tolist() for index in np.nonzero(count)), strict=True):
        if (node := flows.links.ports[column].node) in by_spine:
            by_spine[node][experiment.jobs[number].name] += int(payload[number, column])
    sharers = (count > 0).sum(axis=0)
    return LinkSharing(
        by_spine=by_spine,
        links=int((sharers > 0).sum()),
        shared_links=int((sharers > 1).sum()),
        most_flows=int(count.sum(axis=0).max(initial=0)),
        strays=sum(flows.run.strays.values()),
    )
