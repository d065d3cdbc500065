# SPDX-License-Identifier: Apache-2.0
"""Sections 5.2 and 5.3: the size S of flowlets, and m lanes of a host in place of m for each of its peers.

Both by packet simulation with the fabric of 128 hosts. The paper gives no number for either, so what it says in words
counts as a ratio.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from testbed.research.papers.claim import Claim
from testbed.research.papers.paralet.evaluation import DEGRADED, Case, Point, Scheme, measured

_RING = Case(8, 16, "ring")
SIZES = (None, 4096, 32 << 10, 64 << 10, 256 << 10)
"""Bytes of flowlets: 4 BDP / m, one packet, more than 4 BDP / m, and a message's part of each of 32 lanes."""
CONDITIONS = (_RING, replace(_RING, degraded=DEGRADED), replace(_RING, loss=0.001), replace(_RING, loss=0.01))
SHARED = ((Case(8, 16, "tree"), 8), (Case(8, 16, "tree"), 32), (Case(8, 16, "alltoall"), 8))
"""With numbers of lanes; 32 lanes for each peer of an all-to-all take a minute."""
SEEDS = (1,)

_FEW = "Suggested from experience, which counts as a ratio of 1. Here three packets, 32 lanes, one draw."
_WORDS = '"Can naturally adapt for any number of concurrent active connections" counts as a ratio of 1.'


def of_size(flowlet_bytes: int | None) -> Scheme:
    """32 lanes with flowlets of this size."""
    name = "S = 4 BDP / m" if flowlet_bytes is None else f"S = {flowlet_bytes >> 10} KiB"
    return Scheme(name, "ecmp", 32, fabric="packet", flowlet_bytes=flowlet_bytes)


def of_lanes(m: int, per: str) -> Scheme:
    """So many lanes for each `peer` of a host, or for the whole `host`."""
    return Scheme(f"m = {m} per {per}", "ecmp", m, fabric="packet", lanes_per=per)


def points() -> list[Point]:
    """All points of both sections."""
    sizes = [(case, of_size(size)) for case in CONDITIONS for size in SIZES]
    return measured([*sizes, *((case, of_lanes(m, per)) for case, m in SHARED for per in ("peer", "host"))], SEEDS)


def claims(found: Sequence[Point]) -> Iterator[Claim]:
    """The claims that these points allow."""
    at = {(point.case, point.scheme): point for point in found}
    for case in dict.fromkeys(point.case for point in found if point.case in CONDITIONS):
        yield from _of_sizes(case, {size: at[case, of_size(size)].fct_mean_s for size in SIZES})
    for case, m in SHARED:
        if (case, of_lanes(m, "host")) in at:
            host, peer = (at[case, of_lanes(m, per)] for per in ("host", "peer"))
            for what, ratio in (
                ("slowest flow", host.fct_max_s / peer.fct_max_s),
                ("mean FCT", host.fct_mean_s / peer.fct_mean_s),
            ):
                series = f"{what}, m lanes per host over m per peer"
                text = f"{case}: {what}, {m} lanes per host over {m} per peer"
                yield Claim("5.3", text, "x", ratio, 1.0, 2, note=_WORDS, series=series)


def _of_sizes(case: Case, mean_s: dict[int | None, float]) -> Iterator[Claim]:
    for size in SIZES[1:-1]:
        ratio = mean_s[size] / mean_s[None]
        yield Claim("5.2", f"{case}: mean FCT, {of_size(size).name} over 4 BDP / m", "x", ratio, decimals=2)
    yield Claim(
        "5.2",
        f"{case}: mean FCT, S = 4 BDP / m over the best S",
        "x",
        mean_s[None] / min(mean_s.values()),
        1.0,
        2,
        note=_FEW,
        series="mean FCT, S = 4 BDP / m over the best S",
    )
    yield Claim(
        "5.2",
        f"{case}: mean FCT, {of_size(SIZES[-1]).name} over 4 BDP / m",
        "x",
        mean_s[SIZES[-1]] / mean_s[None],
        1.0,
        2,
        "more than",
        note='"A larger S may loss flexibility".',
        series="mean FCT, largest S over 4 BDP / m",
    )
