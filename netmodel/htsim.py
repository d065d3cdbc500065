# SPDX-License-Identifier: Apache-2.0
"""Topology files of htsim (.topo): reads and writes those of two tiers.

The format is that of `sim/datacenter/fat_tree_topology.cpp` of github.com/Broadcom/csg-htsim: a line has a key and a
value. `Nodes`, `Tiers` and `Podsize` come first; then, for each `Tier`, the rate and latency of the links below its
switches, and their ports down and up. `Bundle` of tier 1 is the number of parallel links from a leaf to a spine.
"""

from collections import Counter

from netmodel.builders import leaf_spine
from netmodel.topology import Topology, TopologyError

_KEYS = {
    "Downlink_speed_Gbps",
    "Radix_Down",
    "Radix_Up",
    "Queue_Down",
    "Queue_Up",
    "Oversubscribed",
    "Bundle",
    "Switch_Latency_ns",
    "Downlink_Latency_ns",
}


def read_topo(text: str, file: str = "<text>") -> Topology:
    """The leaf-spine of a .topo file. Latencies and queues are not part of a Topology and are dropped.

    Raises ValueError, one sentence with file and line, for a bad file and for other than two tiers.
    """
    head: dict[str, int] = {}
    tiers: list[dict[str, int]] = []
    lines: dict[tuple[str, int], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        key, where = words[0], f"{file}:{number}"
        if len(words) != 2 or not words[1].isdigit():
            raise ValueError(f"{where}: {key} needs one whole number")
        value = int(words[1])
        if key in ("Nodes", "Tiers", "Podsize"):
            head[key] = value
            if key == "Tiers" and value != 2:
                raise ValueError(f"{where}: Tiers is {value}; only topologies of 2 tiers are read")
        elif key == "Tier":
            if value != len(tiers):
                raise ValueError(f"{where}: Tier {value} comes after {len(tiers)} others; they count from 0 in order")
            tiers.append({})
        elif key not in _KEYS:
            raise ValueError(f"{where}: {key} is not a key of a topology; known are {', '.join(sorted(_KEYS))}")
        elif not tiers:
            raise ValueError(f"{where}: {key} belongs to a tier; write Tier 0 before it")
        else:
            tiers[-1][key] = value
        lines[key, len(tiers)] = number
    return _built(head, tiers, lines, file)


def _built(head: dict[str, int], tiers: list[dict[str, int]], lines: dict[tuple[str, int], int], file: str) -> Topology:
    """`lines` has the line of each key, by the number of tiers that have begun."""
    if len(tiers) != 2 or "Nodes" not in head:
        raise ValueError(f"{file}:{lines.get(('Tier', 1), 1)}: a topology needs Nodes, Tier 0 and Tier 1")
    at_nodes = f"{file}:{next(line for (key, _), line in lines.items() if key == 'Nodes')}"
    low, high = tiers
    for name, tier, keys in (
        (0, low, ("Downlink_speed_Gbps", "Radix_Down", "Radix_Up")),
        (1, high, ("Downlink_speed_Gbps", "Radix_Down")),
    ):
        missing = [key for key in keys if not tier.get(key)]
        if missing:
            line = lines.get((missing[0], name + 1), lines["Tier", name + 1])
            raise ValueError(f"{file}:{line}: tier {name} needs {' and '.join(missing)} above 0")
    hosts, bundle = low["Radix_Down"], high.get("Bundle", 1)
    leaves, rest = divmod(head["Nodes"], hosts)
    if rest or not leaves or bundle < 1 or low["Radix_Up"] % bundle:
        raise ValueError(
            f"{at_nodes}: {head['Nodes']} nodes on leaves of {hosts}, and {low['Radix_Up']} uplinks in bundles of "
            f"{bundle}, do not divide evenly"
        )
    if high["Radix_Down"] != leaves * bundle:
        raise ValueError(
            f"{file}:{lines['Radix_Down', 2]}: spines have {high['Radix_Down']} ports down, and {leaves} leaves need "
            f"{leaves * bundle}"
        )
    try:
        return leaf_spine(
            leaves,
            low["Radix_Up"] // bundle,
            hosts,
            low["Downlink_speed_Gbps"] * 10**9,
            high["Downlink_speed_Gbps"] * 10**9,
            bundle,
        )
    except TopologyError as error:
        raise ValueError(f"{at_nodes}: {error}") from None


def write_topo(topology: Topology, latency_ns: int = 1000) -> str:
    """A leaf-spine as a .topo file, with that latency on every link.

    Raises ValueError for any other topology, and for what htsim refuses: links of several rates, and leaves whose hosts
    are not as many as their uplinks or a multiple of them (`set_custom_params`).
    """
    leaves = [switch.name for switch in topology.switches if switch.role == "leaf"]
    spines = [switch.name for switch in topology.switches if switch.role == "spine"]
    hosts = {host.name for host in topology.hosts}
    down: Counter[str] = Counter()
    up: Counter[tuple[str, str]] = Counter()
    rates: dict[bool, set[int]] = {True: set(), False: set()}
    for link in topology.links:
        ends = sorted((link.a.node, link.b.node), key=lambda node: (node not in hosts, node in spines))
        rates[ends[0] in hosts].add(link.rate_bps)
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
    gbps, rest = divmod(rates[True].pop(), 10**9)
    if rest:
        raise ValueError(f"{topology.name} has rates that are not whole numbers of Gbit/s, which .topo needs")
    per_leaf, bundle = counts.pop(), bundles.pop()
    nodes, radix_up = per_leaf * len(leaves), bundle * len(spines)
    if per_leaf % radix_up or rates[False] != {gbps * 10**9}:
        raise ValueError(
            f"{topology.name} has {per_leaf} hosts and {radix_up} uplinks on a leaf; htsim takes as many hosts as "
            "uplinks or a multiple of them, and links of one rate"
        )
    shared = f"Downlink_speed_Gbps {gbps}\nDownlink_Latency_ns {latency_ns}\nSwitch_Latency_ns 0\n"
    return (
        f"Nodes {nodes}\nTiers 2\nPodsize {nodes}\n\n"
        f"Tier 0\n{shared}Radix_Down {per_leaf}\nRadix_Up {radix_up}\nOversubscribed {per_leaf // radix_up}\n\n"
        f"Tier 1\n{shared}Radix_Down {bundle * len(leaves)}\nBundle {bundle}\n"
    )
