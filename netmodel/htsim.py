# SPDX-License-Identifier: Apache-2.0
"""Topology files of htsim (.topo): reads and writes those of two and of three tiers.

The format is that of `sim/datacenter/fat_tree_topology.cpp` of github.com/Broadcom/csg-htsim: a line has a key, in any
case, and a value. `Nodes`, `Tiers` and `Podsize` (hosts of a pod) come first; then, for each `Tier`, the rate and
latency of the links below its switches, and their ports down and up. `Bundle` is the number of parallel links from a
switch of the tier to one below.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NoReturn

from netmodel.builders import leaf_spine
from netmodel.fabric_tiers import CORE, LEAF, MIDDLE, pods, tiers
from netmodel.three_tiers import clos
from netmodel.topology import DELAY_S_MAX, Topology, TopologyError

_HEAD = ("Nodes", "Tiers", "Podsize")
_KEYS = (
    "Downlink_speed_Gbps",
    "Radix_Down",
    "Radix_Up",
    "Queue_Down",
    "Queue_Up",
    "Oversubscribed",
    "Bundle",
    "Switch_Latency_ns",
    "Downlink_Latency_ns",
)
_NAMES = {key.lower(): key for key in (*_HEAD, "Tier", *_KEYS)}
_BOTH, _DOWN = ("Downlink_speed_Gbps", "Radix_Down", "Radix_Up"), ("Downlink_speed_Gbps", "Radix_Down")
_MOST_DIGITS = 18
_NS = 10**9
_NEEDED = {2: (_BOTH, _DOWN), 3: (_BOTH, _BOTH, _DOWN)}
"""By number of tiers: the keys that each must have."""


def read_topo(text: str, file: str = "<text>") -> Topology:
    """The fabric of a .topo file: a leaf-spine, or a Clos of three tiers.

    The delay of links below a tier is its `Downlink_Latency_ns`. Queues and the latencies of switches are not part of a
    Topology and are dropped. Raises ValueError, one sentence with file and line, for a bad file.
    """
    read = _Read(file, {}, [], {})
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        key, where = _NAMES.get(words[0].lower(), words[0]), f"{file}:{number}"
        if len(words) != 2 or not words[1].isascii() or not words[1].isdigit() or len(words[1]) > _MOST_DIGITS:
            raise ValueError(f"{where}: {key} needs one whole number of at most {_MOST_DIGITS} digits")
        value = int(words[1])
        if key == "Downlink_Latency_ns" and value > DELAY_S_MAX * _NS:
            raise ValueError(f"{where}: {key} is {value}, and {DELAY_S_MAX:g} s is the longest delay of a link")
        if key in _HEAD:
            read.head[key] = value
            if key == "Tiers" and value not in _NEEDED:
                raise ValueError(f"{where}: Tiers is {value}; topologies of 2 or 3 tiers are read")
        elif key == "Tier":
            if value != len(read.tiers):
                raise ValueError(
                    f"{where}: Tier {value} comes after {len(read.tiers)} others; they count from 0 in order"
                )
            read.tiers.append({})
        elif key not in _KEYS:
            raise ValueError(f"{where}: {key} is not a key of a topology; known are {', '.join(sorted(_KEYS))}")
        elif not read.tiers:
            raise ValueError(f"{where}: {key} belongs to a tier; write Tier 0 before it")
        else:
            read.tiers[-1][key] = value
        read.lines[key, len(read.tiers)] = number
    return read.built()


@dataclass(frozen=True, slots=True)
class _Read:
    """What a file says. `lines` has the line of each key, by the number of tiers that have begun."""

    file: str
    head: dict[str, int]
    tiers: list[dict[str, int]]
    lines: dict[tuple[str, int], int]

    def refuse(self, what: str, key: str = "Nodes", tier: int | None = None) -> NoReturn:
        """Raises ValueError with the line of a key; without `tier` of one in the head."""
        at = 0 if tier is None else tier + 1
        line = self.lines.get((key, at), self.lines.get(("Tier", at), 1))
        raise ValueError(f"{self.file}:{line}: {what}")

    def built(self) -> Topology:
        count = self.head.get("Tiers", 2)
        if len(self.tiers) != count or "Nodes" not in self.head:
            needed = ", ".join(["Nodes", *(f"Tier {n}" for n in range(count - 1))])
            raise ValueError(
                f"{self.file}:{self.lines.get(('Tier', 1), 1)}: a topology needs {needed} and Tier {count - 1}"
            )
        for number, tier in enumerate(self.tiers):
            if missing := [key for key in _NEEDED[count][number] if not tier.get(key)]:
                self.refuse(f"tier {number} needs {' and '.join(missing)} above 0", missing[0], number)
            if tier.get("Bundle", 1) < 1 or (number == 0 and tier.get("Bundle", 1) != 1):
                self.refuse(f"Bundle of tier {number} must be {'1' if number == 0 else '1 or more'}", "Bundle", number)
        try:
            return self._leaf_spine() if count == 2 else self._clos()
        except TopologyError as error:
            self.refuse(str(error))

    def _leaf_spine(self) -> Topology:
        low, high = self.tiers
        hosts, bundle, nodes = low["Radix_Down"], high.get("Bundle", 1), self.head["Nodes"]
        leaves, rest = divmod(nodes, hosts)
        if rest or not leaves or low["Radix_Up"] % bundle:
            self.refuse(
                f"{nodes} nodes on leaves of {hosts}, and {low['Radix_Up']} uplinks in bundles of {bundle}, do not "
                "divide evenly"
            )
        if (have := high["Radix_Down"]) != leaves * bundle:
            need = leaves * bundle
            self.refuse(f"spines have {have} ports down, and {leaves} leaves need {need}", "Radix_Down", 1)
        host_rate, fabric_rate = (tier["Downlink_speed_Gbps"] * 10**9 for tier in self.tiers)
        host_delay_s, fabric_delay_s = self._delays_s()
        return leaf_spine(
            leaves,
            low["Radix_Up"] // bundle,
            hosts,
            host_rate,
            fabric_rate,
            bundle,
            host_delay_s=host_delay_s,
            fabric_delay_s=fabric_delay_s,
        )

    def _clos(self) -> Topology:
        low, middle, high = self.tiers
        nodes, size, hosts = self.head["Nodes"], self.head.get("Podsize", 0), low["Radix_Down"]
        bundle, core_bundle = middle.get("Bundle", 1), high.get("Bundle", 1)
        if not size or nodes % size or size % hosts:
            self.refuse(f"{nodes} nodes in pods of {size}, and these on leaves of {hosts}, do not divide evenly")
        count, leaves = nodes // size, size // hosts
        for number, (tier, into) in enumerate(((low, bundle), (middle, core_bundle))):
            if tier["Radix_Up"] % into:
                self.refuse(f"{tier['Radix_Up']} uplinks in bundles of {into} do not divide evenly", "Radix_Up", number)
        for number, (name, tier, need, what) in enumerate(
            (
                ("aggs", middle, leaves * bundle, f"{leaves} leaves of a pod"),
                ("cores", high, count * core_bundle, f"{count} pods"),
            ),
            start=1,
        ):
            if tier["Radix_Down"] != need:
                have = tier["Radix_Down"]
                self.refuse(f"{name} have {have} ports down, and {what} need {need}", "Radix_Down", number)
        host_rate, agg_rate, core_rate = (tier["Downlink_speed_Gbps"] * 10**9 for tier in self.tiers)
        host_delay_s, agg_delay_s, core_delay_s = self._delays_s()
        return clos(
            count,
            leaves,
            low["Radix_Up"] // bundle,
            middle["Radix_Up"] // core_bundle,
            hosts,
            host_rate,
            agg_rate,
            core_rate,
            bundle,
            core_parallel_links=core_bundle,
            host_delay_s=host_delay_s,
            agg_delay_s=agg_delay_s,
            core_delay_s=core_delay_s,
        )

    def _delays_s(self) -> list[float | None]:
        """The delay of the links below each tier; None where the file has none."""
        return [tier["Downlink_Latency_ns"] / _NS if "Downlink_Latency_ns" in tier else None for tier in self.tiers]


def write_topo(topology: Topology, latency_ns: int = 1000) -> str:
    """A leaf-spine, or a Clos of three tiers as `clos` wires it, as a .topo file.

    Links without a delay get `latency_ns`. Raises ValueError for any other topology, for delays that differ within a
    tier or are not whole nanoseconds, and for what htsim refuses (`set_custom_params`): a leaf-spine with links of
    several rates, and switches of a Clos whose capacity down is not that up or a multiple of it (of leaves: with the
    quotient of their numbers of ports, without its rest).
    """
    if CORE in tiers(topology).values():
        return _three_tiers(topology, latency_ns)
    leaves = [switch.name for switch in topology.switches if switch.role == "leaf"]
    spines = [switch.name for switch in topology.switches if switch.role == "spine"]
    hosts = {host.name for host in topology.hosts}
    down: Counter[str] = Counter()
    up: Counter[tuple[str, str]] = Counter()
    rates: dict[bool, set[int]] = {True: set(), False: set()}
    delays: dict[bool, set[float | None]] = {True: set(), False: set()}
    for link in topology.links:
        ends = sorted((link.a.node, link.b.node), key=lambda node: (node not in hosts, node in spines))
        rates[ends[0] in hosts].add(link.rate_bps)
        delays[ends[0] in hosts].add(link.delay_s)
        if ends[0] in hosts:
            down[ends[1]] += 1
        else:
            up[ends[0], ends[1]] += 1
    counts, bundles = set(down.values()), set(up.values())
    regular = len(counts) == len(bundles) == len(rates[True]) == len(rates[False]) == 1
    if not regular or set(down) != set(leaves) or set(up) != {(leaf, spine) for leaf in leaves for spine in spines}:
        raise ValueError(
            f"{topology.name} is not a leaf-spine of equal leaves, spines and rates, which .topo describes"
        )
    gbps = _gbps(topology, rates[True].pop())
    per_leaf, bundle = counts.pop(), bundles.pop()
    nodes, radix_up = per_leaf * len(leaves), bundle * len(spines)
    if per_leaf % radix_up or rates[False] != {gbps * 10**9}:
        raise ValueError(
            f"{topology.name} has {per_leaf} hosts and {radix_up} uplinks on a leaf; htsim takes as many hosts as "
            "uplinks or a multiple of them, and links of one rate"
        )
    low, high = (
        f"Downlink_speed_Gbps {gbps}\nDownlink_Latency_ns {_ns(topology, delays[of_hosts], latency_ns)}\n"
        "Switch_Latency_ns 0\n"
        for of_hosts in (True, False)
    )
    return (
        f"Nodes {nodes}\nTiers 2\nPodsize {nodes}\n\n"
        f"Tier 0\n{low}Radix_Down {per_leaf}\nRadix_Up {radix_up}\nOversubscribed {per_leaf // radix_up}\n\n"
        f"Tier 1\n{high}Radix_Down {bundle * len(leaves)}\nBundle {bundle}\n"
    )


def _three_tiers(topology: Topology, latency_ns: int) -> str:
    tier, pod = tiers(topology), pods(topology)
    hosts_of: Counter[str] = Counter()
    uppers: defaultdict[str, Counter[str]] = defaultdict(Counter)  # per switch: its links to each of the tier above
    rates: tuple[set[int], ...] = (set(), set(), set())  # below each tier
    delays: tuple[set[float | None], ...] = (set(), set(), set())
    for link in topology.links:
        low, high = sorted((link.a.node, link.b.node), key=lambda node: tier.get(node, 0))
        if tier.get(high, 0) != tier.get(low, 0) + 1:
            raise _not_regular(topology)
        rates[tier[high] - 1].add(link.rate_bps)
        delays[tier[high] - 1].add(link.delay_s)
        if low in tier:
            uppers[low][high] += 1
        else:
            hosts_of[high] += 1
    leaves, aggs = ([name for name in tier if tier[name] == at] for at in (LEAF, MIDDLE))
    members = [[name for name in aggs if pod[name] == number] for number in sorted(set(pod.values()))]
    groups = [{frozenset(uppers[agg]) for agg in here} for here in members]
    sizes = [
        {hosts_of[leaf] for leaf in leaves},
        set(Counter(pod[leaf] for leaf in leaves).values()),
        {len(here) for here in members},
        {len(cores) for here in groups for cores in here},
        {count for leaf in leaves for count in uppers[leaf].values()},
        {count for agg in aggs for count in uppers[agg].values()},
        *rates,
    ]
    complete = all(set(uppers[leaf]) == set(members[pod[leaf]]) for leaf in leaves)
    pods_alike = all(
        len(here) == len(mine) and not here ^ groups[0] for here, mine in zip(groups, members, strict=True)
    )
    cores = sum(at == CORE for at in tier.values())
    if not (complete and pods_alike and all(len(size) == 1 for size in sizes)) or cores != sum(map(len, groups[0])):
        raise _not_regular(topology)
    hosts, per_pod, aggs_per_pod, cores_per_agg, bundle, core_bundle, *bps = (size.pop() for size in sizes)
    gbps = [_gbps(topology, rate) for rate in bps]
    radix_up = (bundle * aggs_per_pod, core_bundle * cores_per_agg)
    radix_down = (hosts, bundle * per_pod, core_bundle * len(members))
    text = f"Nodes {len(topology.hosts)}\nTiers 3\nPodsize {hosts * per_pod}\n"
    for at in range(3):
        text += f"\nTier {at}\nDownlink_speed_Gbps {gbps[at]}\n"
        text += f"Downlink_Latency_ns {_ns(topology, delays[at], latency_ns)}\nSwitch_Latency_ns 0\n"
        text += f"Radix_Down {radix_down[at]}\n"
        if at < 2:
            times = _oversubscribed(topology, at, (radix_down[at], gbps[at]), (radix_up[at], gbps[at + 1]))
            text += f"Radix_Up {radix_up[at]}\nOversubscribed {times}\n"
        if at:
            text += f"Bundle {(bundle, core_bundle)[at - 1]}\n"
    return text


def _oversubscribed(topology: Topology, tier: int, down: tuple[int, int], up: tuple[int, int]) -> int:
    """What htsim calls `Oversubscribed`, from the numbers and rates of ports down and up of each switch of a tier.

    For leaves it takes the quotient of the numbers without its rest, and uses it as that of the capacities.
    """
    capacity_down, capacity_up = math.prod(down), math.prod(up)
    times = capacity_down // capacity_up if tier else down[0] // up[0]
    if not times or times * capacity_up != capacity_down:
        if not tier:
            raise ValueError(
                f"{topology.name} has {down[0]} x {down[1]} Gbit/s down and {up[0]} x {up[1]} up at each leaf; htsim "
                "takes only leaves with n times as much down as up, where n is ports down by ports up without the rest"
            )
        raise ValueError(
            f"{topology.name} has {capacity_down} Gbit/s down and {capacity_up} up at each agg; htsim takes as much up "
            "as down or a whole part of it"
        )
    return times


def _gbps(topology: Topology, rate_bps: int) -> int:
    gbps, rest = divmod(rate_bps, 10**9)
    if rest:
        raise ValueError(f"{topology.name} has rates that are not whole numbers of Gbit/s, which .topo needs")
    return gbps


def _ns(topology: Topology, delays_s: set[float | None], default_ns: int) -> int:
    """The one delay of the links of a tier."""
    if len(delays_s) != 1:
        raise ValueError(f"{topology.name} has links of different delay on a tier, for which .topo has one")
    (delay_s,) = delays_s
    if delay_s is None:
        return default_ns
    if (delay_ns := round(delay_s * _NS)) / _NS != delay_s:
        raise ValueError(f"{topology.name} has delays that are not whole nanoseconds, which .topo needs")
    return delay_ns


def _not_regular(topology: Topology) -> ValueError:
    return ValueError(
        f"{topology.name} is not a Clos of three tiers with equal pods, switches and rates on each tier, which .topo "
        "describes"
    )
