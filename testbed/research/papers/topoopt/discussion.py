# SPDX-License-Identifier: Apache-2.0
"""Section 7: what a fibre's failure costs an all-reduce, jobs on the same servers, and TotientPerms on fat-trees."""

from collections import Counter
from functools import cache
from statistics import fmean
from typing import Literal

import numpy as np

from netmodel import PortRef, direct_connect
from sdn.topoopt import Demand, data_parallel, ring_circuits, select_permutations, totient_perms
from sdn.topoopt.healing import around, arrivals, loads_of, swapped
from sdn.topoopt.patching import patch
from sdn.topoopt.relays import RelayPlan, Way
from sdn.topoopt.tenants import Tenant, share
from testbed.research.topoopt.shared import FatTree

TREE = FatTree(ports=8, rate_bps=1.0, uplinks=4)
"""128 servers."""
SEEDS = range(1, 21)

State = Literal["whole", "healed", "swapped"]


def pairs_left(servers: int, degree: int) -> float:
    """The part of all ordered pairs that circuits join after the failure of the NIC where most are parted.

    Rings look alike from every server, so the NICs of one server stand for all.
    """
    topology = direct_connect(servers, degree, 1)
    hosts = [host.name for host in topology.hosts]
    strides = select_permutations(servers, degree, totient_perms(servers))
    circuits = patch(topology, hosts, [ring_circuits(range(servers), stride) for stride in strides])
    nowhere = Way((PortRef("", 0),), PortRef("", 0))  # no circuit is there, so each way is searched
    ends = {(PortRef(a, 1), PortRef(b, 1)): nowhere for a in hosts for b in hosts if a != b}
    left = [
        len(around(ends, arrivals(topology, circuits, [topology.link_at(PortRef("h1", nic))]))) / len(ends)
        for nic in range(1, degree + 1)
    ]
    return min(left)


@cache
def busiest(state: State) -> float:
    """The bytes on the busiest circuit, in the bytes of a ring's hop: a step of the all-reduce takes as long as those.

    On the rings of section 4.3, +1, +3 and +7 of 16 servers. The all-reduce uses the first two. NIC 0 of one server
    fails, and its two hops go over what other rings have, or ports are swapped.
    """
    servers, strides = 16, (1, 3, 7)
    topology = direct_connect(servers, len(strides), 1)
    hosts = [host.name for host in topology.hosts]
    circuits = patch(topology, hosts, [ring_circuits(range(servers), stride) for stride in strides])
    far = arrivals(topology, circuits)
    ways = {(port, arrival): Way((port,), arrival) for port, arrival in far.items()}
    sent = {ends: 1.0 for ends in ways if ends[0].port < len(strides)}
    failed = PortRef(hosts[0], 1)
    dead = [] if state == "whole" else [topology.link_at(failed)]
    if state == "swapped":
        circuits = swapped(topology, circuits, failed, dead, loads_of(ways, sent))
    return max(loads_of(around(ways, arrivals(topology, circuits, dead), sent), sent).values())


@cache
def beside_another(*, partitioned: bool) -> float:
    """How long a step of an all-reduce takes beside another job on the same servers, over alone; by the bytes on the
    busiest circuit.

    16 servers with four NICs. The other job sends as much from each server to the next but one. `partitioned`: each
    job has two NICs, as a logical server has; otherwise both use the two NICs of the all-reduce.
    """
    servers = 16
    topology = direct_connect(servers, 4, 1)
    hosts = [host.name for host in topology.hosts]
    reduced = data_parallel(servers, 1.0)
    exchanged = Demand(servers, (), np.roll(np.eye(servers), 2, axis=1))
    tenants = [Tenant(reduced, hosts, [0, 1]), Tenant(exchanged, hosts, [2, 3])]
    _, got = share(topology, tenants if partitioned else tenants[:1])

    def sent(plan: RelayPlan, hop: int) -> Counter[PortRef]:
        ways = (plan.connections[hosts[at], hosts[(at + hop) % servers]][0].there for at in range(servers))
        return Counter(port for way in ways for port in way.ports)

    own, other = sent(got[0].plan, 1), sent(got[-1].plan, 2)
    return max((own + other)[port] for port in own) / max(own.values())


def tree_step(rings: int, seed: int, *, shuffled: bool) -> float:
    """How long a step of an all-reduce takes on the fat-tree, over that on an ideal switch.

    The data are divided evenly among so many permutations of TotientPerms. Each flow takes a random path, as by a hash,
    so the step lasts as long as on the link with most bytes. `shuffled`: servers are numbered at random; otherwise
    neighbours in a rack follow each other.
    """
    random = np.random.default_rng(seed)
    servers = TREE.servers
    order = random.permutation(servers) if shuffled else np.arange(servers)
    loads: Counter[int] = Counter()
    for stride in select_permutations(servers, rings, totient_perms(servers)):
        for at in range(servers):
            source, target = int(order[at]), int(order[(at + stride) % servers])
            choice = int(random.integers(TREE.ports**2))
            loads.update(dict.fromkeys(TREE.route(source, target, choice), 1 / rings))
    return max(loads.values())


def tree_gain(rings: int, *, shuffled: bool) -> float:
    """The time with one ring over that with several permutations, as a ratio of means over `SEEDS`."""
    one, several = (fmean(tree_step(k, seed, shuffled=shuffled) for seed in SEEDS) for k in (1, rings))
    return one / several
