# SPDX-License-Identifier: Apache-2.0
"""vClos: every job gets a leaf-spine of its own within the cluster, on links that no other job uses. Pure.

Section 6 and appendix A.2 of the paper that `source_routing` names. A virtual Clos has l virtual leaves and s virtual
spines, each on a leaf or spine of its own, with a link between each virtual leaf and spine. A virtual leaf has s GPUs,
on whole servers. With source routing inside it, a job's collectives share no link with other jobs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from sdn.isolation.cluster import Allocation, Cluster, Gpu, LinkCount, on_servers, rounded
from sdn.isolation.integer_program import IntegerProgram, first_found
from sdn.isolation.local import within_leaf, within_server


def place(cluster: Cluster, job: str, gpus: int) -> Allocation | None:
    """Algorithm 1: stage 0 within a server, stage 1 under a leaf, stage 2 a virtual Clos; None when the job must wait.

    A job larger than a server gets whole servers, and of these the least number for which an empty cluster has a place
    (section 6.1): some numbers, such as primes, have no l and s. The first `gpus` of the allocation's GPUs are for the
    job to use. Raises ValueError for a job of no GPU, and for one that even an empty cluster has no place for, and
    `integer_program.Undecided` when the integer programs find and exclude no place in time.
    """
    per_server = cluster.gpus_per_server
    given = rounded(cluster.gpus, gpus, per_server, job)
    if given <= per_server:
        return within_server(cluster.idle, given, job)
    given = least_size(range(given, cluster.gpus + 1, per_server), lambda size: _fits(cluster, size), job, gpus)
    idle_servers = cluster.idle_servers()
    return within_leaf(idle_servers, given, per_server, job) or _across_leaves(cluster, idle_servers, given, job)


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
    common = [spine for spine in range(cluster.spines) if all(cluster.free.get((leaf, spine)) for leaf in leaves)]
    if len(common) < needed:
        raise ValueError(
            f"job {job!r} needs {needed} spines with a free link to each of its {len(leaves)} leaves, and there "
            f"{'is' if len(common) == 1 else 'are'} {len(common)}; place the job otherwise"
        )
    ports = cluster.free_ports()
    chosen = sorted(common, key=lambda spine: (ports[spine], spine))[:needed]
    return Allocation(job, 2, tuple(gpus), {(leaf, spine): 1 for leaf in leaves for spine in sorted(chosen)})


def _across_leaves(cluster: Cluster, idle_servers: list[list[int]], gpus: int, job: str) -> Allocation | None:
    """Stage 2, algorithm 3."""
    per_server = cluster.gpus_per_server
    links = first_found(
        partial(_virtual_clos, cluster, idle_servers, count, size)
        for count, size in sizes(gpus, cluster.leaves, cluster.spines, per_server)
    )
    if links is None:
        return None
    leaves = sorted({leaf for leaf, _ in links})
    servers = gpus // len(leaves) // per_server
    chosen = [gpu for leaf in leaves for gpu in on_servers(leaf, idle_servers[leaf][:servers], per_server)]
    return Allocation(job, 2, tuple(chosen), links)


def _fits(cluster: Cluster, gpus: int) -> bool:
    """Whether stage 1 or 2 has a place for whole servers of so many GPUs while the cluster is empty."""
    room = cluster.servers_per_leaf * cluster.gpus_per_server
    return gpus <= room or any(
        size <= room for _, size in sizes(gpus, cluster.leaves, cluster.spines, cluster.gpus_per_server)
    )


def _virtual_clos(cluster: Cluster, idle_servers: list[list[int]], count: int, size: int) -> LinkCount | None:
    """Links of the cheapest virtual Clos (6) of `count` leaves and `size` spines; None when there is none.

    Of the unknowns of (2) to (5), l determines r by (5), and l and s determine c: by (3) and (4), c[n, m] is 1 exactly
    when l[n] and s[m] are. The rest of (4) is that l[n] and s[m] are not both 1 where C[n, m] is 0.
    """
    program = IntegerProgram()
    needed = size // cluster.gpus_per_server
    leaf_at = {
        leaf: program.column(1, len(servers) * cluster.gpus_per_server)
        for leaf, servers in enumerate(idle_servers)
        if len(servers) >= needed
    }
    spine_at = {spine: program.column(1, ports) for spine, ports in enumerate(cluster.free_ports())}
    if len(leaf_at) < count:
        return None
    program.row(dict.fromkeys(leaf_at.values(), 1.0), count, count)
    program.row(dict.fromkeys(spine_at.values(), 1.0), size, size)
    for leaf, column in leaf_at.items():
        for spine, other in spine_at.items():
            if not cluster.free.get((leaf, spine)):
                program.row({column: 1.0, other: 1.0}, upper=1.0)
    found = program.solve()
    if found is None:
        return None
    spines = [spine for spine, column in spine_at.items() if found[column]]
    return {(leaf, spine): 1 for leaf, column in leaf_at.items() if found[column] for spine in spines}
