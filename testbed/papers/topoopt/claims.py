# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers compared with ours."""

from collections.abc import Iterator
from statistics import fmean

from testbed.papers.claim import Claim
from testbed.papers.findings import Drawing, Findings
from testbed.papers.topoopt import cost
from testbed.papers.topoopt.forwarding import RATIOS, best_one_way, both_ways, one_way

TEXT = """
So far cost, path lengths and taxes are checked; iteration times (Figures 11, 12, 16, 17, 27, 28) are not. [Optical
circuits](../topoopt.md) shows the algorithms, also with real packets.

- Printed path lengths and taxes are those of circuits in both directions, as the released code makes them: a ring takes
  two ports of a server. With circuits that lead one way, the same ports have twice as many rings: paths are shorter for
  d = 4, and longer for d = 8.
- The best rings of stride 1 and three other coprime strides have 4.28 hops; those of Algorithm 3 have 4.52.
- The paper does not print its cost formulas. [cost.py](../../testbed/papers/topoopt/cost.py) has a rule that was chosen
  to give the ratio of OCSs to patch panels; it then gives 3.42 for Ideal Switch over TopoOpt (printed: 3.2).
- With routes by Algorithm 4 the loads of circuits differ less than printed for d = 4, and more for d = 8. Ties between
  equally short paths decide, and the paper does not say how it breaks them.
"""

_SETTINGS = ((4, 100), (8, 200))
"""Degree and link rate in Gbit/s of Figure 10."""
_BATCHES = tuple(64 * 2**k for k in range(6))
_BOTH_WAYS = "Circuits in both directions, with the strides of the released code."
_ONE_WAY = "Circuits that lead one way, strides by Algorithm 3."


def find(quick: bool) -> Findings:
    """All claims and figures. With `quick`, without the exhaustive search and the figures."""
    claims = [*_of_cost(), *_of_taxes(), *_of_paths(quick), *_of_loads()]
    if quick:
        return Findings(claims)
    from testbed.papers.topoopt import plots

    return Findings(
        claims,
        (
            Drawing(
                "topoopt-cost",
                "Figure 10: cost by servers; Ideal Switch costs three to four times as much as TopoOpt",
                plots.costs,
            ),
            Drawing(
                "topoopt-tax",
                "Figure 13: the bandwidth tax grows with the batch to 3 at d = 4; one-way circuits pay less",
                plots.taxes,
            ),
        ),
    )


def _of_cost() -> Iterator[Claim]:
    rule = "By a rule of ours; see above."
    switched = fmean(cost.circuit_switches(*one) / cost.patch_panels(*one) for one in _SETTINGS)
    yield Claim("5.2", "cost with OCSs over cost with patch panels, mean", "x", switched, 1.33, 2, note=rule)
    ideal = fmean(cost.ideal_switch(*one) / cost.patch_panels(*one) for one in _SETTINGS)
    yield Claim("5.2", "cost of Ideal Switch over that of TopoOpt, mean", "x", ideal, 3.2, 1, note=rule)
    cheapest = min(
        getattr(cost, name)(*one) / cost.expander(*one)
        for one in _SETTINGS
        for name in ("patch_panels", "circuit_switches", "ideal_switch")
    )
    said = 'The paper says "the least expensive". SiP-ML, its most expensive fabric, has no prices in Table 2.'
    yield Claim("5.2", "cheapest other fabric over Expander", "x", cheapest, 1, 0, "more than", said)
    yield Claim("App. G", "switch ports of a fat-tree with k = 8", "ports", cost.FAT_TREE_PORTS * 8**3 / 4, 640)


def _of_taxes() -> Iterator[Claim]:
    printed = {(4, 64): 1.11, (8, 64): 1.05, (4, 2048): 3.03}
    for degree in (4, 8):
        topology, ours = both_ways(degree), one_way(degree)
        for batch, ratio in zip(_BATCHES, RATIOS, strict=True):
            what = f"bandwidth tax, d = {degree}, batch {batch}"
            yield Claim("Fig. 13", what, "x", topology.tax(ratio), printed.get((degree, batch)), 2, note=_BOTH_WAYS)
            yield Claim("Fig. 13", f"{what}, one-way", "x", ours.tax(ratio), decimals=2, note=_ONE_WAY)


def _of_paths(quick: bool) -> Iterator[Claim]:
    for degree, printed, decimals in ((4, 5.7, 1), (8, 3.0, 0)):
        what = f"mean path length, d = {degree}"
        yield Claim("Fig. 14", what, "hops", both_ways(degree).mean_hops, printed, decimals, note=_BOTH_WAYS)
        yield Claim("Fig. 14", f"{what}, one-way", "hops", one_way(degree).mean_hops, decimals=2, note=_ONE_WAY)
    if not quick:
        best = best_one_way(4)
        strides = ", ".join(f"+{stride}" for stride in best.strides)
        said = f"Strides {strides}, by exhaustive search."
        yield Claim("Fig. 14", "mean path length, d = 4, best one-way", "hops", best.mean_hops, decimals=2, note=said)
    overhead = "The mean path length over d: a fat-tree of equal cost is taken to have 1 / d of the bandwidth."
    yield Claim("5.5", "least overhead over Fat-tree, d = 4", "x", both_ways(4).mean_hops / 4, 1.4, 1, note=overhead)


def _of_loads() -> Iterator[Claim]:
    for degree, printed in ((4, 39), (8, 59)):
        what = f"least loaded link, below the most loaded, d = {degree}"
        yield Claim("Fig. 15", what, "%", 100 * (1 - both_ways(degree).least_load), printed, note=_BOTH_WAYS)
        yield Claim("Fig. 15", f"{what}, one-way", "%", 100 * (1 - one_way(degree).least_load), note=_ONE_WAY)
