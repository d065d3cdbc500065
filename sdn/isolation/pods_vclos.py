# SPDX-License-Identifier: Apache-2.0
"""vClos over several pods: a job gets a Clos of three tiers of its own, on links that no other job uses. Pure.

A virtual Clos of p pods has l virtual leaves in each, s virtual aggs, the same in every pod, and l virtual cores for
each of these: p * l * s GPUs, s under each virtual leaf. It has the links from each virtual leaf to each virtual agg of
its pod, and from each virtual agg to its virtual cores. The paper has no such rule; this one keeps what the paper
proves of its own.

Source routing within it: what the i-th GPU of a leaf sends goes by the i-th agg, and between pods, when the leaf is the
j-th of its pod, by the j-th core of that agg. *No two flows of a step share a link* where rank r sends to rank
r + t mod p * l * s (rings, pairwise all-to-all), or where p * l * s is a power of two and rank r sends to r xor t
(halving-doubling). Upwards this holds for any permutation, because a flow's link tells agg i, leaf j and pod, so the
sender. Downwards: two flows on one link from an agg a have senders with i = a, so that their ranks differ by a multiple
of s, and so do those of their receivers. These would be two of one leaf, which differ by less. Two flows on one link
from a core to a pod have senders with the same i and j, so that their ranks differ by a multiple of l * s, and so do
those of their receivers. These would be two of one pod, which differ by less. (With xor, *multiple of s* reads *agree
in the lower bits*, because l and s are powers of two.)
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from sdn.isolation.cluster import Allocation, Cluster, on_servers
from sdn.isolation.integer_program import IntegerProgram, first_found


def over_pods(cluster: Cluster, gpus: int, job: str) -> Allocation | None:
    """A virtual Clos over two or more pods for so many GPUs, which are whole servers; None when there is none now.

    Raises `integer_program.Undecided` when the integer programs find and exclude none in time.
    """
    per_server, cores = cluster.gpus_per_server, cluster.free_above.shape[2]
    most = min(cluster.spines, cluster.servers_per_leaf * per_server)
    shapes = sizes(gpus, cluster.pods, min(cluster.leaves_per_pod, cores), most, per_server)
    return first_found(partial(_placed, cluster, *shape, job) for shape in shapes)


def sizes(gpus: int, pods: int, leaves: int, spines: int, per_server: int) -> Iterator[tuple[int, int, int]]:
    """The (p, l, s) with p * l * s = gpus to try, s a multiple of T: few pods first, then few leaves.

    `pods`, `leaves` and `spines` are the most that p, l and s can be.
    """
    for count in range(2, pods + 1):
        for own in range(1, leaves + 1):
            size, left = divmod(gpus, count * own)
            if not left and 0 < size <= spines and size % per_server == 0:
                yield count, own, size


def _placed(cluster: Cluster, pods: int, own: int, size: int, job: str) -> Allocation | None:
    """The cheapest virtual Clos of `pods` pods with `own` leaves each, and of `size` aggs with `own` cores each.

    Costs are those of (6) in the paper: idle GPUs of a leaf, free ports of an agg or core. An integer program with an
    unknown, 0 or 1, for each pod, leaf, agg number and core. Where a link is not free, not both of its ends are 1.
    """
    per_server, per_pod = cluster.gpus_per_server, cluster.leaves_per_pod
    ready = cluster.idle.whole * per_server >= size
    enough = np.flatnonzero(ready.reshape(cluster.pods, -1).sum(axis=1) >= own).tolist()
    if len(enough) < pods:
        return None
    program = IntegerProgram()
    pod_at = {pod: program.column(1) for pod in enough}
    leaf_at = {
        leaf: program.column(1, int(cluster.idle.whole[leaf]) * per_server)
        for pod in enough
        for leaf in range(pod * per_pod, (pod + 1) * per_pod)
        if ready[leaf]
    }
    agg_at = [program.column(1, int(count)) for count in cluster.free.sum(axis=0)]
    core_at = {
        (agg, core): program.column(1, int(cluster.free_above[:, agg, core].sum()))
        for agg in range(cluster.spines)
        for core in range(cluster.free_above.shape[2])
    }
    program.row(dict.fromkeys(pod_at.values(), 1.0), pods, pods)
    program.row(dict.fromkeys(agg_at, 1.0), size, size)
    for pod, column in pod_at.items():
        leaves = {at: 1.0 for leaf, at in leaf_at.items() if leaf // per_pod == pod}
        program.row(leaves | {column: -float(own)}, 0, 0)
    for agg, column in enumerate(agg_at):
        cores = {at: 1.0 for (group, _), at in core_at.items() if group == agg}
        program.row(cores | {column: -float(own)}, 0, 0)
    for leaf, at in leaf_at.items():
        for agg in np.flatnonzero(cluster.free[leaf] == 0).tolist():
            program.row({at: 1.0, agg_at[agg]: 1.0}, upper=1.0)
    for pod, at in pod_at.items():
        for agg, core in np.argwhere(~cluster.free_above[pod]).tolist():
            program.row({at: 1.0, core_at[agg, core]: 1.0}, upper=1.0)
    found = program.solve()
    if found is None:
        return None
    leaves_of = [leaf for leaf, at in leaf_at.items() if found[at]]
    aggs = [agg for agg, at in enumerate(agg_at) if found[at]]
    servers = size // per_server
    return Allocation(
        job,
        3,
        tuple(gpu for leaf in leaves_of for gpu in on_servers(leaf, cluster.idle.servers(leaf)[:servers], per_server)),
        {(leaf, agg): 1 for leaf in leaves_of for agg in aggs},
        frozenset(
            (pod, *link) for pod, column in pod_at.items() if found[column] for link, at in core_at.items() if found[at]
        ),
    )
