# SPDX-License-Identifier: Apache-2.0
"""Iteration times on a dedicated cluster of 128 servers (sections 5.3 and 5.4, Figures 11, 12 and 28).

Strategies are those that section 5.1 names: pure data parallelism, or embedding tables on one server each ("hybrid");
the shorter one counts on each fabric. Times are estimates of `testbed.research.topoopt.estimates`. Servers
compute as four A100 of the data sheet: in half precision on matrix units, or in single precision without them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal, get_args

from testbed.research.papers.ahead import Case, Remembered
from testbed.research.papers.topoopt.cost import FAT_TREE
from testbed.research.papers.topoopt.forwarding import SERVERS, both_ways
from testbed.research.topoopt.alternate import alternate
from testbed.research.topoopt.estimates import Estimator, Job, Strategy, hybrid
from testbed.research.topoopt.fabrics import Fabric, direct, direct_rings, expander, oversubscribed, switch
from testbed.research.topoopt.iterations import simulate_s
from testbed.research.topoopt.search import coordinate_descent, markov_chain, starts
from testbed.training.hardware import A100, Accelerator
from testbed.training.networks import LayeredModel, bert, candle, dlrm, ncf, resnet50, vgg16
from testbed.training.per_operator import roofline

GPUS = 4
RATES_GBPS = (10, 25, 40, 100, 200)

MODELS: dict[str, Callable[[], LayeredModel]] = {
    "CANDLE": candle,
    "VGG": vgg16,
    "BERT": bert,
    "DLRM": dlrm,
    "NCF": ncf,
    "ResNet50": resnet50,
}
Name = Literal["TopoOpt", "Ideal Switch", "Fat-tree", "Oversub. Fat-tree", "Expander", "TopoOpt, both ways"]
FABRICS: tuple[Name, ...] = get_args(Name)
"""TopoOpt's circuits lead one way, as TopologyFinder finds them, or both ways, as the paper's released code makes them
(`testbed.research.papers.topoopt.forwarding`)."""

SINGLE_PRECISION = replace(A100, name="A100, single precision", matrix_flops=19.5e12, matrix_efficiency=0.95)
"""The same data sheet, and the share of the peak that Calculon takes. With it a server's dense layers reach 74 TFLOP/s;
65 to 72 follow from the released profiles."""


def job(network: LayeredModel, servers: int = SERVERS, gpu: Accelerator = A100) -> Job:
    """An iteration with List 1's batch for each GPU."""
    return Job(network, servers, GPUS * servers * network.batch, roofline(gpu, GPUS), GPUS, gpu.memory_bytes)


@cache
def of_model(model: str, gpu: Accelerator = A100) -> Job:
    """A model of Figure 11."""
    return job(MODELS[model](), gpu=gpu)


@cache
def of_batch(batch: int, gpu: Accelerator = A100) -> Job:
    """The DLRM of Figure 12: 128 tables, and this batch for each GPU."""
    return job(replace(dlrm(tables=128), batch=batch), gpu=gpu)


def all_to_all_ratio(of: Job) -> float:
    """Bytes of all-to-all over those that all-reduces send, with embedding tables on one server each."""
    demand = of.demand(hybrid(of))
    return float(demand.mp.sum()) / sum(group.sent_bytes for group in demand.groups)


@lru_cache(maxsize=512)
def seconds(of: Job, fabric: Name, degree: int, gbps: int) -> float:
    """The estimate for an iteration; every server has `degree` links of that rate."""
    return min(Estimator(of, _fabric(of, strategy, fabric, degree, gbps))(strategy).seconds for strategy in starts(of))


def mean_ratio(model: str, slow: Name, fast: Name, degree: int = 4, gpu: Accelerator = A100) -> float:
    """How many times longer an iteration takes on one fabric than on another, the mean over all rates."""
    of = of_model(model, gpu)
    each = [seconds(of, slow, degree, gbps) / seconds(of, fast, degree, gbps) for gbps in RATES_GBPS]
    return sum(each) / len(each)


@Remembered
def alternated(model: str, servers: int = 32, degree: int = 4, gbps: int = 100) -> tuple[float, float]:
    """Simulated seconds of an iteration with the best strategy of `starts`, and with the one that `alternate` finds.

    Section 4.1. `gbps` is the rate of each of a server's `degree` circuits.
    """
    of, rate_bps = job(MODELS[model](), servers), 1e9 * gbps
    plain = min(simulate_s(of, strategy, direct(of.demand(strategy), degree, rate_bps)) for strategy in fitting(of))
    found = alternate(of, degree, rate_bps, single=False).simulated_s or plain
    return plain, found


@dataclass(frozen=True, slots=True)
class SearchComparison:
    """What two searches found from the same strategy on the same circuits. Times are estimated seconds."""

    chain_s: float
    """The estimate for the best strategy of FlexFlow's Markov chain."""
    chain_estimated: int
    """The number of strategies that the chain estimated."""
    descent_s: float
    """The estimate for the best strategy of coordinate descent."""
    descent_estimated: int


@Remembered
def compare_searches(model: str, servers: int = 32, degree: int = 4, gbps: int = 100) -> SearchComparison:
    """FlexFlow's Markov chain and coordinate descent, both from the best strategy of `starts` and on its circuits."""
    of, rate_bps = job(MODELS[model](), servers), 1e9 * gbps
    begun = [(strategy, direct(of.demand(strategy), degree, rate_bps)) for strategy in fitting(of)]
    start, circuits = min(begun, key=lambda pair: Estimator(of, pair[1])(pair[0]).seconds)
    chain, descent = Estimator(of, circuits), Estimator(of, circuits)
    chain_s = chain(markov_chain(chain, start)).seconds
    descent_s = descent(coordinate_descent(descent, start, single=False)).seconds
    return SearchComparison(chain_s, chain.estimated, descent_s, descent.estimated)


def cases() -> list[Case]:
    """Every search that the claims need, for `ahead`."""
    return [(search, (model,)) for search in (compare_searches, alternated) for model in MODELS]


def fitting(of: Job) -> list[Strategy]:
    """Those of `starts` that fit into memory."""
    return [strategy for strategy in starts(of) if Estimator(of, switch(of.servers, 1.0))(strategy).fits]


def _fabric(of: Job, strategy: Strategy, fabric: Name, degree: int, gbps: int) -> Fabric:
    rate_bps = 1e9 * gbps
    if fabric == "TopoOpt":
        found = _circuits(of, strategy, degree)
    elif fabric == "Expander":
        found = _expander(of.servers, degree)
    elif fabric == "TopoOpt, both ways":
        found = _both_ways(degree)
    elif fabric == "Oversub. Fat-tree":
        found = _oversubscribed(of.servers, degree)
    else:
        return switch(of.servers, degree * rate_bps / (1 if fabric == "Ideal Switch" else FAT_TREE))
    return replace(found, links_bps=rate_bps * found.links_bps)


@lru_cache(maxsize=256)
def _circuits(of: Job, strategy: Strategy, degree: int) -> Fabric:
    """Circuits of 1 bit/s: they do not depend on their rate."""
    return direct(of.demand(strategy), degree, 1.0)


@cache
def _expander(servers: int, degree: int) -> Fabric:
    return expander(servers, degree, 1.0)


@cache
def _oversubscribed(servers: int, degree: int) -> Fabric:
    return oversubscribed(servers, degree)


@cache
def _both_ways(degree: int) -> Fabric:
    return direct_rings(SERVERS, both_ways(degree).strides, 1.0)
