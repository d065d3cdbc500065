# SPDX-License-Identifier: Apache-2.0
"""Builder of leaf-spine topologies."""

from collections import Counter

from netmodel.fabric_addresses import HOSTS_PER_LEAF_MAX, LEAVES_MAX, host_address
from netmodel.located import raise_all
from netmodel.topology import (
    Host,
    Link,
    Nic,
    PortRef,
    Switch,
    Topology,
    TopologyError,
    check_links,
    derived_hash_seed,
    derived_mac,
)


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    host_rate_bps: int,
    fabric_rate_bps: int | None = None,
    parallel_links: int = 1,
    mtu_bytes: int = 9000,
    *,
    host_delay_s: float | None = None,
    fabric_delay_s: float | None = None,
    optical_switches: int = 0,
    ipv6: bool = False,
    name: str | None = None,
) -> Topology:
    """A two-level leaf-spine in which every leaf has `parallel_links` links to every spine.

    Names count from 1: hosts h1.. (leaf by leaf), leaf1.., spine1... Host j of leaf i has one NIC with address
    10.0.<i-1>.<j> (from leaf 257 on, 10.<(i-1) // 256>.<(i-1) % 256>.<j>); with `ipv6` these four
    bytes are the last of an address that begins with fd00::. A leaf's ports are its hosts (1..H), then
    its uplinks by spine, parallel links adjacent; a spine's ports are the leaves in order, parallel links adjacent.
    Datapath identifiers count from 1, leaves first; each switch's hash seed is `derived_hash_seed` of it.

    `host_rate_bps` is the rate of host links and, where `fabric_rate_bps` is None, of leaf-to-spine links too, each
    way, in bit/s. `host_delay_s` and `fabric_delay_s` are the delays of these links in seconds; None:
    not given.

    With `optical_switches`, the cables between leaf n and spine m pass through optical switch ocs<k>, where
    k = (n + m) mod `optical_switches` + 1 with n and m from 0. The ports of each leaf and spine are thus spread over
    all optical switches (OCS-vClos). Circuits then decide what is connected: `netmodel.with_circuits`.

    Raises TopologyError (a ValueError) for counts below one, more than 254 hosts per leaf, more than a million links,
    or any value that `Topology` refuses.
    """
    counts = {
        "leaves": (leaves, LEAVES_MAX),
        "spines": (spines, 65535),
        "hosts_per_leaf": (hosts_per_leaf, HOSTS_PER_LEAF_MAX),
        "parallel_links": (parallel_links, 65535),
    }
    found = [
        TopologyError(f"{what} is {count}, but must lie in 1..{largest}", (what,))
        for what, (count, largest) in counts.items()
        if not 1 <= count <= largest
    ]
    if not found and not 0 <= optical_switches <= min(leaves + spines - 1, 65535):
        found.append(
            TopologyError(
                f"optical_switches is {optical_switches}, but must lie in 0..{min(leaves + spines - 1, 65535)}: more "
                "would have no cable",
                ("optical_switches",),
            )
        )
    found += [
        TopologyError(f"{what} is {rate}, but a rate must be at least 1 bit/s", (what.removesuffix("_bps"),))
        for what, rate in (("host_rate_bps", host_rate_bps), ("fabric_rate_bps", fabric_rate_bps))
        if rate is not None and rate <= 0
    ]
    raise_all(found)
    check_links(leaves * (hosts_per_leaf + spines * parallel_links * (2 if optical_switches else 1)))
    fabric_rate = host_rate_bps if fabric_rate_bps is None else fabric_rate_bps

    hosts: list[Host] = []
    links: list[Link] = []
    for leaf in range(leaves):
        for j in range(1, hosts_per_leaf + 1):
            address = host_address(leaf, j, ipv6=ipv6)
            host = Host(f"h{len(hosts) + 1}", (Nic("nic0", address, derived_mac(address)),))
            hosts.append(host)
            links.append(Link(PortRef(host.name, 1), PortRef(f"leaf{leaf + 1}", j), host_rate_bps, host_delay_s))
    taken: Counter[int] = Counter()  # ports of each optical switch
    for leaf in range(leaves):
        for spine in range(spines):
            for k in range(1, parallel_links + 1):
                up = PortRef(f"leaf{leaf + 1}", hosts_per_leaf + spine * parallel_links + k)
                down = PortRef(f"spine{spine + 1}", leaf * parallel_links + k)
                if not optical_switches:
                    links.append(Link(up, down, fabric_rate, fabric_delay_s))
                    continue
                number = (leaf + spine) % optical_switches + 1
                taken[number] += 2
                for end, port in ((up, taken[number] - 1), (down, taken[number])):
                    links.append(Link(end, PortRef(f"ocs{number}", port), fabric_rate, fabric_delay_s))
    optical = range(leaves + spines + 1, leaves + spines + optical_switches + 1)
    switches = [
        *(Switch(f"leaf{i}", "leaf", i, derived_hash_seed(i)) for i in range(1, leaves + 1)),
        *(Switch(f"spine{i}", "spine", leaves + i, derived_hash_seed(leaves + i)) for i in range(1, spines + 1)),
        *(Switch(f"ocs{i}", "ocs", dpid, derived_hash_seed(dpid)) for i, dpid in enumerate(optical, start=1)),
    ]
    return Topology(
        name=f"leaf-spine-{leaves}x{spines}x{hosts_per_leaf}" + ("-optical" if optical_switches else "")
        if name is None
        else name,
        hosts=tuple(hosts),
        switches=tuple(switches),
        links=tuple(links),
        mtu_bytes=mtu_bytes,
    )
