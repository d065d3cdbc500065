# SPDX-License-Identifier: Apache-2.0
"""ECMP: the paths of commodities without a plan, at random or by the hash of the switches."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS, ROCE_PORT, EcmpHash, FlowFields
from netmodel.flow import IPPROTO_UDP
from sdn.planners.bounds import congestion_bound
from sdn.planners.cabling import Cabling
from sdn.planners.grouping import Index, groups, occurrences
from sdn.planners.model import LOCAL, UNREACHABLE, Clos, Commodities, Floats, Ints, Plan, tors_of

_U64 = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def ecmp(fabric: Clos, commodities: Commodities, *, seed: int = 0) -> Plan:
    """Puts every commodity on a random equal-cost path, as a good hash of random source ports does.

    Each ToR chooses among its live links to spines that reach the destination's ToR, and the spine among its live links
    to that ToR. A commodity's path depends on `seed`, its two NICs and its place among the commodities of these NICs.
    So it keeps its path when others come or go, as a flow does under a switch's hash.
    """
    src, dst = tors_of(fabric, commodities)
    chance = _chances(commodities, seed)
    spine, up, down = _unrouted(len(commodities))
    for _, links, members in _ways_up(fabric, src, dst):
        if not links.size:
            spine[members] = UNREACHABLE
            continue
        chosen = links[(chance[0, members] * links.size).astype(np.intp)]
        spine[members], up[members] = chosen // fabric.parallel, chosen % fabric.parallel
    across = np.flatnonzero(spine >= 0)
    live = fabric.link_rate_bps[dst[across], spine[across]] > 0  # per commodity: the parallel links from the spine
    nth = (chance[1, across] * live.sum(axis=1)).astype(np.intp)
    down[across] = (np.cumsum(live, axis=1) <= nth[:, None]).sum(axis=1)
    bound = congestion_bound(fabric, commodities)
    return Plan(fabric, commodities, "ecmp", spine, up, down, bound.congestion, bound.why)


def ecmp_hashed(
    cabling: Cabling,
    commodities: Commodities,
    ecmp_hash: EcmpHash,
    *,
    src_port: npt.ArrayLike | None = None,
    seed: int = 0,
    dst_port: int = ROCE_PORT,
) -> Plan:
    """Puts every commodity on the path that the switches' hash chooses: `netmodel.path_of` for all at once.

    `src_port` has the UDP source ports, by default random ones of RoCEv2's range, drawn with `seed` as `ecmp` draws
    paths. `ecmp_hash` is the hash of the switches, each of which has its own seed.
    """
    fabric = cabling.fabric
    src, dst = tors_of(fabric, commodities)
    if src_port is None:
        src_port = ENTROPY_PORTS.start + (_chances(commodities, seed)[0] * len(ENTROPY_PORTS)).astype(np.int64)
    fields = FlowFields(
        src=cabling.addresses[commodities.src],
        dst=cabling.addresses[commodities.dst],
        sport=np.broadcast_to(np.asarray(src_port, dtype=np.uint16), (len(commodities),)),
        dport=np.array([dst_port], dtype=np.uint16),
        proto=np.array([IPPROTO_UDP], dtype=np.uint8),
    )

    def selected(members: Index, seed: int, ways: int) -> Index:
        return ecmp_hash.select(fields.take(members), seed, ways) if ways > 1 else np.zeros(members.size, dtype=np.intp)

    spine, up, down = _unrouted(len(commodities))
    for tor, links, members in _ways_up(fabric, src, dst):
        if not links.size:
            spine[members] = UNREACHABLE
            continue
        # A switch numbers the members of a group in order of its ports.
        by_port = links[np.argsort(cabling.tor_port[tor].ravel()[links])]
        chosen = by_port[selected(members, cabling.tor_seed[tor], links.size)]
        spine[members], up[members] = chosen // fabric.parallel, chosen % fabric.parallel
    across = np.flatnonzero(spine >= 0)
    for here in groups(spine[across].astype(np.int64) * fabric.tors + dst[across]):
        members = across[here]
        at, goal = spine[members[0]], dst[members[0]]
        links = np.flatnonzero(fabric.link_rate_bps[goal, at] > 0)
        by_port = links[np.argsort(cabling.spine_port[goal, at, links])]
        down[members] = by_port[selected(members, cabling.spine_seed[at], links.size)]
    bound = congestion_bound(fabric, commodities)
    return Plan(fabric, commodities, "ecmp", spine, up, down, bound.congestion, bound.why)


def _chances(commodities: Commodities, seed: int) -> Floats:
    """[2, commodity]: pseudo-random numbers in [0, 1) by `seed`, the two NICs, and the place among equal pairs of NICs.

    The mixer is that of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    place = occurrences(commodities.src.astype(np.int64) << 32 | commodities.dst)
    state = np.full((2, len(commodities)), seed & _U64, dtype=np.uint64)
    state[1] ^= _GOLDEN
    for key in (commodities.src, commodities.dst, place):
        state = (state ^ key.astype(np.uint64)) + _GOLDEN
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return np.asarray((state >> np.uint64(11)) * 2.0**-53)


def _unrouted(commodities: int) -> tuple[Ints, Ints, Ints]:
    """Spine, up and down of commodities that stay within their ToRs."""
    return tuple(np.full(commodities, none, dtype=np.int32) for none in (LOCAL, -1, -1))  # type: ignore[return-value]


def _ways_up(fabric: Clos, src: Ints, dst: Ints) -> Iterator[tuple[int, Index, Index]]:
    """(ToR, links, commodities): the links of a ToR, as spine * parallel + link, that these commodities may take up.

    They depend on the destination's ToR when some link is dead: a ToR avoids spines that do not reach it.
    """
    across = np.flatnonzero(src != dst)
    live = fabric.link_rate_bps > 0
    everywhere = fabric.uniform_links is not None
    keys = src[across].astype(np.int64) * fabric.tors + (0 if everywhere else dst[across])
    for here in groups(keys):
        members = across[here]
        tor, goal = int(src[members[0]]), int(dst[members[0]])
        yield tor, np.flatnonzero(live[tor] & live[goal].any(axis=1)[:, None]), members
