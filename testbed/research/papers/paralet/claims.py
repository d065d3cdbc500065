# SPDX-License-Identifier: Apache-2.0
"""The paper's claims compared with our results."""

from collections.abc import Iterator, Sequence
from math import ceil, sqrt

from testbed.research.papers.claim import Claim
from testbed.research.papers.findings import Drawing, Findings
from testbed.research.papers.paralet import flowlets, host_lanes, theory, tuning
from testbed.research.papers.paralet.evaluation import (
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
"""ParaLet's gains in Maximum Total Throughput and flow completion time as (least, most), as printed."""
TABLE_3 = ((6, ""), (43, ""), (740, ""), (31574, ""), (3488555, ""), (1.013, "1e9"), (7.813, "1e11"), (1.501, "1e15"))
"""n for n' = 1, 2, .., as printed, and the power of ten by which the paper scales it."""
NODES = 1024

_RANGE = "Ranges over four scenarios."
_PACKETS = "Packet simulation, 128 hosts, m = 32, ring and tree."
_BOUNDS = "Go-back-N is too slow here, since windows do not shrink after a NAK, and selective repeat too fast."
_TAIL = "The paper does not say whether FCT is the mean or the slowest flow's."


def find(quick: bool) -> Findings:
    """All claims. With `quick`, only the small fabric, one seed, and no packet simulation."""
    packets, tuned = ([], []) if quick else (_packets(), tuning.points())
    return found(_figure_5(quick), packets, _since(quick), tuned)


def found(
    figure_5: Sequence[Point], packets: Sequence[Point], since: Sequence[Point], tuned: Sequence[Point]
) -> Findings:
    """The claims and drawings made from these points."""
    return Findings(
        claims=[
            *of_theory(),
            *tuning.claims(tuned),
            *flowlets.claims(flowlets.measured()),
            *host_lanes.claims(host_lanes.measured()),
            *_of_figure_5(figure_5),
            *of_packets(packets),
            *_of_since(since),
        ],
        drawings=_drawings(figure_5, packets, since),
    )


def _packets() -> list[Point]:
    """Points of Figures 4 and 5 by packet simulation, LetFlow with its best gap."""
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


def of_theory() -> Iterator[Claim]:
    """Claims about formulas, which no simulation is needed for."""
    meet = 100 * theory.collision_probability(16)
    yield Claim(
        "4.1", "16 flows, 16 ports: probability that two meet", "%", meet, 100, note='The paper says "almost 1".'
    )
    for n_prime, (printed, power) in enumerate(TABLE_3, start=1):
        ours = theory.nodes_of(n_prime)
        note = "The printed digits are truncated." if n_prime < 8 else _cancelled()
        what, scale = f"n for n' = {n_prime}", float(power or 1)
        unit, series = power or "ports", "" if power else "n for n' = 1 to 5"
        yield Claim("Table 3", what, unit, ours / scale, printed, 3 if power else 0, note=note, series=series)
    for m in (1, 4, 32):
        yield Claim(
            "Eq. 1",
            f"m = {m}: fullest of {NODES:,} ports, mean of 400 draws",
            "x ideal",
            theory.fullest_port(NODES, m),
            round(theory.slowdown(NODES, m), 3),
            3,
            note="Equation 1 takes a quantile for the mean of a maximum, so it is too low for small m.",
            series=f"m = 1, 4, 32: fullest of {NODES:,} ports, 400 draws",
        )
    gain = theory.slowdown(NODES, 1) / theory.slowdown(NODES, 32)
    yield Claim(
        "4.1",
        f"m = 32 against ECMP, by Equation 1, {NODES:,} nodes",
        "x",
        gain,
        round(sqrt(32), 2),
        2,
        note='"Speedup by sqrt(m)" holds for the slowdown above 1 only. Random draws give '
        f"{theory.fullest_port(NODES, 1) / theory.fullest_port(NODES, 32):.2f}.",
    )
    yield Claim(
        "4.1",
        f"m = 32: later than optimal, by Equation 1, {NODES:,} nodes",
        "%",
        100 * (theory.slowdown(NODES, 32) - 1),
        round(100 / sqrt(32), 1),
        1,
        note='"1/sqrt(m) slower" omits the factor n\' of Equation 1, 3.10 here.',
    )
    yield Claim(
        "5.2",
        "m for a slowdown of 2, 1e5 nodes",
        "lanes",
        ceil(theory.lanes_for(1e5, 2)),
        25,
        note=f"The formula gives {theory.lanes_for(1e5, 2):.1f}; 25 fits n' = 5, {theory.nodes_of(5):,.0f} nodes.",
    )
    yield Claim("5.2", "m for a slowdown of 2, 1e9 nodes", "lanes", ceil(theory.lanes_for(1e9, 2)), 36)
    yield Claim(
        "5.2",
        "S = 4 BDP / m, 100 Gbit/s, four links of 1 us each way, m = 32",
        "kB",
        4 * 100e9 * 8e-6 / 8 / 32 / 1e3,
        note="Three packets of 4 KiB.",
    )


def _cancelled() -> str:
    return f"{theory.nodes_of_as_printed(8) / 1e15:.3f}e15 is 1 / (1 - CDF(8)) in double precision, by cancellation."


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
        series = f"m = 32 against ECMP, {what}"
        yield Claim("Fig. 5", f"{series}: least", "x", min(ratios), least, 1, note=note, series=series)
        yield Claim("Fig. 5", f"{series}: most", "x", max(ratios), most, 1, note=note, series=series)
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
            note='"Near-optimal throughput" counts as a ratio of 1.',
            series="peak of m = 32 over that of ideal spraying",
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
        "at least",
        'The paper says "at least doubled".',
    )


def of_packets(points: Sequence[Point]) -> Iterator[Claim]:
    """ParaLet compared with schemes for which queues, losses and packet order matter."""
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
                series = f"packets, against {name}: {'MTT' if what == 'MTT' else 'slowest flow, mean FCT'}"
                full = f"packets, m = 32 against {name}: {what}, {which}"
                yield Claim("Fig. 5", full, "x", ours, theirs, 1, note=note, series=series)


def _of_since(points: Sequence[Point]) -> Iterator[Claim]:
    for point in points:
        yield Claim(
            "later work",
            f"{point.case}: {point.scheme.name}, slowest flow",
            "x ideal",
            point.fct_max_s / point.ideal_s,
            decimals=1,
        )


def _drawings(figure_5: Sequence[Point], packets: Sequence[Point], since: Sequence[Point]) -> list[Drawing]:
    from testbed.research.papers.paralet import plots

    by_packets = Drawing(
        "paralet-packets",
        "Figure 4 by packets",
        lambda: plots.throughput(packets),
    )
    return [
        Drawing(
            "paralet-equation-1",
            "Slowdown by lanes: Equation 1 and random draws",
            lambda: plots.equation_1(NODES),
        ),
        Drawing(
            "paralet-throughput",
            "Figure 4: throughput over time",
            lambda: plots.throughput(figure_5),
        ),
        Drawing(
            "paralet-fct",
            "Figure 5: throughput and flow completion times by lanes",
            lambda: plots.figure_5(figure_5),
        ),
        *([by_packets] if packets else []),
        Drawing(
            "paralet-flowlets",
            "Completion by the size of flowlets with real packets and in the model",
            lambda: plots.flowlet_sizes(flowlets.measured()),
        ),
        Drawing(
            "paralet-since",
            f"The slowest flow with later schemes, all links healthy or {DEGRADED} at {LEFT:.0%}",
            lambda: plots.since(since),
        ),
    ]
