# SPDX-License-Identifier: Apache-2.0
"""Topology files of ns-3 simulations of RDMA (`topology.txt`): reads those whose switches have hosts or join others.

The format is that of `simulation/mix/topology.txt` of github.com/alibaba-edu/High-Precision-Congestion-Control: numbers
of nodes, switches and links; then the numbers of the nodes that are switches; then `SRC DST RATE DELAY ERROR` for each
link. Hosts here are h0.., switches leaf320.., agg.. or spine.., and core.., with the nodes' numbers.
"""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass

from netmodel.fabric_addresses import HOSTS_PER_LEAF_MAX, host_address
from netmodel.rates import parse_rate
from netmodel.times import parse_seconds
from netmodel.topology import (
    LINKS_MAX,
    Host,
    Link,
    Nic,
    PortRef,
    Role,
    Switch,
    Topology,
    TopologyError,
    derived_hash_seed,
    derived_mac,
)

_MOST_DIGITS = 9
_ROLES: dict[int, tuple[Role, Role, Role]] = {
    1: ("leaf", "leaf", "leaf"),
    2: ("leaf", "spine", "spine"),
    3: ("leaf", "agg", "core"),
}
"""By number of tiers: the roles of switches one hop from a host, two, and three."""


@dataclass(frozen=True, slots=True)
class _Cable:
    line: int
    ends: tuple[int, int]
    rate_bps: int
    delay_s: float


def read_ns3(text: str, file: str = "<text>") -> Topology:
    """The topology of a file: a host has a NIC for each of its links, and ports are in the order of links.

    Raises ValueError, one sentence with file and line, for a bad file, for links between hosts or with an error rate,
    and for switches that are more than three hops from all hosts.
    """
    lines = [
        (number, words)
        for number, line in enumerate(text.splitlines(), start=1)
        if (words := line.split()) and not words[0].startswith("#")
    ]
    if len(lines) < 2:
        raise ValueError(f"{file}:1: has no numbers of nodes, switches and links, and no switches after them")
    (first, counts), (second, listed) = lines[:2]
    if len(counts) != 3:
        raise ValueError(f"{file}:{first}: must have three numbers, of nodes, switches and links")
    nodes, switches, links = (_number(word, f"{file}:{first}") for word in counts)
    if not 0 < switches < nodes <= LINKS_MAX or links > LINKS_MAX:
        raise ValueError(
            f"{file}:{first}: must have switches, more nodes than these, and at most {LINKS_MAX:,} of each"
        )
    numbers = [_number(word, f"{file}:{second}", nodes) for word in listed]
    if len(numbers) != switches or len(set(numbers)) != switches:
        raise ValueError(f"{file}:{second}: must have the different numbers of {switches} switches")
    if len(lines) - 2 != links:
        raise ValueError(f"{file}:{first}: says {links} links, and {len(lines) - 2} lines follow the switches")
    cables = [_cable(words, nodes, f"{file}:{number}", number) for number, words in lines[2:]]
    return _topology(nodes, set(numbers), cables, file)


def _topology(nodes: int, switches: set[int], cables: list[_Cable], file: str) -> Topology:
    hops = _hops(switches, cables, file)
    tiers = max(hops.values())
    names = {
        node: f"{_ROLES[tiers][hops[node] - 1]}{node}" if node in switches else f"h{node}" for node in range(nodes)
    }
    place = {node: number for number, node in enumerate(sorted(node for node in switches if hops[node] == 1))}
    ports, on_leaf = Counter[int](), Counter[int]()
    nics: defaultdict[int, list[Nic]] = defaultdict(list)
    links = []
    for cable in cables:
        ends = []
        for node in cable.ends:
            ports[node] += 1
            ends.append(PortRef(names[node], ports[node]))
        for node, far in (cable.ends, cable.ends[::-1]):
            if node not in switches:
                on_leaf[far] += 1
                if on_leaf[far] > HOSTS_PER_LEAF_MAX:
                    raise ValueError(f"{file}:{cable.line}: switch {far} has more than {HOSTS_PER_LEAF_MAX} hosts")
                address = host_address(place[far], on_leaf[far])
                nics[node].append(Nic(f"nic{len(nics[node])}", address, derived_mac(address)))
        links.append(Link(ends[0], ends[1], cable.rate_bps, cable.delay_s))
    if alone := next((node for node in range(nodes) if node not in switches and not nics[node]), None):
        raise ValueError(f"{file}:1: host {alone} has no link")
    try:
        return Topology(
            name=f"ns3-{nodes - len(switches)}-hosts",
            hosts=tuple(Host(names[node], tuple(nics[node])) for node in range(nodes) if node not in switches),
            switches=tuple(
                Switch(names[node], _ROLES[tiers][hops[node] - 1], dpid, derived_hash_seed(dpid))
                for dpid, node in enumerate(sorted(switches, key=lambda node: (hops[node], node)), start=1)
            ),
            links=tuple(links),
            mtu_bytes=9000,
        )
    except TopologyError as error:
        line = cables[error.where[1]].line if error.where[:1] == ("links",) and isinstance(error.where[1], int) else 1
        raise ValueError(f"{file}:{line}: {error}") from None


def _hops(switches: set[int], cables: list[_Cable], file: str) -> dict[int, int]:
    """By switch: its hops from the nearest host."""
    beside: defaultdict[int, list[int]] = defaultdict(list)
    hops: dict[int, int] = {}
    for cable in cables:
        for node, far in (cable.ends, cable.ends[::-1]):
            if node in switches:
                beside[far].append(node)
            elif far not in switches:
                raise ValueError(f"{file}:{cable.line}: joins two hosts; one end must be a switch")
            else:
                hops[far] = 1
    pending = deque(hops)
    while pending:
        near = pending.popleft()
        for far in beside[near]:
            if far not in hops:
                hops[far] = hops[near] + 1
                pending.append(far)
    if far_off := sorted(node for node in switches if hops.get(node, 4) > 3):
        raise ValueError(f"{file}:2: switch {far_off[0]} is not within three hops of a host")
    return hops


def _cable(words: list[str], nodes: int, where: str, line: int) -> _Cable:
    if len(words) != 5:
        raise ValueError(f"{where}: a link has five words: source, destination, rate, delay and error rate")
    ends = (_number(words[0], where, nodes), _number(words[1], where, nodes))
    try:
        rate_bps, delay_s = parse_rate(words[2]), parse_seconds(words[3])
        lossless = float(words[4]) == 0
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not lossless:
        raise ValueError(f"{where}: the error rate must be 0; let links lose packets by the key links of a spec")
    assert isinstance(delay_s, float)  # it is read from text
    return _Cable(line, ends, rate_bps, delay_s)


def _number(text: str, where: str, below: int | None = None) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError(f"{where}: {text[:40]!r} is not a whole number of at most {_MOST_DIGITS} digits")
    if below is not None and int(text) >= below:
        raise ValueError(f"{where}: {text} is not a node of 0 to {below - 1}")
    return int(text)
