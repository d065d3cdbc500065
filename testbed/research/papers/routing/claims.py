# SPDX-License-Identifier: Apache-2.0
"""The paper's claims compared with our results."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean, median

from testbed.research.papers.ahead import ahead
from testbed.research.papers.claim import Claim, Relation
from testbed.research.papers.findings import Drawing, Findings
from testbed.research.papers.routing import circuits, theory
from testbed.research.papers.routing.evaluation import (
    BLOOM,
    GPT3,
    LLAMA2,
    NAMES,
    OVERSUBSCRIBED,
    PLANNERS,
    RATE_BPS,
    RINGS,
    SPINES,
    Case,
    Planned,
    Point,
    cases,
    failure_cases,
    measure,
    mixed_cases,
    oversubscribed_cases,
    together,
)

_Value = Callable[[Point], float]

ITERATIONS = 11
SEEDS = (1, 2, 3)

_POLYNOMIAL = tuple(name for name in PLANNERS if name != "ilp")
"""Planners of question 4, where edge colouring stands for the optimum."""

_PLACED = {True: "copies on whole ToRs", False: "NICs drawn one by one"}

_LOST = "Our copy of the paper lacks this number."
_PROOF = "Our copy lacks the constant; this one follows from the proof."
_WORDS = "From the paper's words."
_ASKED = 'The paper asks and does not answer. As with failed spines, "very close to the optimum" counts as 1.'
_ONCE = "A ring has the same neighbours in every iteration, so that circuits need not change."


def find(quick: bool) -> Findings:
    """All claims. With `quick`, only a few cases with one placement and one iteration."""
    main, failed, mixed = cases(quick), failure_cases(quick), mixed_cases(quick)
    oversubscribed = oversubscribed_cases(quick)
    every = [*main, *failed, *mixed, *oversubscribed]
    seeds, iterations = (SEEDS[:1], 1) if quick else (SEEDS, ITERATIONS)
    measured: dict[Case, list[Point]] = {}
    planned: list[Planned] = []
    asked = [
        (case, _POLYNOMIAL if case in oversubscribed else PLANNERS, iterations, seed)
        for seed in seeds
        for case in every
    ]
    if not quick:
        ahead([(measure, one) for one in asked])
    for case, planners, count, seed in asked:
        points, plans = measure(case, planners, count, seed)
        measured.setdefault(case, []).extend(points)
        if planners == PLANNERS:  # all have planned the same commodities
            planned += plans
    means = {case: together(points) for case, points in measured.items()}

    def of(some: Iterable[Case]) -> list[Point]:
        return [point for case in some for point in means[case]]

    claims = [
        *_of_models(),
        *_of_theory(quick),
        *_of_performance(of(main)),
        *_of_runtimes(planned),
        *_of_failures(of(failed)),
        *of_oversubscribed(of(oversubscribed)),
        *_of_circuits(mixed_cases(quick=False)),
        *_of_mixed(of(mixed)),
    ]
    return Findings(claims, _drawings(of(main), of(failed), planned))


def _of_models() -> Iterator[Claim]:
    parts = "BLOOM, GPT-3, LLaMA2-70B: GPUs of a copy, tensor x pipeline"
    for model, copy in ((BLOOM, 48), (GPT3, 64), (LLAMA2, 128)):
        what = f"{model.name}: GPUs of a copy, tensor x pipeline"
        yield Claim("Table 2", what, "", model.parts, copy, series=parts, given=True)
    for model in (BLOOM, GPT3, LLAMA2):
        for ring in RINGS:
            ideal_ms = 1e3 * 2 * (ring - 1) / ring * 8 * model.part_bytes / RATE_BPS
            yield Claim("2.1", f"{model.name}, rings of {ring}: shortest all-reduce", "ms", ideal_ms, note=_LOST)


def _of_theory(quick: bool) -> Iterator[Claim]:
    first_fit, best = theory.tight_case()
    tried = theory.trials(100 if quick else 2000)
    yield Claim(
        "Theorem 2",
        "four commodities, two spines: greedy's worst link / the optimum's",
        "x",
        first_fit.congestion / best.congestion,
        2,
        note=_PROOF,
    )
    yield Claim(
        "Theorem 1",
        "the same four: greedy's slowest commodity / the optimum's",
        "x",
        first_fit.fairness.minimum / best.fairness.minimum,
        0.5,
        1,
        note=_PROOF,
    )
    yield Claim(
        "Theorem 2", f"of {tried.instances} random instances, greedy above twice the optimum", "", tried.beyond_twice, 0
    )
    yield Claim("Theorem 2", "mean over these, greedy's worst link / the optimum's", "x", tried.mean, decimals=2)
    yield Claim(
        "5.1",
        "of them, edge colouring above the busiest ToR's commodities / spines, rounded up",
        "",
        tried.colouring_beyond,
        0,
        note="The paper calls it the optimum, as does König's theorem.",
    )
    tors, spines = (16, 8) if quick else (64, 32)
    worst, least = theory.permutations(5, tors, spines)
    where = f"random permutations of {tors * spines:,} NICs: flows on the worst link"
    yield Claim("Theorem 2", f"{where}, greedy", "", worst)
    yield Claim("Theorem 2", f"{where}, edge colouring", "", least)


def _of_performance(points: Sequence[Point]) -> Iterator[Claim]:
    figures: tuple[tuple[str, str, _Value, Relation], ...] = (
        ("Figure 4", "all-reduce time", lambda point: point.allreduce_s, "more than"),
        ("Figure 5", "FCT", lambda point: point.fct_s, "more than"),
        ("Figure 6", "throughput", lambda point: point.throughput_bps, "less than"),
    )
    for where, what, value, relation in figures:
        by = {name: [value(point) for point in points if point.planner == name] for name in PLANNERS}
        over = {name: [one / other for one, other in zip(by[name], by["optimal"], strict=True)] for name in PLANNERS}
        for name in ("ecmp", "annealing", "greedy", "ilp"):
            close = name == "greedy" and where == "Figure 4"
            yield Claim(
                where,
                f"{what}, {NAMES[name]} / edge colouring, mean of sub-figures",
                "x",
                fmean(over[name]),
                1 if close else None,
                2,
                note=_WORDS if close else "",
            )
        if where == "Figure 4":
            yield Claim(
                where, f"{what}, greedy / edge colouring, worst sub-figure", "x", max(over["greedy"]), decimals=2
            )
        for name in ("ecmp", "annealing"):
            ratio = fmean(one / other for one, other in zip(by[name], by["greedy"], strict=True))
            series = f"{what}, ECMP, annealing / greedy"
            yield Claim(where, f"{what}, {NAMES[name]} / greedy", "x", ratio, 1, 2, relation, _WORDS, series)
    best = [point for point in points if point.planner == "optimal"]
    yield Claim("Figure 4", "sub-figures where edge colouring is proved optimal in every phase", "%", _percent(best))


def _of_runtimes(planned: Sequence[Planned]) -> Iterator[Claim]:
    seconds = {name: median(case.seconds for case in planned if case.planner == name) for name in PLANNERS}
    most = max(case.commodities for case in planned)
    yield Claim("Figure 7", "commodities planned at once, most", "", most, note=_LOST)
    for name in ("annealing", "optimal", "ilp"):
        yield Claim(
            "Figure 7",
            f"time for a plan, {NAMES[name]} / greedy",
            "x",
            seconds[name] / seconds["greedy"],
            1,
            1,
            "more than",
            "From the paper's words. Ours are in C++, the paper's in Python and Java.",
        )


def _of_failures(points: Sequence[Point]) -> Iterator[Claim]:
    series = "0 to 8 spines failed: all-reduce time, greedy / ILP"
    for failed in sorted({point.case.failed for point in points}):
        by = {
            name: [point.allreduce_s for point in points if (point.planner, point.case.failed) == (name, failed)]
            for name in PLANNERS
        }
        for name in ("ecmp", "annealing", "greedy", "optimal"):
            ratio = fmean(one / other for one, other in zip(by[name], by["ilp"], strict=True))
            printed = 1 if name == "greedy" else None
            what = f"{failed} spines failed: all-reduce time, {NAMES[name]} / ILP"
            note = _WORDS if printed else ""
            yield Claim("Figure 8", what, "x", ratio, printed, 2, note=note, series=series if printed else "")
        greedy, exact = (
            [point.fct_s for point in points if (point.planner, point.case.failed) == (name, failed)]
            for name in ("greedy", "ilp")
        )
        ratio = fmean(one / other for one, other in zip(greedy, exact, strict=True))
        yield Claim("Figure 8", f"{failed} spines failed: FCT, greedy / ILP", "x", ratio, decimals=2)


def of_oversubscribed(points: Sequence[Point]) -> Iterator[Claim]:
    series = "2 and 4 NICs per uplink: all-reduce time, greedy / edge colouring"
    for times, by_tor in product(OVERSUBSCRIBED, (True, False)):
        own = [
            point for point in points if (SPINES // times, by_tor) == (SPINES - point.case.failed, point.case.by_tor)
        ]
        by = {name: [point.allreduce_s for point in own if point.planner == name] for name in _POLYNOMIAL}
        where = f"{times} NICs per uplink, {_PLACED[by_tor]}: all-reduce time"
        for name in ("ecmp", "annealing", "greedy"):
            ratio = fmean(one / best for one, best in zip(by[name], by["optimal"], strict=True))
            what = f"{where}, {NAMES[name]} / edge colouring"
            if name == "greedy":
                yield Claim("5, question 4", what, "x", ratio, 1, 2, note=_ASKED, series=series)
            else:
                yield Claim("5, question 4", what, "x", ratio, decimals=2)
        slowdown = fmean(point.slowdown for point in own if point.planner == "optimal")
        yield Claim("5, question 4", f"{where}, edge colouring / an idle fabric", "x", slowdown, decimals=2)


def _of_circuits(placements: Sequence[Case]) -> Iterator[Claim]:
    rate = "two commodities between two ToRs: slowest on planned paths / on one circuit"
    yield Claim("6, Figure 9", rate, "x", circuits.figure_9(), 1, 2, "more than", '"The two commodities will collide".')
    for by_tor, where in _PLACED.items():
        counts = [circuits.between_tors(replace(case, by_tor=by_tor), seed) for case in placements for seed in SEEDS]
        pair, tor = (max(count[which] for count in counts) for which in (0, 1))
        yield Claim("6", f"{where}, 3 jobs: flows of the busiest pair of ToRs, which share a circuit", "", pair)
        what = f"{where}, 3 jobs: circuits of the busiest ToR if each flow has one / uplinks"
        yield Claim("6", what, "x", tor / SPINES, decimals=2, note=_ONCE)


def _of_mixed(points: Sequence[Point]) -> Iterator[Claim]:
    by = {name: [point.allreduce_s for point in points if point.planner == name] for name in PLANNERS}
    for name in ("ecmp", "annealing", "greedy", "ilp"):
        ratio = fmean(one / other for one, other in zip(by[name], by["optimal"], strict=True))
        where = "NICs drawn one by one, 3 jobs"
        yield Claim("not in paper", f"{where}: all-reduce time, {NAMES[name]} / edge colouring", "x", ratio, decimals=2)


def _percent(points: Sequence[Point]) -> float:
    return 100 * sum(point.proved for point in points) / len(points)


def _drawings(main: Sequence[Point], failed: Sequence[Point], planned: Sequence[Planned]) -> list[Drawing]:
    from testbed.research.papers.routing import plots  # matplotlib takes long to load

    return [
        Drawing(
            "routing-allreduce",
            "Figure 4: all-reduce time by model, ring, jobs and planner",
            lambda: plots.allreduce(main),
        ),
        Drawing("routing-fct", "Figure 5: mean flow completion time", lambda: plots.fct(main)),
        Drawing("routing-throughput", "Figure 6: mean throughput of flows", lambda: plots.throughput(main)),
        Drawing("routing-runtimes", "Figure 7: time for a plan by commodities", lambda: plots.runtimes(planned)),
        Drawing("routing-failures", "Figure 8: all-reduce time with failed spines", lambda: plots.failures(failed)),
    ]
