# SPDX-License-Identifier: Apache-2.0
"""Paths as rows of link numbers: hashed paths of many flows at once, and the links that the flows of channels use."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmodel import EcmpHash, FlowFields, Forwarding, NoRouteError, PortRef, forwarding
from netmodel.flow import Address, Addresses, address_at
from sim.links import Floats, Ints, Links

_HOST = -1

_Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Paths:
    """The flows of several channels, as ragged arrays.

    Channel c has flows `flows[c]` to `flows[c + 1]` - 1. Flow f uses the links `links[uses[f]:uses[f + 1]]`; a link of
    -1 is skipped. The part `shares` of the flow's rate crosses each link. Flows share links in proportion to `weight`.
    """

    flows: _Index
    uses: _Index
    links: Ints
    shares: Floats
    weight: Floats

    @classmethod
    def of(cls, rows: npt.ArrayLike) -> "Paths":
        """One flow per lane: `rows[c, lane]` are the links that a lane of channel c crosses, -1 for none."""
        links = np.asarray(rows, dtype=np.int32)
        if links.ndim != 3:
            raise ValueError(f"paths have dimensions for channels, lanes and links, not {links.ndim}")
        channels, lanes, hops = links.shape
        return cls(
            flows=np.arange(channels + 1, dtype=np.int64) * lanes,
            uses=np.arange(channels * lanes + 1, dtype=np.int64) * hops,
            links=links.ravel(),
            shares=np.ones(links.size),
            weight=np.ones(channels * lanes),
        )

    @classmethod
    def sprayed(cls, rows: npt.ArrayLike) -> "Paths":
        """One flow per channel: an equal part of its rate goes over each path `rows[c, path]`.

        The most loaded path therefore limits the whole channel. A path may be named more than once. `spread_paths` uses
        all equal-cost paths.
        """
        paths = np.asarray(rows, dtype=np.int32)
        if paths.ndim != 3:
            raise ValueError(f"paths have dimensions for channels, paths and links, not {paths.ndim}")
        links, shares, ends = [], [], [0]
        for channel in paths:
            crossed, count = np.unique(channel[channel >= 0], return_counts=True)
            links.append(crossed)
            shares.append(count / paths.shape[1])
            ends.append(ends[-1] + crossed.size)
        return cls(
            flows=np.arange(len(paths) + 1, dtype=np.int64),
            uses=np.array(ends, dtype=np.int64),
            links=np.concatenate(links) if links else np.empty(0, dtype=np.int32),
            shares=np.concatenate(shares) if shares else np.empty(0),
            weight=np.ones(len(paths)),
        )


def hashed_paths(links: Links, flows: FlowFields, ecmp_hash: EcmpHash, routes: Forwarding | None = None) -> Ints:
    """The links that each flow crosses: a row per flow, -1 after its end.

    `routes` forward by destination; the default is those of the whole topology. Raises KeyError for an address that no
    host owns, NoRouteError when there is no path.
    """
    topology = links.topology
    routes = forwarding(topology) if routes is None else routes
    names = [switch.name for switch in topology.switches]
    number = {name: n for n, name in enumerate(names)}
    heads = np.array([number.get(topology.peer(port).node, _HOST) for port in links.ports], dtype=np.int64)
    owner, source = (np.broadcast_to(ends, (len(flows), *ends.shape[1:])) for ends in (flows.dst, flows.src))
    first = _nic_links(links, source, routes)
    nic = _nic_links(links, owner, routes)
    last = Links.back(nic)  # towards the host
    home = heads[nic]
    kind = _addresses(owner)[1] if routes.by_address else home
    columns = [first]
    while True:
        here = columns[-1]
        under_way = np.flatnonzero((here >= 0) & (here != last))
        if not under_way.size:
            return np.stack(columns, axis=1).astype(np.int32)
        if len(columns) > len(names) + 1:
            raise NoRouteError(f"the routes of topology {topology.name!r} loop")
        step = np.full(len(flows), -1, dtype=np.int64)
        at = heads[here[under_way]]
        arrived = at == home[under_way]
        step[under_way[arrived]] = last[under_way[arrived]]
        left = under_way[~arrived]
        for members, switch, group in _groups(left, at[~arrived], kind[left], owner, names, routes):
            ways = np.array([links.number(PortRef(names[switch], port)) for port in group], dtype=np.int64)
            chosen = np.zeros(members.size, dtype=np.int64)
            if ways.size > 1:
                chosen = ecmp_hash.select(flows.take(members), topology.switch(names[switch]).hash_seed, ways.size)
            step[members] = ways[chosen]
        columns.append(step)


def spread_paths(links: Links, src: Addresses, dst: Addresses, routes: Forwarding | None = None) -> Paths:
    """One channel from each `src[c]` to `dst[c]`; switches spread its packets evenly over all equal-cost ports.

    This is ideal per-packet spraying: every switch forwards the same part of a flow to each equal-cost port, whatever
    the load and the rate of these ports. Raises the same errors as `hashed_paths`.
    """
    topology = links.topology
    routes = forwarding(topology) if routes is None else routes
    firsts, lasts = (_nic_links(links, ends, routes).tolist() for ends in (src, dst))
    flows = [
        _spread(links, first, links.back(last), address_at(dst, channel), routes)
        for channel, (first, last) in enumerate(zip(firsts, lasts, strict=True))
    ]
    return Paths(
        flows=np.arange(len(flows) + 1, dtype=np.int64),
        uses=np.cumsum([0, *(len(flow) for flow in flows)], dtype=np.int64),
        links=np.array([link for flow in flows for link in flow], dtype=np.int32),
        shares=np.array([share for flow in flows for share in flow.values()], dtype=np.float64),
        weight=np.ones(len(flows)),
    )


def _spread(links: Links, first: int, last: int, dst: Address, routes: Forwarding) -> dict[int, float]:
    """The part of a flow from the NIC link `first` to the NIC link `last` that crosses each link."""
    topology = links.topology
    home = links.ports[last].node
    shares = {first: 1.0, last: 1.0}
    here = {topology.peer(links.ports[first]).node: 1.0}
    for _ in range(len(topology.switches) + 1):
        here.pop(home, None)  # everything that has arrived there takes the last link
        if not here:
            return shares
        following: dict[str, float] = {}
        for switch, part in here.items():
            ports = routes.groups[switch].get(dst)
            if ports is None:
                raise NoRouteError(f"no path: {switch} has none to {dst}")
            for port in ports:
                way = PortRef(switch, port)
                number = links.number(way)
                shares[number] = shares.get(number, 0.0) + part / len(ports)
                node = topology.peer(way).node
                following[node] = following.get(node, 0.0) + part / len(ports)
        here = following
    raise NoRouteError(f"the routes of topology {topology.name!r} loop")


def _nic_links(links: Links, addresses: Addresses, routes: Forwarding) -> _Index:
    """The egress link of the NIC with each address."""
    distinct, which = _addresses(addresses)
    numbers = []
    for address in (address_at(distinct, k) for k in range(len(distinct))):
        port = links.topology.port_of(address)
        if links.topology.link_at(port) in routes.dead_links:
            raise NoRouteError(f"no path from or to {address}: the link at {port} is dead")
        numbers.append(links.number(port))
    return np.array(numbers, dtype=np.int64)[which]


def _addresses(addresses: Addresses) -> tuple[Addresses, _Index]:
    """The different ones, and which of them each is."""
    distinct, which = np.unique(addresses, axis=0 if addresses.ndim > 1 else None, return_inverse=True)
    return distinct, which.ravel()


def _groups(
    flows: _Index,
    at: _Index,
    kind: _Index,
    owner: Addresses,
    names: list[str],
    routes: Forwarding,
) -> list[tuple[_Index, int, tuple[int, ...]]]:
    """Groups (flows, switch, ports): flows at one switch that may leave it by the same ports.

    Flows of one `kind` have the same routes, so one address stands for all.
    """
    if not flows.size:
        return []
    kinds = int(kind.max()) + 1
    pairs, representative, which = np.unique(at * kinds + kind, return_index=True, return_inverse=True)
    keys: dict[tuple[int, tuple[int, ...]], int] = {}
    key_of_pair = np.empty(len(pairs), dtype=np.int64)
    for n, (pair, flow) in enumerate(zip(pairs.tolist(), flows[representative].tolist(), strict=True)):
        switch = pair // kinds
        try:
            group = routes.groups[names[switch]][address_at(owner, flow)]
        except KeyError as error:
            raise NoRouteError(f"no path: {error.args[0]}") from None
        key_of_pair[n] = keys.setdefault((switch, group), len(keys))
    key = key_of_pair[which.ravel()]
    order = np.argsort(key, kind="stable")
    parts = np.split(flows[order], np.cumsum(np.bincount(key, minlength=len(keys)))[:-1])
    return [(part, switch, group) for part, (switch, group) in zip(parts, keys, strict=True)]
