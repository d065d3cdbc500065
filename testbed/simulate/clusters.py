# SPDX-License-Identifier: Apache-2.0
"""Runs a cluster spec: every strategy with every seed, on all cores."""

from collections.abc import Iterator

from sim.cluster import Result, generate, simulate
from testbed.progress import Steps
from testbed.spec.cluster import ClusterSpec


def run(spec: ClusterSpec, processes: int | None = None) -> dict[str, list[Result]]:
    """The results by strategy, in the order of seeds. All strategies get the same traces.

    `processes` is their number; None: as many as there are cores.
    """
    from joblib import Parallel, delayed

    cases = [(strategy.name, seed) for strategy in spec.strategies for seed in range(1, spec.seeds + 1)]
    found: dict[tuple[str, int], Result] = {}
    with Steps(len(cases), every_s=1.0) as steps:
        steps.now("simulating")
        workers = Parallel(n_jobs=processes or -1, return_as="generator_unordered")
        done: Iterator[tuple[str, int, Result]] = workers(delayed(_one)(spec, name, seed) for name, seed in cases)
        for name, seed, result in done:
            found[name, seed] = result
            steps.advance()
            steps.now(f"{name}, seed {seed}")
    return {
        strategy.name: [found[strategy.name, seed] for seed in range(1, spec.seeds + 1)] for strategy in spec.strategies
    }


def _one(spec: ClusterSpec, name: str, seed: int) -> tuple[str, int, Result]:
    strategy = next(strategy for strategy in spec.strategies if strategy.name == name)
    return name, seed, simulate(generate(spec.trace.shape, seed), spec.scenario(strategy, seed))
