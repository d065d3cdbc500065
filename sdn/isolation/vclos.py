# SPDX-License-Identifier: Apache-2.0
"""vClos: every job gets a leaf-spine of its own within the cluster, on links that no other job uses. Pure.

Section 6 and appendix A.2 of the paper that `source_routing` names. A virtual Clos has l virtual leaves and s virtual
spines, each on a leaf or spine of its own, with a link between each virtual leaf and spine. A virtual leaf has s GPUs,
on whole servers. With source routing inside it, a job's collectives share no link with other jobs.

In a cluster of several pods a job gets a virtual Clos within one pod, where aggs are the spines, or else one over
several pods (`sdn.isolation.pods_vclos`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from sdn.isolation import pods_vclos
from sdn.isolation.cluster import Allocation, Cluster, on_servers, rounded
from sdn.isolation.idle_gpus import Gpu
from sdn.isolation.integer_program import IntegerProgram, first_found
from sdn.isolation.local import within_leaf, within_server


def place(cluster: Cluster, job: str, gpus: int) -> Allocation | None:
    """Algorithm 1: stage 0 within a server, stage 1 under a leaf, stage 2 a virtual Clos; None when the job must wait.

    With several pods, stage 2 is within one of them, of those with room the one with the fewest idle servers first, and
    stage 3 over several.

    A job larger than a server gets whole servers, and of these the least number for which an empty cluster has a place
    (section 6.1): some numbers, such as primes, have no l and s. The first `gpus` of the allocation's GPUs are for the
    job to use. Raises ValueError for a job of no GPU, and for one that even an empty cluster has no place for, and
    `integer_program.Undecided` when the integer programs find and exclude no place in time.
    """
    per_server = cluster.gpus_per_server
    given = rounded(cluster.gpus, gpus, per_server, job)
    if given <= per_server:
        return within_server(cluster.idle, given, job)
    shape = (cluster.leaves_per_pod, cluster.spines, cluster.servers_per_leaf, per_server)
    above = (cluster.pods, cluster.free_above.shape[2])
    given = least_size(range(given, cluster.gpus + 1, per_server), lambda size: _fits(*shape, *above, size), job, gpus)
    return within_leaf(cluster.idle, given, job) or first_found(_attempts(cluster, given, job))


def sizes(gpus: int, leaves: int, spines: int, per_server: int, *, stacked: bool = False) -> Iterator[tuple[int, int]]:
    """The (l, s) with l * s = gpus to try, s a multiple of T, in the order of algorithm 3, lines 1 to 10.

    The algorithm begins with the largest virtual leaves that spines allow, and doubles l. It misses divisors of sizes
    that are not a power of two; these are tried last here, so that a virtual Clos is found whenever one exists.
    `stacked`: a spine can hold several virtual spines, so s may exceed S.
    """
    first = max(1, (1 << (gpus.bit_length() - 1)) // spines)
    doubled = [first << n for n in range(leaves.bit_length() + 1)]
    for count in dict.fromkeys([*doubled, *range(2, leaves + 1)]):
        if 2 <= count <= leaves and gpus % count == 0:
            size = gpus // count
            if (stacked or size <= spines) and size % per_server == 0:
                yield count, size


def least_size(candidates: Iterable[int], fits: Callable[[int], bool], job: str, wanted: int) -> int:
    """The first of the ascending candidates that fits an empty cluster. Raises ValueError when none does."""
    for size in candidates:
        if fits(size):
            return size
    raise ValueError(
        f"job {job!r} asks for {wanted} GPUs, and even an empty cluster has no virtual Clos for so many or more; make "
        "the job smaller"
    )


def spines_for(cluster: Cluster, job: str, gpus: Sequence[Gpu]) -> Allocation:
    """A virtual Clos for given GPUs: it needs as many spines as the largest number of its GPUs on a leaf.

    Of the spines with a free link to every leaf of the job, those with the fewest free ports are used. Raises
    ValueError when there are too few.
    """
    leaves = sorted({gpu.leaf for gpu in gpus})
    if len(leaves) < 2:
        return Allocation(job, 1, tuple(gpus))
    needed = max(sum(gpu.leaf == leaf for gpu in gpus) for leaf in leaves)
    common: list[int] = np.flatnonzero(cluster.free[leaves].all(axis=0)).tolist()
    if len(common) < needed:
        raise ValueError(
            f"job {job!r} needs {needed} spines with a free link to each of its {len(leaves)} leaves, and there "
            f"{'is' if len(common) == 1 else 'are'} {len(common)}; place the job otherwise"
        )
    ports = cluster.free.sum(axis=0)
    chosen = sorted(common, key=lambda spine: (ports[spine], spine))[:needed]
    return Allocation(job, 2, tuple(gpus), {(leaf, spine): 1 for leaf in leaves for spine in sorted(chosen)})


def _attempts(cluster: Cluster, gpus: int, job: str) -> Iterator[Callable[[], Allocation | None]]:
    """Stage 2 in each pod, then stage 3."""
    needed = gpus // cluster.gpus_per_server
    idle = cluster.idle.whole.reshape(cluster.pods, -1).sum(axis=1)
    for pod in np.argsort(idle, kind="stable").tolist():
        if idle[pod] >= needed:
            yield partial(_within_pod, cluster, pod, gpus, job)
    if cluster.pods > 1 and idle.sum() >= needed:
        yield partial(pods_vclos.over_pods, cluster, gpus, job)


def _within_pod(cluster: Cluster, pod: int, gpus: int, job: str) -> Allocation | None:
    found = _across_leaves(cluster if cluster.pods == 1 else cluster.pod(pod), gpus, job)
    if found is None or not pod:
        return found
    first = pod * cluster.leaves_per_pod
    return replace(
        found,
        gpus=tuple(gpu._replace(leaf=first + gpu.leaf) for gpu in found.gpus),
        links={(first + leaf, spine): count for (leaf, spine), count in found.links.items()},
    )


def _across_leaves(cluster: Cluster, gpus: int, job: str) -> Allocation | None:
    """Stage 2, algorithm 3."""
    per_server = cluster.gpus_per_server
    found = first_found(
        partial(_virtual_clos, cluster, count, size)
        for count, size in sizes(gpus, cluster.leaves, cluster.spines, per_server)
    )
    if found is None:
        return None
    leaves, spines = (sorted(chosen.tolist()) for chosen in found)
    servers = gpus // len(leaves) // per_server
    gpus_of = [gpu for leaf in leaves for gpu in on_servers(leaf, cluster.idle.servers(leaf)[:servers], per_server)]
    return Allocation(job, 2, tuple(gpus_of), {(leaf, spine): 1 for leaf in leaves for spine in spines})


@lru_cache(maxsize=1 << 12)
def _fits(leaves: int, spines: int, servers_per_leaf: int, per_server: int, pods: int, cores: int, gpus: int) -> bool:
    """Whether stages 1 to 3 have a place for whole servers of so many GPUs while a cluster of this shape is empty.

    `leaves` are those of a pod.
    """
    room = servers_per_leaf * per_server
    return (
        gpus <= room
        or any(size <= room for _, size in sizes(gpus, leaves, spines, per_server))
        or any(pods_vclos.sizes(gpus, pods, min(leaves, cores), min(spines, room), per_server))
    )


_Switches = NDArray[np.intp]


def _virtual_clos(cluster: Cluster, count: int, size: int) -> tuple[_Switches, _Switches] | None:
    """The `count` leaves and `size` spines of the cheapest virtual Clos (6); None when there is none.

    Of the unknowns of (2) to (5), l determines r by (5), and l and s determine c: by (3) and (4), c[n, m] is 1 exactly
    when l[n] and s[m] are. The rest of (4) is that l[n] and s[m] are not both 1 where C[n, m] is 0. So the cheapest
    leaves and spines are the solution where all links between them are free. Otherwise the integer program decides.
    """
    leaf_cost = cluster.idle.whole * cluster.gpus_per_server
    spine_cost = cluster.free.sum(axis=0)
    leaves, spines = _candidates(cluster.free > 0, cluster.idle.whole >= size // cluster.gpus_per_server, count, size)
    if len(leaves) < count or len(spines) < size:
        return None
    best = leaves[np.argsort(leaf_cost[leaves], kind="stable")[:count]]
    others = spines[np.argsort(spine_cost[spines], kind="stable")[:size]]
    if cluster.free[np.ix_(best, others)].all():
        return best, others
    program = IntegerProgram()
    leaf_at = [program.column(1, cost) for cost in leaf_cost[leaves].tolist()]
    spine_at = [program.column(1, cost) for cost in spine_cost[spines].tolist()]
    program.row(dict.fromkeys(leaf_at, 1.0), count, count)
    program.row(dict.fromkeys(spine_at, 1.0), size, size)
    for leaf, spine in np.argwhere(cluster.free[np.ix_(leaves, spines)] == 0).tolist():
        program.row({leaf_at[leaf]: 1.0, spine_at[spine]: 1.0}, upper=1.0)
    found = program.solve()
    if found is None:
        return None
    chosen = np.array(found, dtype=np.bool_)
    return leaves[chosen[leaf_at]], spines[chosen[spine_at]]


def _candidates(
    free: NDArray[np.bool_], ready: NDArray[np.bool_], count: int, size: int
) -> tuple[_Switches, _Switches]:
    """The leaves and spines that can be part of a virtual Clos, ascending.

    A leaf is `ready`, with free links to `size` of these spines; a spine has free links to `count` of these leaves.
    """
    leaves, spines = ready, np.ones(free.shape[1], dtype=np.bool_)
    while True:
        fewer_spines = spines & (free[leaves].sum(axis=0) >= count)
        fewer_leaves = leaves & (free[:, fewer_spines].sum(axis=1) >= size)
        if np.array_equal(fewer_leaves, leaves) and np.array_equal(fewer_spines, spines):
            return np.flatnonzero(leaves), np.flatnonzero(spines)
        leaves, spines = fewer_leaves, fewer_spines
