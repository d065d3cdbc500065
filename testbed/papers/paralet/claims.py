# SPDX-License-Identifier: Apache-2.0
"""The paper's statements, and what we get."""

from collections.abc import Iterator, Sequence
from math import ceil, sqrt

from testbed.papers.claim import Claim
from testbed.papers.findings import Drawing, Findings
from testbed.papers.paralet import theory
from testbed.papers.paralet.evaluation import (
    CONWEAVE,
    DEGRADED,
    DRILL,
    DRILL_SR,
    ECMP,
    FIGURE_5,
    LARGE,
    LEFT,
    LETFLOW,
    PACED,
    PACKETS,
    PARALET,
    SINCE,
    SMALL,
    SPRAYING,
    Case,
    Point,
    measured,
)

SEEDS = (1, 2, 3)
LARGE_SEEDS = (1,)
PACKET_SEEDS = (1,)
COMPARED = {
    ECMP: ((1.4, 1.6), (2.6, 3.4)),
    LETFLOW: ((1.4, 1.6), (2.6, 2.8)),
    CONWEAVE: ((1.2, 1.6), (1.5, 1.6)),
    DRILL: ((1.1, 1.1), (1.8, 1.8)),
    DRILL_SR: ((1.1, 1.1), (1.8, 1.8)),
}
"""ParaLet's gains in Maximum Total Throughput and in flow completion time, least and most, as printed."""
TABLE_3 = ((6, ""), (43, ""), (740, ""), (31574, ""), (3488555, ""), (1.013, "1e9"), (7.813, "1e11"), (1.501, "1e15"))
"""n for n' = 1, 2, .., as printed, and the power of ten in which it is printed."""
NODES = 1024

TEXT = """
Formulas by computing them, then section 6 on the [fluid fabric](fluid.md): leaf-spine fabrics of 8 x 16 hosts with 16
spines and of 32 x 32 with 32, 100 Gbit/s, 1 us links, every connection of a ring or of NCCL's two trees sending 8 MiB
at once. The paper states neither these shapes nor the messages nor where ranks are; here they are on random hosts,
since a ring in the order of the hosts hardly crosses leaves. Means of three draws, one for 1,024 hosts.

- Throughput near the optimum with 32 lanes, and little to gain beyond 16, are reproduced. So are gains over ECMP of the
  printed size, with the ring above the printed range and the double binary tree below it: hosts have up to three peers
  each way there, so their own links are the bottleneck and ECMP loses less. Which edges the paper's snapshots have it
  does not say.
- The printed gains in flow completion time look like those of the slowest flow, not of the mean: ours are on both sides
  of the range for the slowest, and all below it for the mean.
- Equation 1 is too low for few lanes, its "speedup by sqrt(m)" counts the slowdown's part above 1 only, and its last
  row of Table 3 and one of two examples of section 5.2 are not what the formulas give.
- DRILL, LetFlow and ConWeave live on queues, gaps between packets and their order. The [packet fabric](packet.md) has
  approximations of them; here with 128 hosts, fixed windows of 2 BDP, no PFC and one draw. LetFlow is no better than
  ECMP, ConWeave lies between ECMP and ParaLet, as the paper says. DRILL's loss is a matter of go-back-N alone. What
  flowlet sizes cost is not looked at.
- Free lanes take what their paths leave; the paper's send at 1/m of the line rate. The rows of section 5.1 say what
  that costs.
- Since the paper: with four links at a quarter of their rate, schemes that give each path a fixed part of a message
  (spraying, entropies in turn, queue pairs with equal parts) wait for the slowest path, about four times as long; so do
  planned paths whose planner was not told. Lanes that pull lose a little, lanes that also move hardly anything. That is
  what "static" and "oblivious" mean here: a sender with a window for each entropy would pull, too. REPS, PLB and
  adaptive lanes are [approximations without queues](fluid.md#policies).
"""

_RANGE = "the paper gives a range over its four scenarios: here the least, respectively the most, of ours"
_PACKETS = "packet by packet, 128 hosts: of the ring and the tree the least, respectively the most"
_BOUNDS = (
    "windows here do not shrink when a receiver refuses what is out of order, as a real NIC's rate would, so go-back-N "
    "is too slow; selective repeat, which the paper's NICs have not, is what DRILL could be. The paper's lies between. "
    "Throughput counts what is sent again"
)
_TAIL = "the paper does not say whether FCT is the mean or the slowest flow's; with the slowest its ratios are nearer"


def find(quick: bool) -> Findings:
    """Everything; the small fabric with one seed and without packets if it is to be quick."""
    return found(_figure_5(quick), [] if quick else _packets(), _since(quick))


def found(figure_5: Sequence[Point], packets: Sequence[Point], since: Sequence[Point]) -> Findings:
    """What points show."""
    return Findings(
        claims=[*_of_theory(), *_of_figure_5(figure_5), *of_packets(packets), *_of_since(since)],
        drawings=_drawings(figure_5, packets, since),
    )


def _packets() -> list[Point]:
    """Figures 4 and 5 packet by packet; of LetFlow what the best gap gives."""
    points = measured([(case, scheme) for case in SMALL for scheme in PACKETS], PACKET_SEEDS)
    return [
        min(same, key=lambda point: point.fct_max_s)
        for case in SMALL
        for name in dict.fromkeys(scheme.name for scheme in PACKETS)
        for same in [[point for point in points if point.case == case and point.scheme.name == name]]
    ]


def _figure_5(quick: bool) -> list[Point]:
    if quick:
        few = [scheme for scheme in FIGURE_5 if scheme.m in (1, 8, 32)]
        return measured([(case, scheme) for case in SMALL for scheme in few], SEEDS[:1])
    large = [scheme for scheme in FIGURE_5 if scheme.m in (1, 4, 32) and not scheme.paced]
    return [
        *measured([(case, scheme) for case in SMALL for scheme in FIGURE_5], SEEDS),
        *measured([(case, scheme) for case in LARGE for scheme in large], LARGE_SEEDS),
    ]


def _since(quick: bool) -> list[Point]:
    cases = [Case(8, 16, collective, slow) for collective in ("ring", "tree") for slow in (0, DEGRADED)]
    if quick:
        few = [scheme for scheme in SINCE if scheme.policy != "recycled"]
        return measured([(case, scheme) for case in cases[:2] for scheme in few], SEEDS[:1])
    return measured([(case, scheme) for case in cases for scheme in SINCE], SEEDS)


def _of_theory() -> Iterator[Claim]:
    meet = 100 * theory.collision_probability(16)
    yield Claim("4.1", "16 flows, 16 ports: probability that two meet", "%", meet, 100, note='the paper: "almost 1"')
    for n_prime, (printed, power) in enumerate(TABLE_3, start=1):
        ours = theory.nodes_of(n_prime)
        note = "printed digits are cut off, not rounded" if n_prime < 8 else _cancelled()
        what, scale = f"n for n' = {n_prime}", float(power or 1)
        yield Claim("Table 3", what, power or "ports", ours / scale, printed, 3 if power else 0, note=note)
    for m in (1, 4, 32):
        yield Claim(
            "Eq. 1",
            f"m = {m}: fullest of {NODES:,} ports, mean of 400 draws",
            "x ideal",
            theory.fullest_port(NODES, m),
            round(theory.slowdown(NODES, m), 3),
            3,
            note="the paper's number is what Equation 1 gives: it takes a quantile for the mean of a maximum, and a "
            "normal for a binomial distribution, which has the longer tail: too low, most of all for small m",
        )
    gain = theory.slowdown(NODES, 1) / theory.slowdown(NODES, 32)
    yield Claim(
        "4.1",
        f"m = 32 against ECMP, by Equation 1, {NODES:,} nodes",
        "x",
        gain,
        round(sqrt(32), 2),
        2,
        note='"expected to speedup by sqrt(m)": what shrinks by sqrt(m) is the slowdown\'s part above 1, not the whole '
        f"of it; by draws it is {theory.fullest_port(NODES, 1) / theory.fullest_port(NODES, 32):.2f}",
    )
    yield Claim(
        "4.1",
        f"m = 32: later than optimal, by Equation 1, {NODES:,} nodes",
        "%",
        100 * (theory.slowdown(NODES, 32) - 1),
        round(100 / sqrt(32), 1),
        1,
        note='"only 1/sqrt(m) slower than optimal" leaves out the factor n\' of its own equation, 3.10 here',
    )
    yield Claim(
        "5.2",
        "m for a slowdown of 2, 1e5 nodes",
        "lanes",
        ceil(theory.lanes_for(1e5, 2)),
        25,
        note=f"the formula gives {theory.lanes_for(1e5, 2):.1f}; 25 is right for n' = 5, so for "
        f"{theory.nodes_of(5):,.0f} nodes (Table 3)",
    )
    yield Claim("5.2", "m for a slowdown of 2, 1e9 nodes", "lanes", ceil(theory.lanes_for(1e9, 2)), 36)
    yield Claim(
        "5.2",
        "S = 4 BDP / m, 100 Gbit/s, four links of 1 us each way, m = 32",
        "kB",
        4 * 100e9 * 8e-6 / 8 / 32 / 1e3,
        note="three packets of 4 KiB; a fluid has no flowlets of a size, so what S costs is not checked here",
    )


def _cancelled() -> str:
    return (
        "1 - CDF(8) in double precision is 6 units of 2^-53, all other digits cancelled, and 1 / (1 - CDF(8)) is the "
        f"printed {theory.nodes_of_as_printed(8) / 1e15:.3f}e15; by the complementary error function it is "
        f"{theory.nodes_of(8) / 1e15:.3f}e15"
    )


def _of_figure_5(points: Sequence[Point]) -> Iterator[Claim]:
    cases = list(dict.fromkeys(point.case for point in points))
    at = {(point.case, point.scheme.name): point for point in points}
    peak = [at[case, PARALET].peak_bps / at[case, ECMP].peak_bps for case in cases]
    tail = [at[case, ECMP].fct_max_s / at[case, PARALET].fct_max_s for case in cases]
    mean = [at[case, ECMP].fct_mean_s / at[case, PARALET].fct_mean_s for case in cases]
    for what, ratios, (least, most), note in (
        ("Maximum Total Throughput", peak, (1.4, 1.6), _RANGE),
        ("slowest flow, shorter by", tail, (2.6, 3.4), _TAIL),
        ("mean FCT, shorter by", mean, (2.6, 3.4), _TAIL),
    ):
        yield Claim("Fig. 5", f"m = 32 against ECMP, {what}: least", "x", min(ratios), least, 1, note=note)
        yield Claim("Fig. 5", f"m = 32 against ECMP, {what}: most", "x", max(ratios), most, 1, note=note)
        for case, ratio in zip(cases, ratios, strict=True):
            yield Claim("Fig. 5", f"{case}: {what}", "x", ratio, decimals=1)
    for case in cases:
        near = at[case, PARALET].peak_bps / at[case, SPRAYING].peak_bps
        yield Claim(
            "Fig. 4",
            f"{case}: peak of m = 32 over that of ideal spraying",
            "x",
            near,
            1.0,
            1,
            note='"near-optimal throughput" is taken for a ratio of 1',
        )
    for case in cases:
        if (case, PACED) in at:
            paced = at[case, PACED]
            for what, ratio in (
                ("peak", paced.peak_bps / at[case, PARALET].peak_bps),
                ("mean FCT", paced.fct_mean_s / at[case, PARALET].fct_mean_s),
                ("slowest flow", paced.fct_max_s / at[case, PARALET].fct_max_s),
            ):
                yield Claim("5.1", f"{case}: {what} of m = 32, lanes at 1/m, over free lanes", "x", ratio, decimals=2)
    doubled = min(at[case, ECMP].fct_max_s / at[case, ECMP].ideal_s for case in cases)
    yield Claim(
        "4.1",
        "ECMP's slowest flow, least of the scenarios",
        "x ideal",
        doubled,
        2,
        0,
        "more than",
        'the paper: "at least doubled"',
    )


def of_packets(points: Sequence[Point]) -> Iterator[Claim]:
    """ParaLet against the others where queues, losses and the order of packets count."""
    at = {(point.case, point.scheme.name): point for point in points}
    cases = list(dict.fromkeys(point.case for point in points))
    for name, (throughput, time) in COMPARED.items() if cases else ():
        note = _BOUNDS if name in (DRILL, DRILL_SR) else _PACKETS
        for what, printed, ratios in (
            ("MTT", throughput, [at[case, PARALET].peak_bps / at[case, name].peak_bps for case in cases]),
            ("slowest flow", time, [at[case, name].fct_max_s / at[case, PARALET].fct_max_s for case in cases]),
            ("mean FCT", time, [at[case, name].fct_mean_s / at[case, PARALET].fct_mean_s for case in cases]),
        ):
            for which, ours, theirs in (("least", min(ratios), printed[0]), ("most", max(ratios), printed[1])):
                where = f"packets, m = 32 against {name}: {what}, {which}"
                yield Claim("Fig. 5", where, "x", ours, theirs, 1, note=note)


def _of_since(points: Sequence[Point]) -> Iterator[Claim]:
    for point in points:
        yield Claim(
            "since",
            f"{point.case}: {point.scheme.name}, slowest flow",
            "x ideal",
            point.fct_max_s / point.ideal_s,
            decimals=1,
        )


def _drawings(figure_5: Sequence[Point], packets: Sequence[Point], since: Sequence[Point]) -> list[Drawing]:
    from testbed.papers.paralet import plots

    by_packets = Drawing(
        "paralet-packets",
        "Figure 4, packet by packet: LetFlow is near ECMP, ConWeave between, ParaLet and DRILL that may reorder ahead",
        lambda: plots.throughput(packets),
    )
    return [
        Drawing(
            "paralet-equation-1",
            f"Slowdown by lanes: Equation 1 beside the mean of the fullest of {NODES:,} ports",
            lambda: plots.equation_1(NODES),
        ),
        Drawing(
            "paralet-throughput",
            "Figure 4: total throughput over time; ParaLet stays near the ideal and ends early",
            lambda: plots.throughput(figure_5),
        ),
        Drawing(
            "paralet-fct",
            "Figure 5: maximum total throughput and flow completion times by lanes, flattening after m = 16",
            lambda: plots.figure_5(figure_5),
        ),
        *([by_packets] if packets else []),
        Drawing(
            "paralet-since",
            f"The slowest flow of schemes since, healthy and with {DEGRADED} links at {LEFT:.0%} of their rate",
            lambda: plots.since(since),
        ),
    ]
