# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates, compared with a linear program and with their definition."""

from __future__ import annotations

import highspy
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.planners.rates import max_min_rates_reference
from sim.fluid import Messages, Simulation
from sim.paths import Paths

Floats = npt.NDArray[np.float64]
EXACT = 1e-9


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Floats, Floats]:
    """Capacities of links, shares by flow and link (each flow uses at least one link), and weights."""
    links, flows = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    capacity = draw(st.lists(st.integers(1, 20), min_size=links, max_size=links))
    share = np.zeros((flows, links))
    for flow in range(flows):
        for link in draw(st.sets(st.integers(0, links - 1), min_size=1)):
            share[flow, link] = draw(st.sampled_from([1.0, 1.0, 0.5, 0.25]))
    weight = draw(st.lists(st.sampled_from([1.0, 1.0, 2.0]), min_size=flows, max_size=flows))
    return np.array(capacity, dtype=np.float64), share, np.array(weight)


def ragged(share: Floats, weight: Floats) -> Paths:
    """One channel with one flow for each row of `share`."""
    rows = [np.flatnonzero(row) for row in share]
    return Paths(
        flows=np.arange(len(rows) + 1),
        uses=np.concatenate(([0], np.cumsum([row.size for row in rows]))),
        links=np.concatenate(rows).astype(np.int32),
        shares=np.concatenate([share[flow, row] for flow, row in enumerate(rows)]),
        weight=weight,
    )


def linear_program(capacity: Floats, share: Floats, weight: Floats) -> Floats:
    """Max-min rates by definition: maximise the lowest rate, then the lowest of the others, and so on."""
    fixed: dict[int, float] = {}
    while len(fixed) < len(share):
        level = _most(capacity, share, weight, fixed, 0.0, None)
        stopped = [
            flow
            for flow in range(len(share))
            if flow not in fixed and _most(capacity, share, weight, fixed, level, flow) <= level * weight[flow] + 1e-6
        ]
        assert stopped
        fixed |= {flow: level * weight[flow] for flow in stopped}
    return np.array([fixed[flow] for flow in range(len(share))])


def _most(
    capacity: Floats, share: Floats, weight: Floats, fixed: dict[int, float], level: float, flow: int | None
) -> float:
    """The highest rate of the flow, or common level (None), while the others get at least `level`."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    common = solver.addVariable(lb=level)
    rates = [
        solver.addVariable(lb=fixed[f] * (1 - 1e-12), ub=fixed[f]) if f in fixed else solver.addVariable(lb=0)
        for f in range(len(share))
    ]
    for link, most in enumerate(capacity):
        solver.addConstr(sum(share[f, link] * rates[f] for f in range(len(share))) + 0 * common <= most)
    for f, rate in enumerate(rates):
        if f not in fixed:
            solver.addConstr(rate >= weight[f] * common)
    solver.maximize(common if flow is None else rates[flow] + 0 * common)
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_rates_are_those_of_a_linear_program(problem: tuple[Floats, Floats, Floats]) -> None:
    capacity, share, weight = problem
    simulation = Simulation(capacity)
    simulation.add_channels(ragged(share, weight))
    simulation.add_messages(Messages(channel=np.arange(len(share)), bits=1e9))
    simulation.advance(1e-9)
    assert simulation.rates_bps() == pytest.approx(linear_program(capacity, share, weight), rel=1e-5)


@given(problems(), st.data())
@settings(max_examples=60, deadline=None)
def test_rates_stay_exact_as_flows_start_and_stop(problem: tuple[Floats, Floats, Floats], data: st.DataObject) -> None:
    capacity, share, weight = problem
    share = (share > 0).astype(np.float64)  # the reference knows whole paths only
    flows = len(share)
    simulation = Simulation(capacity)
    simulation.add_channels(ragged(share, weight))
    simulation.add_messages(
        Messages(
            channel=np.repeat(np.arange(flows), 2),
            bits=data.draw(st.lists(st.integers(1, 30), min_size=2 * flows, max_size=2 * flows)),
            release_s=data.draw(st.lists(st.integers(0, 12), min_size=2 * flows, max_size=2 * flows)),
        )
    )
    rows = np.where(share > 0, np.arange(len(capacity), dtype=np.int32), -1).astype(np.int32)
    for moment in np.arange(0.3, 30, 0.7):
        if data.draw(st.integers(0, 4)) == 0:
            link = data.draw(st.integers(0, len(capacity) - 1))
            capacity[link] = data.draw(st.sampled_from([0.5, 3.0, 20.0]))
            simulation.set_rate(link, capacity[link])
        simulation.advance(moment)
        rates = simulation.rates_bps()
        busy = rates > 0
        expected = max_min_rates_reference(capacity, rows[busy], weight[busy])
        assert rates[busy] == pytest.approx(expected, rel=EXACT)
    simulation.advance()
    assert simulation.undelivered == 0


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
@settings(max_examples=15, deadline=None)
def test_no_link_is_overfull_and_every_flow_has_a_bottleneck(seed: int, lanes: int) -> None:
    """On a leaf-spine, after every departure: each flow has a full link where no other flow gets more."""
    rng = np.random.default_rng(seed)
    leaves, spines, hosts = 6, 4, 4
    nics = leaves * hosts
    src, dst = np.arange(nics), rng.permutation(nics)
    spine = rng.integers(0, spines, (nics, lanes))
    rows = np.stack(
        [
            np.broadcast_to(src[:, None], spine.shape),
            2 * nics + (src // hosts)[:, None] * spines + spine,
            2 * nics + leaves * spines + (dst // hosts)[:, None] * spines + spine,
            np.broadcast_to(nics + dst[:, None], spine.shape),
        ],
        axis=2,
    )
    capacity = rng.choice([5.0, 10.0], 2 * nics + 2 * leaves * spines)
    simulation = Simulation(capacity)
    simulation.add_channels(Paths.of(rows))
    simulation.add_messages(Messages(channel=np.arange(nics), bits=rng.uniform(10, 100, nics), milestone=True))
    flat = rows.reshape(-1, 4)
    while simulation.undelivered:
        simulation.advance(simulation.now_s)  # rates follow
        rates = simulation.rates_bps()
        load = np.bincount(flat.ravel(), np.repeat(rates, 4), capacity.size)
        assert (load <= capacity * (1 + EXACT)).all()
        most = np.zeros(capacity.size)
        np.maximum.at(most, flat.ravel(), np.repeat(rates, 4))
        full = load >= capacity * (1 - EXACT)
        bottleneck = full[flat] & (rates[:, None] >= most[flat] * (1 - EXACT))
        assert bottleneck[rates > 0].any(axis=1).all()
        assert (rates.reshape(nics, lanes).sum(axis=1) > 0).sum() == simulation.undelivered
        simulation.advance()
