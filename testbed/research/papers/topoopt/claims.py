# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers compared with ours."""

from collections.abc import Iterator, Mapping
from itertools import product
from statistics import fmean
from typing import get_args

from sdn.topoopt import data_parallel, dlrm, find_topology, totient_perms
from testbed.research.papers.ahead import ahead
from testbed.research.papers.claim import Claim, Relation
from testbed.research.papers.findings import Drawing, Findings
from testbed.research.papers.topoopt import cost, discussion, iterations, prototype, reconfiguration, sharing
from testbed.research.papers.topoopt.forwarding import RATIOS, best_one_way, both_ways, one_way
from testbed.research.topoopt.reconfigured import SIP_ML
from testbed.research.topoopt.shared import FatTree

_EXAMPLE = dlrm(16, tables=[0, 3, 8, 13], dense_bytes=2e9, batch=8192)
"""Figure 1b."""
_TABLE_1: tuple[tuple[str, str, tuple[tuple[str, float, int], ...]], ...] = (
    (
        "ports",
        "ports",
        (
            ("patch panel", 1008, 0),
            ("3D MEMS", 384, 0),
            ("2D MEMS", 300, 0),
            ("silicon photonics", 256, 0),
            ("tunable lasers", 128, 0),
            ("RotorNet", 64, 0),
        ),
    ),
    (
        "reconfiguration latency of others",
        "us",
        (("2D MEMS", 11.5, 1), ("silicon photonics", 0.9, 1), ("tunable lasers", 0.0038, 4), ("RotorNet", 10, 0)),
    ),
    (
        "insertion loss",
        "dB",
        (
            ("patch panel", 0.5, 1),
            ("3D MEMS, least", 1.5, 1),
            ("3D MEMS, most", 2.7, 1),
            ("2D MEMS, least", 10, 0),
            ("2D MEMS, most", 20, 0),
            ("silicon photonics", 3.7, 1),
            ("tunable lasers, least", 7, 0),
            ("tunable lasers, most", 13, 0),
            ("RotorNet", 2, 0),
        ),
    ),
)
"""Entries of Table 1: what, unit, and by product the number with its decimals. Prices are those of Table 2."""
_SETTINGS = ((4, 100), (8, 200))
"""Degree and link rate in Gbit/s of Figure 10."""
_BATCHES = tuple(64 * 2**k for k in range(6))
_BOTH_WAYS = "Circuits in both directions, with the strides of the released code."
_TWO_WAY: iterations.Name = "TopoOpt, both ways"
_ONE_WAY = "Circuits that lead one way, strides by Algorithm 3."

_NO_PRICES = "Table 2 has no prices of SiP-ML."
_STRATEGIES = "Section 5.1's strategies."
_DEDICATED = "Means over 10 to 200 Gbit/s."
_RACKS = "Means over 10 to 200 Gbit/s. Racks of 16 servers with half of their bandwidth in uplinks."
_SUPER_LINEAR = "Here the linear all-reduce dominates."
_THREE = "DLRM, batches 128, 2048: iteration times"
_ALL_TO_ALL = "d = 4, 100 Gbit/s, 128 embedding tables; one-way circuits."
_SINGLE = "19.5 TFLOP/s per GPU, also for convolutions, which libraries compute faster."
_LIST_1 = "Tables and layers of section 6 in List 1, of which all-to-all has a smaller part."
_SHARED = "Jobs on random servers, each transfer on a random path; one seed."
_CHANGING = "32 servers, measured every five latencies, at most every 1 ms."
_SIP_ML = "32 servers, d = 4; Algorithm 5 without discount, measured every 1 ms."
_FOUND = "d = 4, 100 Gbit/s; alternating optimisation, simulated on the fluid model."
_SEARCHES = (
    "d = 4, 100 Gbit/s; estimates on circuits for the named strategy. 4,000 proposals; layers of one shape alike."
)


def find(quick: bool) -> Findings:
    """All claims and figures. With `quick`, without the exhaustive search and the figures."""
    if not quick:
        ahead([*reconfiguration.cases(), *sharing.cases(), *iterations.cases()])
    claims = [
        *_of_sizes(),
        *_of_rings(),
        *_of_cost(),
        *_of_iterations(quick),
        *_of_all_to_all(),
        *_of_taxes(),
        *_of_paths(quick),
        *_of_loads(),
        *_of_prototype(),
        *_of_discussion(),
    ]
    if quick:
        return Findings(claims)
    claims += [*_of_sharing(), *_of_reconfiguration()]
    from testbed.research.papers.topoopt import plots

    return Findings(
        claims,
        (
            Drawing(
                "topoopt-cost",
                "Figure 10: cost by servers; Ideal Switch costs 3 to 4 times TopoOpt",
                plots.costs,
            ),
            Drawing(
                "topoopt-iterations",
                "Figure 11: iteration time by link rate; Fat-tree takes 3 times as long as TopoOpt",
                plots.iteration_times,
            ),
            Drawing(
                "topoopt-all-to-all",
                "Figure 12: iteration time by batch",
                plots.all_to_all,
            ),
            Drawing(
                "topoopt-tax",
                "Figure 13: the bandwidth tax grows with the batch to 3 at d = 4",
                plots.taxes,
            ),
            Drawing(
                "topoopt-hops",
                "Figure 14: pairs by path length",
                plots.path_lengths,
            ),
            Drawing(
                "topoopt-loads",
                "Figure 15: circuits by load",
                plots.link_loads,
            ),
            Drawing(
                "topoopt-shared",
                "Figure 16: iteration times by load; highest for Fat-tree",
                plots.shared,
            ),
            Drawing(
                "topoopt-reconfiguration",
                "Figure 17: iteration time by reconfiguration latency",
                plots.reconfiguration_times,
            ),
            Drawing(
                "topoopt-iterations-8",
                "Figure 27: as Figure 11 with d = 8",
                lambda: plots.iteration_times(8),
            ),
            Drawing(
                "topoopt-degrees",
                "Figure 28: iteration time by degree",
                plots.degrees,
            ),
        ),
    )


def _of_sizes() -> Iterator[Claim]:
    """The example of section 2.1: 16 servers; and what others measured or make."""
    sent = data_parallel(16, 22e9).groups[0].sent_bytes / 16
    said = "A ring's 2 (k - 1) / k of 22 GB."
    yield Claim("Fig. 1", "greatest transfer with data parallelism", "GB", sent / 1e9, 44, note=said)
    dense, rows = _EXAMPLE.groups[0].sent_bytes / 16, float(_EXAMPLE.mp[0, 1])
    said = "A ring's 2 (k - 1) / k of 2 GB, which tables of 20 GB leave of 22 GB."
    yield Claim("Fig. 1", "greatest transfer with hybrid parallelism", "GB", max(dense, rows) / 1e9, 4, note=said)
    said = "8,192 samples x 512 columns x 8 bytes: 32 MiB."
    yield Claim("2.1", "model-parallel transfer", "MB", rows / 1e6, 32, note=said)
    tables = data_parallel(16, 20e9).groups[0].sent_bytes / 16
    yield Claim("App. D", "sent by each server with data parallelism, tables of 20 GB", "GB", tables / 1e9, 37.5, 1)
    yield Claim("App. D", "the same at 100 Gbit/s", "s", 8 * tables / 100e9, 3)
    jobs = "Measured on Meta's production jobs, which are not published."
    tables_gb = 4 * 512 * 1e7 * 8 / 1e9
    said = "Four tables of 512 columns and 10^7 rows in double precision."
    yield Claim("App. D", "embedding tables of the example", "GB", tables_gb, 20, note=said)
    for which, workers in (("least", 32), ("most", 700)):
        what = f"workers of most jobs, {which}"
        yield Claim("Fig. 2", what, "GPUs", None, workers, note=jobs, series="workers of most jobs")
    yield Claim("Fig. 2", "duration of most jobs", "h", None, 10, 0, "more than", jobs)
    yield Claim("Fig. 2", "duration of a job, least of the longest tenth", "h", None, 96, note=jobs)
    yield Claim("Fig. 3", "network's part of an iteration, highest of six jobs", "%", None, 60, note=jobs)
    ports = {name: printed for name, printed, _ in _TABLE_1[0][2]}
    more, price = ports["patch panel"] / ports["3D MEMS"], cost.TABLE_2[100]
    yield Claim("App. B", "ports of a patch panel over those of an OCS", "x", more, 3, note="By Table 1.")
    dearer = price.ocs_port / price.patch_port
    yield Claim("App. B", "price of an OCS's port over that of a patch panel's", "x", dearer, 5, note="By Table 2.")
    whole = ports["patch panel"] * price.patch_port / 1e3
    yield Claim("App. B", "price of a patch panel", "thousand USD", whole, 100, note="By Tables 1 and 2.")
    whole = ports["3D MEMS"] * price.ocs_port / 1e3
    yield Claim("App. B", "price of the largest OCS", "thousand USD", whole, 200, note="By Tables 1 and 2.")
    said = "A property of a product, and our input."
    yield Claim("Table 1", "reconfiguration latency of 3D MEMS", "ms", None, 10, note=said)
    said = "Properties of products; no number of ours depends on them."
    for what, unit, entries in _TABLE_1:
        for name, printed, decimals in entries:
            yield Claim("Table 1", f"{what}, {name}", unit, None, printed, decimals, note=said, series=what)
    for name, loss, decimals in (("1 x 2 switch", 0.73, 2), ("optical splitter", 3, 0)):
        what = f"insertion loss, {name}"
        yield Claim("App. C", what, "dB", None, loss, decimals, note=said, series="insertion loss")


def _of_rings() -> Iterator[Claim]:
    """The examples of section 4.3."""
    strides = sorted(ring.stride for ring in find_topology(_EXAMPLE, 3).rings)
    for number, (stride, printed) in enumerate(zip(strides, (1, 3, 7), strict=True), start=1):
        series = "strides of the rings, DLRM on 16 servers, d = 3"
        yield Claim(
            "Figs. 7, 9", f"stride of ring {number}, DLRM on 16 servers, d = 3", "", stride, printed, series=series
        )
    yield Claim("4.3", "rings of 12 servers", "", len(totient_perms(12)), 4)


def _servers(ports: int) -> int:
    """The servers of a fat-tree of switches with so many ports."""
    return FatTree(ports, rate_bps=1.0, uplinks=ports // 2).servers


def _of_cost() -> Iterator[Claim]:
    rule = "By our rule."
    switched = fmean(cost.circuit_switches(*setting) / cost.patch_panels(*setting) for setting in _SETTINGS)
    yield Claim("5.2", "cost with OCSs over cost with patch panels, mean", "x", switched, 1.33, 2, note=rule)
    ideal = fmean(cost.ideal_switch(*setting) / cost.patch_panels(*setting) for setting in _SETTINGS)
    yield Claim("5.2", "cost of Ideal Switch over that of TopoOpt, mean", "x", ideal, 3.2, 1, note=rule)
    said = "By our rule, d = 4, 100 Gbit/s."
    ratio = cost.ideal_switch(4, 100) / cost.patch_panels(4, 100)
    yield Claim("5.2", "cost of Ideal Switch over that of TopoOpt, 4,394 servers", "x", ratio, 3.0, 1, note=said)
    said = "The discounts are not printed."
    yield Claim(
        "5.2", "cost of Ideal Switch over that of TopoOpt, 4,394 servers, discounted", "x", None, 3.6, 1, note=said
    )
    cheapest = min(
        getattr(cost, name)(*setting) / cost.expander(*setting)
        for setting in _SETTINGS
        for name in ("patch_panels", "circuit_switches", "ideal_switch", "fat_tree", "oversubscribed")
    )
    yield Claim("5.2", "cheapest other fabric over Expander", "x", cheapest, 1, 0, "more than", _NO_PRICES)
    yield Claim("5.2", "SiP-ML over the next dearest fabric", "x", None, 1, 0, "more than", _NO_PRICES)
    said = "By our rule, with 1 / 3.2 of TopoOpt's bandwidth."
    ratio = fmean(cost.fat_tree(*setting) / cost.patch_panels(*setting) for setting in _SETTINGS)
    yield Claim("5.2", "cost of Fat-tree over that of TopoOpt, mean", "x", ratio, 1.0, 1, note=said)
    ratio = fmean(cost.oversubscribed(*setting) / cost.patch_panels(*setting) for setting in _SETTINGS)
    yield Claim("5.2", "cost of Oversub. Fat-tree over that of TopoOpt, mean", "x", ratio, decimals=1, note=rule)
    yield Claim("5.2", "servers of a fat-tree with k = 26", "servers", _servers(26), 4394)
    ports = cost.FAT_TREE_PORTS * _servers(8)
    yield Claim("App. G", "switch ports of a fat-tree with k = 8", "ports", ports, 640)
    said = "Of 8 ports; the paper writes 64."
    yield Claim("App. G", "switches of a fat-tree with k = 8", "switches", ports / 8, 80, note=said)
    for gbps, row in cost.TABLE_2.items():
        for part, usd in (("transceiver", row.transceiver), ("NIC", row.nic), ("switch port", row.switch_port)):
            yield _price(f"{part}, {gbps} Gbit/s", usd)
    for part, usd in (
        ("patch panel port", row.patch_port),
        ("OCS port", row.ocs_port),
        ("1 x 2 switch", row.two_way_switch),
    ):
        yield _price(part, usd)


def _price(part: str, usd: int) -> Claim:
    return Claim("Table 2", f"price, {part}", "USD", None, usd, note="Our input.", series="prices")


def _of_prototype() -> Iterator[Claim]:
    """Figures 19 to 21."""
    for model in ("BERT", "VGG", "CANDLE", "ResNet50", "DLRM"):
        network = prototype.MODELS[model]
        topoopt, fast, slow = (prototype.seconds(network, name) for name in get_args(prototype.Name))
        note = f"{_SINGLE} Batch 64: the figure prints none." if model == "DLRM" else _SINGLE
        for which, ratio, bound in (
            ("TopoOpt over Switch 100 Gbit/s", topoopt / fast, False),
            ("Switch 25 Gbit/s over TopoOpt", slow / topoopt, True),
        ):
            what, series = (f"{name}, 12 servers: iteration time, {which}" for name in (model, "5 models"))
            relation: Relation = "more than" if bound else "equals"
            yield Claim("Fig. 19", what, "x", ratio, 1.0, 1, relation, note, series)
    vgg19 = prototype.MODELS["VGG19"]
    topoopt, fast, slow = (prototype.seconds(vgg19, name) for name in get_args(prototype.Name))
    for which, ratio, said in (
        ("Switch 25 Gbit/s over TopoOpt", slow / topoopt, 2.0),
        ("TopoOpt over Switch 100 Gbit/s", topoopt / fast, 1.0),
    ):
        what, series = f"VGG19, 12 servers: iteration time, {which}", "VGG19: iteration times on 12 servers"
        yield Claim("Fig. 20", what, "x", ratio, said, 1, note=_SINGLE, series=series)
    missing = "No network is trained on ImageNet here."
    yield Claim("Fig. 20", "VGG19, 12 servers: accuracy reached", "%", None, 90, note=missing)
    series = "DLRM, 12 servers, batches 32 to 512: all-to-all over all-reduce"
    for batch, printed in zip(prototype.BATCHES, (5, 10, 19, 39, 78), strict=True):
        ours = 100 * iterations.all_to_all_ratio(prototype.job(prototype.recommender(batch)))
        what = f"DLRM, 12 servers, batch {batch}: all-to-all over all-reduce"
        yield Claim("Fig. 21", what, "%", ours, printed, note=_LIST_1, series=series)
    network = prototype.recommender(512)
    ratio = prototype.seconds(network, "Switch 25 Gbit/s") / prototype.seconds(network, "TopoOpt")
    yield Claim("Fig. 21", "DLRM, batch 512: Switch 25 Gbit/s over TopoOpt", "x", ratio, 1.6, 1, note=_LIST_1)


def _of_discussion() -> Iterator[Claim]:
    """Section 7: failures, jobs on the same servers, and TotientPerms on fat-trees."""
    what = "pairs that still reach each other, whichever fibre fails, 128 servers, d = 4"
    yield Claim("7", what, "%", 100 * discussion.pairs_left(128, 4), 100, 0, "at least", _ONE_WAY)
    whole = discussion.busiest("whole")
    said = "16 servers, rings +1, +3 and +7; two carry the all-reduce. By the bytes on the busiest circuit."
    healed = discussion.busiest("healed") / whole
    what = "time of a step after a fibre of its ring failed, over before"
    yield Claim("7", f"{what}, relayed over other circuits", "x", healed, 1.0, 1, "more than", said)
    yield Claim("7", f"{what}, ports swapped", "x", discussion.busiest("swapped") / whole, 1.0, 1, note=said)
    said = '"Treat one physical server as multiple logical servers": 16 servers, two of four NICs for each job.'
    what = "time of an all-reduce's step beside another job on the same servers, over alone"
    yield Claim("7", f"{what}, NICs divided", "x", discussion.beside_another(partitioned=True), 1.0, 1, note=said)
    ratio = discussion.beside_another(partitioned=False)
    yield Claim("7", f"{what}, on the same NICs", "x", ratio, decimals=1, note=said)
    said = "128 servers, 4 permutations, random paths; 20 seeds."
    what = "all-reduce on a fat-tree: time with one ring over that with TotientPerms"
    ratio = discussion.tree_gain(4, shuffled=True)
    yield Claim("7", f"{what}, servers in random order", "x", ratio, 1.0, 1, "more than", said)
    ratio = discussion.tree_gain(4, shuffled=False)
    yield Claim("7", f"{what}, servers in the order of racks", "x", ratio, decimals=1, note=said)


def _of_iterations(quick: bool) -> Iterator[Claim]:
    """Figures 11, 12, 27 and 28. With `quick`, Figure 11 for VGG only."""
    printed = {"CANDLE": 2.8, "VGG": 2.8, "BERT": 3.0, "DLRM": 2.8, "NCF": 2.1}
    for model in ("VGG",) if quick else iterations.MODELS:
        what, ratio = (
            f"{model}: iteration time, Fat-tree over TopoOpt",
            iterations.mean_ratio(model, "Fat-tree", "TopoOpt"),
        )
        series = "5 models: iteration time, Fat-tree over TopoOpt" if model in printed else ""
        yield Claim("Fig. 11", what, "x", ratio, printed.get(model), 1, note=_DEDICATED, series=series)
    if quick:
        return
    ideal = {"CANDLE": 1.0, "DLRM": 1.3, "NCF": 1.7}
    for model in iterations.MODELS:
        what = f"{model}: iteration time, TopoOpt over Ideal Switch"
        ratio = iterations.mean_ratio(model, "TopoOpt", "Ideal Switch")
        series = "CANDLE, DLRM, NCF: iteration time, TopoOpt over Ideal Switch" if model in ideal else ""
        yield Claim("Fig. 11", what, "x", ratio, ideal.get(model), 1, note=_DEDICATED, series=series)
    yield from _of_both_ways(printed, ideal)
    for model in iterations.MODELS:
        what = f"{model}: iteration time, Oversub. Fat-tree over TopoOpt"
        ratio = iterations.mean_ratio(model, "Oversub. Fat-tree", "TopoOpt")
        yield Claim("Fig. 11", what, "x", ratio, decimals=1, note=_RACKS)
    worst = min(iterations.mean_ratio("CANDLE", "Expander", other) for other in iterations.FABRICS[:3])
    what = "CANDLE: iteration time, Expander over the next slowest"
    yield Claim("Fig. 11", what, "x", worst, 1, 0, "more than", "A random regular graph; the ring follows the servers.")
    for batch in _BATCHES:
        of = iterations.of_batch(batch)
        topoopt, ideal_s, tree = (iterations.seconds(of, name, 4, 100) for name in iterations.FABRICS[:3])
        matches, slower = {128: 1.0}.get(batch), {2048: 1.1}.get(batch)
        what = f"DLRM, batch {batch}: iteration time"
        ratios: list[tuple[str, float, float | None]] = [
            ("TopoOpt over Ideal Switch", topoopt / ideal_s, matches),
            ("Fat-tree over TopoOpt", tree / topoopt, {128: 2.7}.get(batch))
            if slower is None
            else ("TopoOpt over Fat-tree", topoopt / tree, slower),
        ]
        for which, ratio, said in ratios:
            series = _THREE if said is not None else ""
            yield Claim("Fig. 12", f"{what}, {which}", "x", ratio, said, 1, note=_ALL_TO_ALL, series=series)
    yield from _of_single_precision(printed)
    for model in printed:
        ratio = iterations.mean_ratio(model, "Fat-tree", "TopoOpt", 8)
        yield Claim(
            "Fig. 27", f"{model}: iteration time, Fat-tree over TopoOpt", "x", ratio, decimals=1, note=_DEDICATED
        )
    for model, gbps in product(("CANDLE", "DLRM", "BERT"), (40, 100)):
        of = iterations.of_model(model)
        ratio = iterations.seconds(of, "TopoOpt", 4, gbps) / iterations.seconds(of, "TopoOpt", 10, gbps)
        what = f"{model}, {gbps} Gbit/s: iteration time, d = 4 over d = 10"
        if (model, gbps) == ("DLRM", 100):
            yield Claim("Fig. 28", what, "x", ratio, 2.5, 1, "more than", _SUPER_LINEAR)
        else:
            yield Claim("Fig. 28", what, "x", ratio, decimals=1, note=_STRATEGIES)
    for model in iterations.MODELS:
        plain, found = iterations.alternated(model)
        yield Claim(
            "4.1", f"{model}, 32 servers: the named strategies over those found", "x", plain / found, note=_FOUND
        )
    for model in iterations.MODELS:
        both = iterations.compare_searches(model)
        what = f"{model}, 32 servers: Markov chain (FlexFlow's MCMC) over coordinate descent"
        longer, more = both.chain_s / both.descent_s, both.chain_estimated / both.descent_estimated
        yield Claim("4.1", f"{what}, iteration time", "x", longer, decimals=2, note=_SEARCHES)
        yield Claim("4.1", f"{what}, strategies estimated", "x", more, note=_SEARCHES)


def _of_both_ways(trees: Mapping[str, float], ideals: Mapping[str, float]) -> Iterator[Claim]:
    """Figures 11 and 12 with circuits in both directions, which the printed path lengths imply."""
    for model in iterations.MODELS:
        tree = iterations.mean_ratio(model, "Fat-tree", _TWO_WAY)
        ideal = iterations.mean_ratio(model, _TWO_WAY, "Ideal Switch")
        for which, ratio, printed in (
            ("Fat-tree over TopoOpt, both ways", tree, trees),
            ("TopoOpt, both ways over Ideal Switch", ideal, ideals),
        ):
            series = f"{', '.join(printed)}: iteration time, {which}" if model in printed else ""
            what, said = f"{model}: iteration time, {which}", printed.get(model)
            yield Claim("Fig. 11", what, "x", ratio, said, 1, note=f"{_BOTH_WAYS} {_DEDICATED}", series=series)
    series = f"{_THREE}, TopoOpt both ways"
    three: tuple[tuple[int, iterations.Name, iterations.Name, float], ...] = (
        (128, _TWO_WAY, "Ideal Switch", 1.0),
        (128, "Fat-tree", _TWO_WAY, 2.7),
        (2048, _TWO_WAY, "Fat-tree", 1.1),
    )
    for batch, slow, fast, said in three:
        of = iterations.of_batch(batch)
        ratio = iterations.seconds(of, slow, 4, 100) / iterations.seconds(of, fast, 4, 100)
        what = f"DLRM, batch {batch}: iteration time, {slow} over {fast}"
        yield Claim("Fig. 12", what, "x", ratio, said, 1, note=_BOTH_WAYS, series=series)


def _of_single_precision(printed: Mapping[str, float]) -> Iterator[Claim]:
    """What differs in Figures 11 and 12 if GPUs compute without matrix units."""
    gpu = iterations.SINGLE_PRECISION
    for model, said in printed.items():
        ratio = iterations.mean_ratio(model, "Fat-tree", "TopoOpt", gpu=gpu)
        what = "iteration time in single precision, Fat-tree over TopoOpt"
        series = f"5 models: {what}"
        yield Claim("Fig. 11", f"{model}: {what}", "x", ratio, said, 1, note=_SINGLE, series=series)
    three: tuple[tuple[int, iterations.Name, iterations.Name, float], ...] = (
        (128, "TopoOpt", "Ideal Switch", 1.0),
        (128, "Fat-tree", "TopoOpt", 2.7),
        (2048, "TopoOpt", "Fat-tree", 1.1),
    )
    for batch, slow, fast, said in three:
        of = iterations.of_batch(batch, gpu)
        ratio = iterations.seconds(of, slow, 4, 100) / iterations.seconds(of, fast, 4, 100)
        what = f"DLRM, batch {batch}: iteration time in single precision, {slow} over {fast}"
        series = f"{_THREE} in single precision"
        yield Claim("Fig. 12", what, "x", ratio, said, 1, note=_SINGLE, series=series)


def _of_all_to_all() -> Iterator[Claim]:
    """The upper axis of Figure 12: what Figure 13 takes as its input."""
    said = "Of the bytes that all-reduces send, twice the gradients."
    series = "DLRM, batches 64 to 2048: all-to-all over all-reduce"
    for batch, printed in zip(_BATCHES, (3, 5, 10, 20, 40, 80), strict=True):
        ours = 100 * iterations.all_to_all_ratio(iterations.of_batch(batch))
        yield Claim(
            "Fig. 12", f"DLRM, batch {batch}: all-to-all over all-reduce", "%", ours, printed, note=said, series=series
        )


def _of_taxes() -> Iterator[Claim]:
    printed = {(4, 64): 1.11, (8, 64): 1.05, (4, 2048): 3.03}
    for degree in (4, 8):
        topology, ours = both_ways(degree), one_way(degree)
        for batch, ratio in zip(_BATCHES, RATIOS, strict=True):
            what = f"bandwidth tax, d = {degree}, batch {batch}"
            tax = printed.get((degree, batch))
            series = "bandwidth tax, d = 8, 4, batches 64, 2048" if tax is not None else ""
            yield Claim("Fig. 13", what, "x", topology.tax(ratio), tax, 2, note=_BOTH_WAYS, series=series)
            yield Claim("Fig. 13", f"{what}, one-way", "x", ours.tax(ratio), decimals=2, note=_ONE_WAY)
    extra = 100 * (both_ways(4).tax(RATIOS[0]) - 1)
    yield Claim("5.5", "extra traffic, d = 4, batch 64", "%", extra, 11, note=_BOTH_WAYS)


def _of_paths(quick: bool) -> Iterator[Claim]:
    for degree, printed, decimals in ((4, 5.7, 1), (8, 3.0, 0)):
        what = f"mean path length, d = {degree}"
        hops, series = both_ways(degree).mean_hops, "mean path length, d = 8, 4"
        yield Claim("Fig. 14", what, "hops", hops, printed, decimals, note=_BOTH_WAYS, series=series)
        yield Claim("Fig. 14", f"{what}, one-way", "hops", one_way(degree).mean_hops, decimals=2, note=_ONE_WAY)
    if not quick:
        best = best_one_way(4)
        strides = ", ".join(f"+{stride}" for stride in best.strides)
        said = f"Strides {strides}, by exhaustive search."
        yield Claim("Fig. 14", "mean path length, d = 4, best one-way", "hops", best.mean_hops, decimals=2, note=said)
    ideal = "least overhead over Ideal Switch, d = 4"
    yield Claim("5.5", ideal, "x", both_ways(4).mean_hops, 5.7, 1, note="The mean path length.")
    overhead = "Mean path length / d, for a fat-tree with 1 / d of the bandwidth."
    yield Claim("5.5", "least overhead over Fat-tree, d = 4", "x", both_ways(4).mean_hops / 4, 1.4, 1, note=overhead)


def _of_loads() -> Iterator[Claim]:
    for degree, printed in ((4, 39), (8, 59)):
        what = f"least loaded link, below the most loaded, d = {degree}"
        below, series = 100 * (1 - both_ways(degree).least_load), "least loaded link, below the most loaded, d = 4, 8"
        yield Claim("Fig. 15", what, "%", below, printed, note=_BOTH_WAYS, series=series)
        yield Claim("Fig. 15", f"{what}, one-way", "%", 100 * (1 - one_way(degree).least_load), note=_ONE_WAY)
        for topology, note in ((both_ways(degree), _BOTH_WAYS), (one_way(degree), _ONE_WAY)):
            ways = "" if note is _BOTH_WAYS else ", one-way"
            most = f"most loaded link over that of a linear program's routes, d = {degree}{ways}"
            yield Claim("Fig. 15", most, "x", topology.excess, decimals=2, note=note)


def _of_sharing() -> Iterator[Claim]:
    printed: dict[sharing.Name, tuple[float, float]] = {"Fat-tree": (1.7, 3.0), "Oversub. Fat-tree": (1.15, 1.4)}
    for fabric, (mean, tail) in printed.items():
        ours = sharing.ratios(fabric)
        decimals = 2 if fabric == "Oversub. Fat-tree" else 1
        for what, value, said, digits in (
            ("mean iteration time", ours.mean, mean, decimals),
            ("99th percentile", ours.tail, tail, 1),
        ):
            series = f"{what}, Oversub. Fat-tree, Fat-tree over TopoOpt"
            yield Claim(
                "Fig. 16", f"{what}, {fabric} over TopoOpt", "x", value, said, digits, note=_SHARED, series=series
            )
        what = f"99th percentile where every job counts alike, {fabric} over TopoOpt"
        yield Claim("Fig. 16", what, "x", ours.tail_of_jobs, decimals=1, note=_SHARED)
    full = sharing.times("Fat-tree", 100).tail / sharing.times("TopoOpt", 100).tail
    yield Claim("Fig. 16", "99th percentile at full load, Fat-tree over TopoOpt", "x", full, 3.4, 1, note=_SHARED)
    for seconds, look_ahead in ((300.0, False), (300.0, True), (0.01, False)):
        what = f"wait for a shard at 80 % load, {seconds:g} s to set it{', with look-ahead' if look_ahead else ''}"
        waits = sharing.waits_s(seconds, look_ahead=look_ahead)
        yield Claim("App. C", what, "s", waits, note="Our arrivals: the paper has none.")


def _of_late_circuits() -> Iterator[Claim]:
    """BERT where GPUs compute longer than they communicate, so that circuits are found for what has ended."""
    gpu, servers = iterations.SINGLE_PRECISION, reconfiguration.SERVERS
    topoopt = reconfiguration.seconds("BERT", None, 8, 100, servers, gpu)
    for latency_s, name in ((1e-2, "10 ms"), (1e-6, "1 us")):
        for forwarding in (True, False):
            how = reconfiguration.ocs(latency_s, forwarding=forwarding)
            ratio = reconfiguration.seconds("BERT", how, 8, 100, servers, gpu) / topoopt
            with_it = "with" if forwarding else "without"
            what = f"BERT, {name}: iteration time in single precision, {with_it} forwarding over TopoOpt"
            yield Claim("Fig. 17", what, "x", ratio, decimals=1, note=_CHANGING)


def _of_reconfiguration() -> Iterator[Claim]:
    for model, servers in reconfiguration.CLUSTERS.items():
        topoopt, ocs, ml = (reconfiguration.seconds(model, how, 4, 100, servers) for how in reconfiguration.DEDICATED)
        changing, sip_ml = (note.replace("32 servers", f"{servers} servers") for note in (_CHANGING, _SIP_ML))
        what = f"{model}: iteration time"
        yield Claim("Fig. 11", f"{what}, OCS-reconfig over TopoOpt", "x", ocs / topoopt, decimals=1, note=changing)
        alike = 1.0 if model == "CANDLE" else None
        yield Claim("Fig. 11", f"{what}, SiP-ML over TopoOpt", "x", ml / topoopt, alike, 1, note=sip_ml)
    yield from _of_late_circuits()
    for model in reconfiguration.MANY_TO_MANY:
        flat = reconfiguration.seconds(model, SIP_ML, 4, 200) / reconfiguration.seconds(model, SIP_ML, 4, 100)
        what, series = (f"{which}: iteration time of SiP-ML, 200 over 100 Gbit/s" for which in (model, "DLRM, NCF"))
        yield Claim("Fig. 11", what, "x", flat, 1.0, 1, note=_SIP_ML, series=series)
    for model in ("BERT", "DLRM"):
        topoopt = reconfiguration.seconds(model, None)
        times = {
            (latency_s, forwarding): reconfiguration.seconds(
                model, reconfiguration.ocs(latency_s, forwarding=forwarding)
            )
            for latency_s in reconfiguration.LATENCIES_S
            for forwarding in (True, False)
        }
        for latency_s, name in ((1e-2, "10 ms"), (1e-6, "1 us")):
            relayed, direct = times[latency_s, True], times[latency_s, False]
            matches = 1.0 if latency_s < 1e-3 else None
            suffers = 1.0 if latency_s < 1e-3 and model == "DLRM" else None
            what = f"{model}, {name}: iteration time"
            yield Claim(
                "Fig. 17", f"{what}, without forwarding over TopoOpt", "x", direct / topoopt, matches, 1, note=_CHANGING
            )
            yield Claim(
                "Fig. 17",
                f"{what}, with forwarding over TopoOpt",
                "x",
                relayed / topoopt,
                suffers,
                1,
                "more than",
                _CHANGING,
            )
        if model == "DLRM":
            direct, topoopt_s = (
                reconfiguration.seconds(model, how, 8, 100, 16) for how in (reconfiguration.OFTEN, None)
            )
            what = "DLRM, 1 us, measured every 0.3 ms: iteration time, without forwarding over TopoOpt"
            yield Claim("Fig. 17", what, "x", direct / topoopt_s, 1.0, 1, note="16 servers.")
        ratios = [times[latency_s, True] / times[latency_s, False] for latency_s in reconfiguration.LATENCIES_S]
        if model == "BERT":
            what = "BERT: iteration time, with forwarding over without, mean over latencies"
            yield Claim("Fig. 17", what, "x", fmean(ratios), 1.4, 1, note=_CHANGING)
        else:
            what = "DLRM: iteration time, with forwarding over without, mean over latencies"
            yield Claim("Fig. 17", what, "x", fmean(ratios), 1.0, 1, "less than", _CHANGING)
        for said, how in reconfiguration.KEPT.items():
            kept = reconfiguration.seconds(model, how) / topoopt
            what = f"{model}, 10 ms: iteration time, {said} forwarding over TopoOpt, circuits kept while nothing waits"
            yield Claim("Fig. 17", what, "x", kept, decimals=1, note=_CHANGING)
