# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers compared with ours."""

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from sim.cluster import QueueName
from testbed.research.papers.ahead import ahead
from testbed.research.papers.claim import Claim
from testbed.research.papers.findings import Drawing, Findings
from testbed.research.papers.vclos import hash_modes, printed, replayed, scaling, simulated, theory, trace

_FIT = f"Fitted: trace {trace.FITTED} of {trace.TRACES}, chosen by this column."
_PREDICTED = "Predicted, with the fitted trace."
_ANYWHERE = "Predicted; GPUs anywhere."
_RELAXED = "Predicted; the paper does not define its network, here ECMP."
_ORDER = "Of 21 pairs."
_LOST = "Our copy of the paper lacks this cell."
_OWN_BASE = "Relative to OCS-vClos."
_NO_TRACE = "The paper prints neither jobs, cluster nor lambda."
_MACHINE = "Processor time on the machine that made this page; 2,048 GPUs, nine tenths in use, jobs on several leaves."
_MODES = "Of 15 combinations of ours. The number of ports is not printed; of 2, 3 and 4 it is fitted: 3."
_SCALES = "Durations and arrivals are set, the latter by bisection, so that vClos has its row."


def find(quick: bool) -> Findings:
    """All claims and figures. With `quick`, without simulations, and without times of this machine."""
    counts = [*_of_counts()]
    if quick:
        return Findings(counts)
    ahead(simulated.cases())
    claims = [
        *counts,
        *_of_programs(),
        *_of_table_2(),
        *_of_table_4(),
        *_of_figure_10(),
        *replayed.claims(replayed.measured()),
        *_of_figure_12(),
        *_of_section_9_4(),
        *_of_section_9_5(),
        *_of_section_9_6(),
        *_of_table_5(),
        *_of_table_6(),
        *_of_table_7(),
        *_of_large_jobs(),
    ]
    from testbed.research.papers.vclos import plots

    jobs = replayed.measured()
    return Findings(
        claims,
        (
            Drawing("vclos-figure-5", "Figure 5: scaling factors with ECMP and without contention", plots.figure_5),
            Drawing("vclos-table-5", "Table 5: mean JCT by lambda", plots.table_5),
            Drawing("vclos-figure-11", "Figure 11: JRT and JWT, simulated and measured", lambda: plots.figure_11(jobs)),
        ),
    )


def _of_counts() -> Iterator[Claim]:
    best = hash_modes.best(hash_modes.PORTS)
    yield Claim("3.1", "two flows on one port, best hash mode", "%", 100 * best.pairs, 31.5, 1, note=_MODES)
    yield Claim("3.1", "all 4 flows on one port, best hash mode", "%", 100 * best.everything, 3, note=_MODES)
    what = "all 4 flows on one port, where any two meet with 31.5 % at random"
    said = "The cube of 31.5 %: the paper's numbers fit each other."
    yield Claim("3.1", what, "%", 100 * 0.315**3, 3, note=said, given=True)
    for ports in (2, 4):
        what = f"two flows on one of {ports} ports, best hash mode"
        yield Claim("3.1", what, "%", 100 * hash_modes.best(ports).pairs, decimals=1, note=_MODES)
    said = "Ours: the fullest of 64 uplinks with 64 flows."
    yield Claim("Fig. 2", "6 flows on a link", "%", 100 * theory.exactly(64, 64, 6), 3.3, 1, note=said)
    said = "Two flows of equal rates halve it at most."
    lost = 100 * theory.lost_part(2)
    yield Claim("Fig. 6", "throughput lost to two flows on a link, most", "%", lost, 60, note=said)
    yield from _of_figure_5()
    shares = "The model's layers and parallelism are not printed."
    time = "time in all-to-all and all-reduce, 600 billion parameters"
    yield Claim("4.2", "time in all-to-all, 600 billion parameters", "%", None, 25.8, 1, note=shares, series=time)
    yield Claim("4.2", "time in all-reduce, 600 billion parameters", "%", None, 4.2, 1, note=shares, series=time)
    gpus, switches = theory.rearrangeable(64)
    sizes = "strictly and rearrangeably non-blocking, 64 ports"
    yield Claim("5.1", "GPUs, rearrangeably non-blocking, 64 ports", "GPUs", gpus, 2048, series=sizes)
    yield Claim("5.1", "switches, rearrangeably non-blocking", "switches", switches, 96, series=sizes)
    gpus, switches = theory.strictly_non_blocking(64)
    yield Claim("5.1", "GPUs, strictly non-blocking, 64 ports", "GPUs", gpus, 1344, series=sizes)
    yield Claim("5.1", "switches, strictly non-blocking", "switches", switches, 105, series=sizes)
    up = theory.to_parents(2048)
    down = [(parent, rank) for rank, parent in up]
    phases = max(theory.most_flows(flows, 32) for flows in (up, down))
    trees = "double binary trees, 2,048 GPUs: flows on a link"
    yield Claim("5.3", f"{trees}, up, then down", "", phases, 3, 0, "at most")
    both = theory.most_flows(up + down, 32)
    said = "The paper does not say which; pipelined data go up and down at once."
    yield Claim("5.3", f"{trees}, up and down at once", "", both, 3, 0, "at most", said)


def _of_figure_5() -> Iterator[Claim]:
    """The figure, and what follows for 3.2, which says in words that tasks such as VGG16 and BERT suffer from ECMP."""
    for (model, share), gpus in product(scaling.SHARES.items(), scaling.GPUS[1:]):
        what = f"{model}, {gpus} GPUs: scaling factor with ECMP"
        yield Claim("Fig. 5", what, "x", scaling.factor(share, gpus, ecmp=True), decimals=2, note=_HASHED)
    for model, share in scaling.SHARES.items():
        ecmp, alone = (scaling.factor(share, 32, ecmp=hashed) for hashed in (True, False))
        what = f"scaling factor on 32 GPUs, ECMP over no contention, {model}"
        yield Claim("Fig. 5", what, "x", ecmp / alone, decimals=2, note=_HASHED)


_HASHED = "By a hash of ours, and by the shares of time that nothing hides. The figure's numbers are not in our copy."


def _of_programs() -> Iterator[Claim]:
    for where, name, optical, mean_s in (("6.1", "vClos", False, 1), ("7.3", "OCS-vClos", True, 2)):
        ours, what = 1e3 * theory.placement_s(optical), f"mean time to place a job, {name}"
        yield Claim(where, what, "ms", ours, 1e3 * mean_s, note=_MACHINE, series="mean time to place a job")


def _of_table_2() -> Iterator[Claim]:
    for name, rows in printed.TABLE_2.items():
        for gap_s, (gpu, network) in rows.items():
            ours = simulated.table_5(name, gap_s)
            for lack, number, theirs, note in (
                ("lack of GPUs", ours.gpu_failures, gpu, _PREDICTED),
                ("lack of links", ours.network_failures, network, _LINKS),
                ("no l x s on idle servers, were all links free", ours.shape_failures, None, _SHAPE),
            ):
                what, series = (f"{of}: {lack}" for of in (f"{name}, lambda {gap_s}", name))
                yield Claim("Table 2", what, "", number, theirs, note=note, series=series)


_LINKS = "Counted if the job would have had a place, had all links been free. The paper does not say how it counts."
_SHAPE = "The paper has no such column; it may count these as lack of links."


def _of_table_4() -> Iterator[Claim]:
    run_s, waiting_s = printed.TABLE_4["vClos"]
    gap_s = simulated.testbed_gap_s(run_s, waiting_s)
    ours = {name: simulated.table_4(name, run_s, gap_s) for name in printed.TABLE_4}
    for name, (jrt, jwt) in printed.TABLE_4.items():
        mean = simulated.mean_of(ours[name], lambda outcome: outcome.running_s)
        given = name == "vClos"
        yield Claim("Table 4", f"{name}, mean JRT", "s", mean, jrt, 2, note=_SCALES, series="mean JRT", given=given)
        mean = simulated.mean_of(ours[name], lambda outcome: outcome.waiting_s)
        yield Claim("Table 4", f"{name}, mean JWT", "s", mean, jwt, 2, note=_SCALES, series="mean JWT", given=given)
    for gpus, more in ((8, 8.1), (16, 17.9)):
        ecmp, own = (
            simulated.mean_of(ours[name], lambda outcome: outcome.running_s, gpus) for name in ("ECMP", "vClos")
        )
        said = "The paper names no baseline; here vClos, as for table 4."
        what, series = f"JRT with ECMP, jobs of {gpus} GPUs", "JRT with ECMP, 8, 16 GPUs"
        yield Claim("8.2", what, "%", 100 * (ecmp / own - 1), more, 1, note=said, series=series)


def _of_figure_10() -> Iterator[Claim]:
    """Jobs of more than 8 GPUs: "the performance of OCS-vClos, vClos, and Source Routing is better than ECMP"."""
    gap_s = simulated.testbed_gap_s(*printed.TABLE_4["vClos"])
    ecmp, *others = (
        simulated.mean_of(
            simulated.table_4(name, printed.TABLE_4["vClos"][0], gap_s), lambda outcome: outcome.running_s, 16
        )
        for name in ("ECMP", "Redundance", "SR", "vClos")
    )
    for name, jrt in zip(("Redundance", "SR", "vClos"), others, strict=True):
        what, series = (f"JRT of jobs of 16 GPUs, ECMP over {other}" for other in (name, "others"))
        yield Claim("Fig. 10", what, "x", ecmp / jrt, 1.0, 1, "more than", _SCALES, series)


def _of_figure_12() -> Iterator[Claim]:
    """CLUSTER512: "a significant long tail" of JWT and a low stability with ECMP."""
    ecmp = simulated.table_5("ECMP", 120)
    for name in ("SR", "Balanced"):
        other = simulated.table_5(name, 120)
        for where, what, ratio in (
            ("Fig. 12a", "99th percentile of JWT", ecmp.late_s / other.late_s),
            ("Fig. 12d", "deviation of JRT among jobs of one size", ecmp.instability / other.instability),
        ):
            about, series = (f"{what}, ECMP over {which}" for which in (name, "others"))
            yield Claim(where, about, "x", ratio, 1.0, 1, "more than", _ANYWHERE, series)


def _of_section_9_4() -> Iterator[Claim]:
    ocs, sr, balanced, vclos = (simulated.table_5(name, 120) for name in ("OCS-vClos", "SR", "Balanced", "vClos"))
    for what, other, own, said in (
        ("JRT of SR, more than OCS-vClos", sr.running_s, ocs.running_s, 3.18),
        ("JRT of Balanced, more than OCS-vClos", balanced.running_s, ocs.running_s, 6.17),
        ("JWT of SR, more than OCS-vClos", sr.waiting_s, ocs.waiting_s, 65.65),
        ("JWT of vClos, more than OCS-vClos", vclos.waiting_s, ocs.waiting_s, 20.35),
    ):
        series = f"{what[:3]} of others, more than OCS-vClos"
        yield Claim("9.4", what, "%", 100 * (other / own - 1), said, 2, note=_OWN_BASE, series=series)
    best = simulated.table_5("Best", 120).completion_s
    what = "JCT of OCS-vClos, above Best"
    yield Claim("9.4", what, "%", 100 * (1 - best / ocs.completion_s), 3.38, 2, note=_OWN_BASE)
    implied = implied_run_s(5229.9, 6228.6)
    derived = "From 3.18 %, 65.65 % and table 5, relative to OCS-vClos."
    yield Claim("9.4", "JRT of OCS-vClos, derived", "s", ocs.running_s, implied, note=derived)


def implied_run_s(ocs_s: float, sr_s: float, running: float = 0.0318, waiting: float = 0.6565) -> float:
    """JRT of OCS-vClos from both JCTs, if SR's JRT and JWT are larger by these shares of OCS's.

    r + w = ocs_s and (1 + running) r + (1 + waiting) w = sr_s.
    """
    return ((1 + waiting) * ocs_s - sr_s) / (waiting - running)


def _of_section_9_5() -> Iterator[Claim]:
    ocs, sr, vclos = (simulated.cluster2048(name) for name in ("OCS-vClos", "SR", "vClos"))
    for what, other, own, said in (
        ("JRT of SR, more than OCS-vClos", sr.running_s, ocs.running_s, 1.59),
        ("JWT of SR, more than OCS-vClos", sr.waiting_s, ocs.waiting_s, 64.91),
        ("JWT of vClos, more than OCS-vClos", vclos.waiting_s, ocs.waiting_s, 12.06),
    ):
        more = 100 * (other / own - 1) if own > 0 else None
        series = f"2,048 GPUs: {what[:3]} of others, more than OCS-vClos"
        yield Claim("9.5", f"2,048 GPUs: {what}", "%", more, said, 2, note=_NO_WAITING, series=series)


_NO_WAITING = "Predicted, lambda = 15 s; waiting is rare."


def _of_section_9_6() -> Iterator[Claim]:
    """The gap between OCS-vClos and Best at every load, and what FIFO has to do with it."""
    gap = "JCT of OCS-vClos, above Best"
    for gap_s in printed.GAPS_S:
        yield Claim("9.6", f"{gap}, lambda {gap_s}", "%", _above_best(gap_s, "fifo"), 4, 0, "at most", _HEAD, gap)
    for gap_s in printed.GAPS_S:
        what = f"{gap}, with backfilling, lambda {gap_s}"
        yield Claim("9.6", what, "%", _above_best(gap_s, "backfill"), note=_EASY)
        for name in ("OCS-vClos", "vClos"):
            fifo, where = simulated.table_5(name, gap_s), f"{name}, lambda {gap_s}"
            yield Claim("9.6", f"{where}: longest time of a job at the head of FIFO", "s", fifo.head_s, note=_WAITS)
            share = 100 * fifo.behind_s / fifo.waiting_s
            yield Claim("9.6", f"{where}: part of all waiting that is behind that job", "%", share, note=_WAITS)


def _above_best(gap_s: float, queue: QueueName) -> float:
    best, ocs = (simulated.table_5(name, gap_s, queue).completion_s for name in ("Best", "OCS-vClos"))
    return 100 * (ocs / best - 1)


_HEAD = "With FIFO, the first job holds up all others."
_WAITS = "The paper does not print how long single jobs wait."
_EASY = "The paper has no backfilling. EASY: later jobs start if they do not delay the first by what is known."


def _of_table_5() -> Iterator[Claim]:
    notes = {"Best": _FIT, "SR": _ANYWHERE, "Balanced": _ANYWHERE, "ECMP": _ANYWHERE, "OCS-Relax": _RELAXED}
    for name, row in printed.TABLE_5.items():
        for gap_s, value in zip(printed.GAPS_S, row, strict=True):
            ours = simulated.table_5(name, gap_s).completion_s
            note = notes.get(name, _PREDICTED)
            what, series = f"{name}, lambda {gap_s}", f"{name}: mean JCT"
            yield Claim("Table 5", what, "s", ours, value, 1, note=note, series=series)
    for index, gap_s in enumerate(printed.GAPS_S):
        theirs = [row[index] for row in printed.TABLE_5.values()]
        found = [simulated.table_5(name, gap_s).completion_s for name in printed.TABLE_5]
        what, series = f"lambda {gap_s}: pairs of strategies in the paper's order", "pairs of 7 strategies in its order"
        yield Claim("Table 5", what, "", same_order(theirs, found), 21, note=_ORDER, series=series)
    mean = trace.mean_run_s()
    yield Claim("Table 5", "mean duration without contention", "s", mean, note="Of the trace that was fitted.")


def same_order(one: Sequence[float], other: Sequence[float]) -> int:
    """How many pairs of places have the same order in both."""
    return sum((one[a] < one[b]) == (other[a] < other[b]) for a, b in combinations(range(len(one)), 2))


def _of_table_6() -> Iterator[Claim]:
    edf = "Predicted; deadlines here are two durations after arrival."
    for queue, row in printed.TABLE_6.items():
        for name, value in row.items():
            ours = simulated.table_5(name, 120, "edf" if queue == "EDF" else "fewest_first").completion_s
            note = _LOST if value is None else edf if queue == "EDF" else _PREDICTED
            yield Claim("Table 6", f"{queue}, {name}", "s", ours, value, 1, note=note, series=f"{queue}, JCT")


def _of_table_7() -> Iterator[Claim]:
    for name, (waiting_s, completion_s) in printed.TABLE_7.items():
        running_s = 3856.1 if name == "OCS-vClos" else completion_s - waiting_s
        for what, value, note in (
            ("JRT", running_s, _NO_TRACE),
            ("JWT", waiting_s, _NO_TRACE),
            ("JCT", completion_s, _NO_TRACE),
        ):
            yield Claim(
                "Table 7", f"{name}, {what}", "s", None, value, 1, note=note, series="6 policies, JRT, JWT, JCT"
            )


def _of_large_jobs() -> Iterator[Claim]:
    """Table 7 as ratios to Best, with large jobs of ours."""
    gap_s = simulated.large_gap_s(simulated.LARGE_WAITS)
    best = simulated.table_7("Best", gap_s)
    waits_s, completes_s = printed.TABLE_7["Best"]
    for name in simulated.LARGE:
        waiting_s, completion_s = printed.TABLE_7[name]
        ours = simulated.table_7(name, gap_s)
        for what, ratio, said in (
            ("JRT", ours.running_s / best.running_s, (completion_s - waiting_s) / (completes_s - waits_s)),
            ("JWT", ours.waiting_s / best.waiting_s, waiting_s / waits_s),
        ):
            about, series = (f"large jobs: {what} over that of Best, {which}" for which in (name, "4 policies"))
            yield Claim("Table 7", about, "x", ratio, said, 2, note=_LARGE, series=series)


_LARGE = "Not the paper's jobs: 300 of 64 to 256 GPUs; arrivals are set so that Best waits as long, in running times."
