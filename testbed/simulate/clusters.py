# SPDX-License-Identifier: Apache-2.0
"""Runs a cluster spec: every strategy with every seed, on all cores."""

from collections.abc import Iterator

from sim.cluster import Job, Result, Scenario, TraceError, simulate
from testbed.errors import InputError, sentence_of
from testbed.progress import Steps
from testbed.spec.cluster import ClusterSpec


def run(spec: ClusterSpec, processes: int | None = None) -> dict[str, list[Result]]:
    """The results by strategy, in the order of seeds. All strategies get the same traces.

    `processes` is their number; None: as many as there are cores. Raises InputError for a trace that cannot be read.
    """
    from joblib import Parallel, delayed

    try:
        traces = {seed: spec.jobs(seed) for seed in range(1, spec.seeds + 1)}
    except TraceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(sentence_of(error)) from error
    cases = [(strategy, seed) for strategy in spec.strategies for seed in traces]
    found: dict[tuple[str, int], Result] = {}
    with Steps(len(cases), every_s=1.0) as steps:
        steps.now("simulating")
        workers = Parallel(n_jobs=processes or -1, return_as="generator_unordered")
        done: Iterator[tuple[str, int, Result]] = workers(
            delayed(_one)(strategy.name, seed, traces[seed], spec.scenario(strategy, seed)) for strategy, seed in cases
        )
        for name, seed, result in done:
            found[name, seed] = result
            steps.advance()
            steps.now(f"{name}, seed {seed}")
    return {strategy.name: [found[strategy.name, seed] for seed in traces] for strategy in spec.strategies}


def _one(name: str, seed: int, jobs: list[Job], scenario: Scenario) -> tuple[str, int, Result]:
    return name, seed, simulate(jobs, scenario)
