# SPDX-License-Identifier: Apache-2.0
"""Builders of GPU fabrics with rails: GPU g of every high-bandwidth (HB) domain is on rail g.

Source: Rail-only (arXiv 2307.12169v5), sections II and IV-A. A GPU is a host with two NICs: nic0 on its rail and nic1
on its HB domain, which is a separate switch without links to rails. `rail_optimised` joins all rails by spines
(Figure 1); in `rail_only` each rail is a separate fabric (Figure 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

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

RAIL_NIC, HB_NIC = "nic0", "nic1"

_RAILS = int(IPv4Address("10.0.0.0"))  # rail g has 10.<g - 1>.0.0/16
_DOMAINS = int(IPv4Address("10.128.0.0"))  # domain d has a /24, where 10.128.0.0/9 has no rails
_LARGE_DOMAINS = int(IPv4Address("100.64.0.0"))  # otherwise a /23 of 100.64.0.0/10, which has 8,192 of them
_MOST_SMALL = 128
_LARGEST = {
    "gpus_per_domain": 256,
    "domains": 32768,
    "leaves_per_rail": 65535,
    "spines": 65535,
    "pods": 65535,
    "cores_per_agg": 65535,
}


def rail_optimised(
    domains: int,
    gpus_per_domain: int,
    rail_rate_bps: int,
    hb_rate_bps: int,
    spines: int,
    leaves_per_rail: int = 1,
    fabric_rate_bps: int | None = None,
    mtu_bytes: int = 9000,
    *,
    pods: int = 1,
    cores_per_agg: int = 1,
    core_rate_bps: int | None = None,
    rail_delay_s: float | None = None,
    hb_delay_s: float | None = None,
    fabric_delay_s: float | None = None,
    core_delay_s: float | None = None,
    name: str | None = None,
) -> Topology:
    """M `domains` of K `gpus_per_domain`, and a spine layer that joins the leaves of all K rails.

    Names count from 1: host d2g3 is GPU 3 of domain 2; its nic0 (10.2.0.2) is on a leaf of rail 3 and its nic1
    (10.128.1.3, or 100.64.2.3 where K is above 128) on switch hb2. Rail 3's leaf is rail3, or rail3l1.. where
    `leaves_per_rail` is more than 1; domains are then divided among the leaves in order and evenly. A leaf's ports are
    its hosts (by domain), then its spines. Rates are each way, in bit/s: `rail_rate_bps` of nic0, `hb_rate_bps` of
    nic1, `fabric_rate_bps` of leaf-to-spine links (default `rail_rate_bps`). Bisection is full when spines *
    fabric_rate_bps equals a leaf's hosts * rail_rate_bps. `rail_delay_s` to `core_delay_s` are the delays of the same
    links in seconds; None: not given.

    With `pods` above 1 there are three tiers, as of `netmodel.clos`: the leaves of each rail are divided among pods in
    order and evenly, `spines` is the number of aggs of a pod (agg1.., pod by pod), and agg a of every pod is linked to
    the same `cores_per_agg` cores (core1.., group by group) at `core_rate_bps` (default: that of leaf-to-agg links).

    Raises TopologyError (a ValueError) for counts or rates below one, domains that do not divide evenly among leaves or
    leaves among pods, more than 256 GPUs in a domain, more than a million links, or any value that `Topology` refuses.
    """
    rates_bps = (fabric_rate_bps or rail_rate_bps, core_rate_bps)
    upper = _Upper(spines, pods, cores_per_agg, *rates_bps, fabric_delay_s, core_delay_s)
    _check(domains, gpus_per_domain, rail_rate_bps, hb_rate_bps, 1, leaves_per_rail, fabric_rate_bps, upper)
    return _rails(
        domains,
        gpus_per_domain,
        leaves_per_rail,
        [(range(1, gpus_per_domain + 1), ("spine", "agg", "core"))],  # one plane for every leaf of every rail
        (_Cable(rail_rate_bps, rail_delay_s), _Cable(hb_rate_bps, hb_delay_s)),
        upper,
        mtu_bytes,
        f"rail-optimised-{domains}x{gpus_per_domain}" if name is None else name,
    )


def rail_only(
    domains: int,
    gpus_per_domain: int,
    rail_rate_bps: int,
    hb_rate_bps: int,
    spines: int = 0,
    leaves_per_rail: int = 1,
    fabric_rate_bps: int | None = None,
    mtu_bytes: int = 9000,
    *,
    pods: int = 1,
    cores_per_agg: int = 1,
    core_rate_bps: int | None = None,
    rail_delay_s: float | None = None,
    hb_delay_s: float | None = None,
    fabric_delay_s: float | None = None,
    core_delay_s: float | None = None,
    spare_gpus: int = 0,
    name: str | None = None,
) -> Topology:
    """Like `rail_optimised`, but each rail has its own `spines` (rail3s1..), and no path leads from rail to rail.

    With `pods` above 1 each rail has its own aggs (rail3a1..) and cores (rail3c1..). A rail of one leaf needs no spine.

    With `spare_gpus` each domain has so many more GPUs, numbered after the others, and an optical switch between its
    GPUs and the rails (section IV-C): nic0 of GPU g of domain 2 is on port g of ocs2, and the cable to rail g is on
    port K + `spare_gpus` + g. `sdn.failover.substitutes` has its circuits.

    Raises TopologyError as `rail_optimised` does, and for several leaves per rail without spines.
    """
    rates_bps = (fabric_rate_bps or rail_rate_bps, core_rate_bps)
    upper = _Upper(spines, pods, cores_per_agg, *rates_bps, fabric_delay_s, core_delay_s)
    _check(domains, gpus_per_domain, rail_rate_bps, hb_rate_bps, 0, leaves_per_rail, fabric_rate_bps, upper)
    if leaves_per_rail > 1 and not spines:
        raise TopologyError(
            f"{leaves_per_rail} leaves of a rail need spines that join them: give 1 or more", ("leaves_per_rail",)
        )
    if not 0 <= spare_gpus <= _LARGEST["gpus_per_domain"] - gpus_per_domain:
        raise TopologyError(
            f"spare_gpus is {spare_gpus}, but must lie in 0..{_LARGEST['gpus_per_domain'] - gpus_per_domain}",
            ("spare_gpus",),
        )
    whole = _rails(
        domains,
        gpus_per_domain,
        leaves_per_rail,
        [([g], (f"rail{g}s", f"rail{g}a", f"rail{g}c")) for g in range(1, gpus_per_domain + 1)],
        (_Cable(rail_rate_bps, rail_delay_s), _Cable(hb_rate_bps, hb_delay_s)),
        upper,
        mtu_bytes,
        f"rail-only-{domains}x{gpus_per_domain}" if name is None else name,
    )
    return _with_spares(whole, domains, gpus_per_domain, spare_gpus) if spare_gpus else whole


def _with_spares(topology: Topology, domains: int, gpus: int, spares: int) -> Topology:
    """The topology with idle GPUs in every domain, whose optical switch leads any of its GPUs to any rail."""
    hosts, links = list(topology.hosts), []
    for link in topology.links:
        host, number = link.a.node, link.a.port
        if not topology.has_host(host) or number != 1:
            links.append(link)
            continue
        domain, gpu = host[1:].split("g")
        optical, width = f"ocs{domain}", gpus + spares
        links.append(replace(link, b=PortRef(optical, int(gpu))))
        links.append(replace(link, a=PortRef(optical, width + int(gpu))))
    for d in range(1, domains + 1):
        rail, hb = (topology.link_at(PortRef(f"d{d}g1", number)) for number in (1, 2))
        for g in range(gpus + 1, gpus + spares + 1):
            nics = _nic(RAIL_NIC, _rail_address(d, g)), _nic(HB_NIC, _hb_address(d, g, gpus))
            hosts.append(Host(f"d{d}g{g}", nics))
            links.append(replace(rail, a=PortRef(f"d{d}g{g}", 1), b=PortRef(f"ocs{d}", g)))
            links.append(replace(hb, a=PortRef(f"d{d}g{g}", 2), b=PortRef(f"hb{d}", g)))
    first = len(topology.switches) + 1
    optical_switches = [
        Switch(f"ocs{d}", "ocs", first + d - 1, derived_hash_seed(first + d - 1)) for d in range(1, domains + 1)
    ]
    return replace(
        topology,
        name=f"{topology.name}-spare-{spares}",
        hosts=tuple(hosts),
        switches=(*topology.switches, *optical_switches),
        links=tuple(links),
    )


@dataclass(frozen=True, slots=True)
class _Upper:
    """What is above the leaves."""

    spines: int
    """Of the fabric, or with several pods the aggs of each."""
    pods: int
    cores_per_agg: int
    rate_bps: int
    """Of links from leaves."""
    core_rate_bps: int | None
    delay_s: float | None
    core_delay_s: float | None


@dataclass(frozen=True, slots=True)
class _Cable:
    """What the links of one kind of NIC are."""

    rate_bps: int
    delay_s: float | None

    def link(self, a: PortRef, b: PortRef) -> Link:
        return Link(a, b, self.rate_bps, self.delay_s)


def _check(
    domains: int,
    gpus_per_domain: int,
    rail_rate_bps: int,
    hb_rate_bps: int,
    fewest_spines: int,
    leaves_per_rail: int,
    fabric_rate_bps: int | None,
    upper: _Upper,
) -> None:
    spines = upper.spines
    counts = {
        "domains": domains,
        "gpus_per_domain": gpus_per_domain,
        "leaves_per_rail": leaves_per_rail,
        "pods": upper.pods,
        "cores_per_agg": upper.cores_per_agg,
    }
    found = [
        TopologyError(f"{what} is {count}, but must lie in 1..{_LARGEST[what]}", (what,))
        for what, count in counts.items()
        if not 1 <= count <= _LARGEST[what]
    ]
    if not found and domains % leaves_per_rail:
        found.append(
            TopologyError(
                f"{domains} domains cannot be parted evenly among {leaves_per_rail} leaves of a rail",
                ("leaves_per_rail",),
            )
        )
    if not found and leaves_per_rail % upper.pods:
        found.append(
            TopologyError(
                f"{leaves_per_rail} leaves of a rail cannot be parted evenly among {upper.pods} pods", ("pods",)
            )
        )
    if not fewest_spines <= spines <= _LARGEST["spines"]:
        found.append(
            TopologyError(f"spines is {spines}, but must lie in {fewest_spines}..{_LARGEST['spines']}", ("spines",))
        )
    rates = {
        "rail_rate": rail_rate_bps,
        "hb_rate": hb_rate_bps,
        "fabric_rate": fabric_rate_bps,
        "core_rate": upper.core_rate_bps,
    }
    found += [
        TopologyError(f"{what}_bps is {rate}, but a rate must be at least 1 bit/s", (what,))
        for what, rate in rates.items()
        if rate is not None and rate <= 0
    ]
    raise_all(found)
    cores = spines * upper.pods * upper.cores_per_agg if upper.pods > 1 else 0
    check_links(gpus_per_domain * (2 * domains + leaves_per_rail * spines + cores))


def _rails(
    domains: int,
    gpus: int,
    leaves: int,
    planes: Sequence[tuple[Sequence[int], tuple[str, str, str]]],
    cables: tuple[_Cable, _Cable],
    upper: _Upper,
    mtu_bytes: int,
    name: str,
) -> Topology:
    """The topology. `planes`: rails that are joined, and what their spines, or aggs and cores, are called.

    `cables`: of rails and of HB domains.
    """
    rail, hb = cables
    share = domains // leaves  # domains on each leaf of a rail
    names = {
        (g, leaf): f"rail{g}" if leaves == 1 else f"rail{g}l{leaf}"
        for g in range(1, gpus + 1)
        for leaf in range(1, leaves + 1)
    }
    hosts: list[Host] = []
    links: list[Link] = []
    for d in range(1, domains + 1):
        for g in range(1, gpus + 1):
            host = Host(f"d{d}g{g}", (_nic(RAIL_NIC, _rail_address(d, g)), _nic(HB_NIC, _hb_address(d, g, gpus))))
            leaf, place = divmod(d - 1, share)
            hosts.append(host)
            links.append(rail.link(PortRef(host.name, 1), PortRef(names[g, leaf + 1], place + 1)))
            links.append(hb.link(PortRef(host.name, 2), PortRef(f"hb{d}", g)))
    roles: list[tuple[str, Role]] = [(leaf_name, "leaf") for leaf_name in names.values()]
    for rails, (spine_name, agg_name, core_name) in planes:
        below = len(rails) * leaves // upper.pods  # leaves of a pod
        for pod in range(upper.pods):
            own = range(pod * leaves // upper.pods + 1, (pod + 1) * leaves // upper.pods + 1)
            for s in range(1, upper.spines + 1):
                spine = f"{spine_name}{s}" if upper.pods == 1 else f"{agg_name}{pod * upper.spines + s}"
                roles.append((spine, "spine" if upper.pods == 1 else "agg"))
                links += [
                    Link(PortRef(leaf_name, share + s), PortRef(spine, port), upper.rate_bps, upper.delay_s)
                    for port, leaf_name in enumerate((names[g, leaf] for g in rails for leaf in own), start=1)
                ]
                links += [
                    Link(
                        PortRef(spine, below + c),
                        PortRef(f"{core_name}{(s - 1) * upper.cores_per_agg + c}", pod + 1),
                        upper.core_rate_bps or upper.rate_bps,
                        upper.core_delay_s,
                    )
                    for c in (range(1, upper.cores_per_agg + 1) if upper.pods > 1 else ())
                ]
        if upper.pods > 1:
            roles += [(f"{core_name}{c}", "core") for c in range(1, upper.spines * upper.cores_per_agg + 1)]
    roles += [(f"hb{d}", "leaf") for d in range(1, domains + 1)]
    return Topology(
        name=name,
        hosts=tuple(hosts),
        switches=tuple(
            Switch(switch, role, dpid, derived_hash_seed(dpid)) for dpid, (switch, role) in enumerate(roles, start=1)
        ),
        links=tuple(links),
        mtu_bytes=mtu_bytes,
    )


def _nic(name: str, address: IPv4Address) -> Nic:
    return Nic(name, address, derived_mac(address))


def _rail_address(domain: int, gpu: int) -> IPv4Address:
    block, host = divmod(domain - 1, 254)  # .0 and .255 of each /24 stay free
    return IPv4Address(_RAILS + ((gpu - 1) << 16) + (block << 8) + host + 1)


def _hb_address(domain: int, gpu: int, gpus: int) -> IPv4Address:
    if gpus <= _MOST_SMALL:
        return IPv4Address(_DOMAINS + ((domain - 1) << 8) + gpu)
    return IPv4Address(_LARGE_DOMAINS + ((domain - 1) << 9) + gpu)
