# SPDX-License-Identifier: Apache-2.0
"""Builders of fabrics with three tiers: pods of leaves and aggregation switches, which cores join.

The wiring is that of M. Al-Fares, A. Loukissas and A. Vahdat, "A Scalable, Commodity Data Center Network Architecture"
(SIGCOMM 2008): aggregation switch a of every pod is linked to the same cores, the a-th group of them.
"""

from dataclasses import replace

from netmodel.fabric_addresses import HOSTS_PER_LEAF_MAX, LEAVES_MAX, host_address
from netmodel.located import raise_all
from netmodel.topology import (
    Host,
    Link,
    Nic,
    PortRef,
    Role,
    Switch,
    Topology,
    TopologyError,
    check_links,
    derived_hash_seed,
    derived_mac,
)

_PORTS_MAX = 65535
_FAT_TREE_PORTS_MAX = 64  # 65,536 hosts


def clos(
    pods: int,
    leaves: int,
    aggs: int,
    cores_per_agg: int,
    hosts_per_leaf: int,
    host_rate_bps: int,
    agg_rate_bps: int | None = None,
    core_rate_bps: int | None = None,
    parallel_links: int = 1,
    mtu_bytes: int = 9000,
    *,
    core_parallel_links: int | None = None,
    host_delay_s: float | None = None,
    agg_delay_s: float | None = None,
    core_delay_s: float | None = None,
    ipv6: bool = False,
    name: str | None = None,
) -> Topology:
    """Each of `pods` has `leaves` and `aggs`, and `parallel_links` links from each of the former to each of the latter.

    Agg a of every pod has `core_parallel_links` (default `parallel_links`) links to each of the same `cores_per_agg`
    cores, so there are `aggs` times `cores_per_agg` cores. Names count from 1 through the whole fabric, pod by pod:
    hosts h1.., leaf1.., agg1..; core1.. are counted group by group. With 4 aggs in a pod, agg5 is thus the first of pod
    2 and has the cores of agg1. Addresses are those of `netmodel.leaf_spine`. Ports of a leaf are its hosts, then its
    uplinks by agg; of an agg its leaves, then its cores; of a core its pods; parallel links are adjacent. Datapath
    identifiers count from 1: leaves, aggs, cores. Each switch's hash seed is `derived_hash_seed` of it.

    Rates are each way, in bit/s: `host_rate_bps` of host links, `agg_rate_bps` of those between leaf and agg (default
    `host_rate_bps`), `core_rate_bps` of those between agg and core (default `agg_rate_bps`). `host_delay_s`,
    `agg_delay_s` and `core_delay_s` are the delays of the same links in seconds; None: not given.

    Raises TopologyError (a ValueError) for counts below one, more than 254 hosts per leaf, more than a million links,
    or any value that `Topology` refuses.
    """
    core_parallel = parallel_links if core_parallel_links is None else core_parallel_links
    counts = {
        "pods": (pods, _PORTS_MAX),
        "leaves": (leaves, _PORTS_MAX),
        "aggs": (aggs, _PORTS_MAX),
        "cores_per_agg": (cores_per_agg, _PORTS_MAX),
        "hosts_per_leaf": (hosts_per_leaf, HOSTS_PER_LEAF_MAX),
        "parallel_links": (parallel_links, _PORTS_MAX),
        "core_parallel_links": (core_parallel, _PORTS_MAX),
    }
    found = [
        TopologyError(f"{what} is {count}, but must lie in 1..{largest}", (what,))
        for what, (count, largest) in counts.items()
        if not 1 <= count <= largest
    ]
    if not found and pods * leaves > LEAVES_MAX:
        found.append(
            TopologyError(
                f"{pods} pods have {pods * leaves} leaves, and there are addresses for {LEAVES_MAX}",
                ("leaves",),
            )
        )
    rates = {"host_rate": host_rate_bps, "agg_rate": agg_rate_bps, "core_rate": core_rate_bps}
    found += [
        TopologyError(f"{what}_bps is {rate}, but a rate must be at least 1 bit/s", (what,))
        for what, rate in rates.items()
        if rate is not None and rate <= 0
    ]
    raise_all(found)
    check_links(pods * (leaves * hosts_per_leaf + aggs * (leaves * parallel_links + cores_per_agg * core_parallel)))
    agg_rate = host_rate_bps if agg_rate_bps is None else agg_rate_bps
    core_rate = agg_rate if core_rate_bps is None else core_rate_bps

    hosts: list[Host] = []
    links: list[Link] = []
    for leaf in range(pods * leaves):
        for j in range(1, hosts_per_leaf + 1):
            address = host_address(leaf, j, ipv6=ipv6)
            hosts.append(Host(f"h{len(hosts) + 1}", (Nic("nic0", address, derived_mac(address)),)))
            up, down = PortRef(hosts[-1].name, 1), PortRef(f"leaf{leaf + 1}", j)
            links.append(Link(up, down, host_rate_bps, host_delay_s))
    for pod in range(pods):
        for leaf in range(leaves):
            for agg in range(aggs):
                up = PortRef(f"leaf{pod * leaves + leaf + 1}", hosts_per_leaf + agg * parallel_links)
                down = PortRef(f"agg{pod * aggs + agg + 1}", leaf * parallel_links)
                links += _bundle(Link(up, down, agg_rate, agg_delay_s), parallel_links)
        for agg in range(aggs):
            for core in range(cores_per_agg):
                up = PortRef(f"agg{pod * aggs + agg + 1}", leaves * parallel_links + core * core_parallel)
                down = PortRef(f"core{agg * cores_per_agg + core + 1}", pod * core_parallel)
                links += _bundle(Link(up, down, core_rate, core_delay_s), core_parallel)
    switches: list[Switch] = []
    counted: tuple[tuple[Role, int], ...] = (
        ("leaf", pods * leaves),
        ("agg", pods * aggs),
        ("core", aggs * cores_per_agg),
    )
    for role, count in counted:
        for i in range(1, count + 1):
            dpid = len(switches) + 1
            switches.append(Switch(f"{role}{i}", role, dpid, derived_hash_seed(dpid)))
    return Topology(
        name=f"clos-{pods}x{leaves}x{aggs}x{cores_per_agg}x{hosts_per_leaf}" if name is None else name,
        hosts=tuple(hosts),
        switches=tuple(switches),
        links=tuple(links),
        mtu_bytes=mtu_bytes,
    )


def fat_tree(
    k: int,
    host_rate_bps: int,
    mtu_bytes: int = 9000,
    *,
    host_delay_s: float | None = None,
    agg_delay_s: float | None = None,
    core_delay_s: float | None = None,
    ipv6: bool = False,
    name: str | None = None,
) -> Topology:
    """The fat-tree of switches with `k` ports: k pods of k / 2 leaves and k / 2 aggs, and k^2 / 4 cores.

    It is `clos` with k / 2 hosts on a leaf, so k^3 / 4 hosts, with links of one rate and full bisection. Delays are
    those of `clos`. Raises
    TopologyError for a `k` that is odd or not in 2..64, and for a rate below one.
    """
    if not 2 <= k <= _FAT_TREE_PORTS_MAX or k % 2:
        raise TopologyError(f"k is {k}, but must be an even number in 2..{_FAT_TREE_PORTS_MAX}", ("k",))
    half = k // 2
    label = f"fat-tree-{k}" if name is None else name
    return clos(
        k,
        half,
        half,
        half,
        half,
        host_rate_bps,
        mtu_bytes=mtu_bytes,
        host_delay_s=host_delay_s,
        agg_delay_s=agg_delay_s,
        core_delay_s=core_delay_s,
        ipv6=ipv6,
        name=label,
    )


def _bundle(link: Link, parallel: int) -> list[Link]:
    """Links like `link` between the ports after its ends."""
    return [
        replace(link, a=PortRef(link.a.node, link.a.port + k), b=PortRef(link.b.node, link.b.port + k))
        for k in range(1, parallel + 1)
    ]
