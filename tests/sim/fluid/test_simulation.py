# SPDX-License-Identifier: Apache-2.0
"""Delivery times, compared with closed forms, a plain Python simulation, and bounds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.planners import max_min_rates
from sim.fluid import Messages, Simulation
from sim.paths import Paths

Floats = npt.NDArray[np.float64]


def simulation_of(rows: npt.ArrayLike, rate_bps: npt.ArrayLike, stale_s: float = 0.0) -> Simulation:
    """A channel per entry of `rows`, each a list of lanes' links."""
    simulation = Simulation(rate_bps, stale_s=stale_s)
    simulation.add_channels(Paths.of(rows))
    return simulation


def test_colliding_flows_share_the_rate() -> None:
    """Two flows share a link equally until the shorter one ends; then the other has all of it."""
    simulation = simulation_of([[[0]], [[0]], [[1]]], [10, 10])
    simulation.add_messages(Messages(channel=[0, 1, 2], bits=[10, 30, 30]))
    assert simulation.advance() == []
    assert simulation.delivered_s() == pytest.approx([2, 4, 3])


def test_a_channel_sends_one_message_after_the_other() -> None:
    simulation = simulation_of([[[0]]], [10])
    simulation.add_messages(Messages(channel=0, bits=[10, 20], delay_s=[5, 0], release_s=[1, 0]))
    simulation.advance()
    assert simulation.begun_s() == pytest.approx([2, 0])  # the second was ready first
    assert simulation.delivered_s() == pytest.approx([3 + 5, 2])


def test_messages_wait_for_others_and_for_pauses() -> None:
    simulation = simulation_of([[[0]]], [10])
    first = simulation.add_messages(Messages(channel=[0, -1, 0], bits=10, delay_s=[0.5, 2, 0]))
    simulation.add_waits([first, first + 1], [first + 1, first + 2])
    simulation.advance()
    assert simulation.delivered_s() == pytest.approx([1.5, 3.5, 4.5])


def test_messages_that_one_delivery_releases_are_sent_in_order() -> None:
    simulation = simulation_of([[[0]]], [10])
    gate = simulation.add_messages(Messages(channel=-1, delay_s=1))
    first = simulation.add_messages(Messages(channel=[0] * 4, bits=10))
    simulation.add_waits([gate] * 4, first + np.arange(4))
    simulation.advance()
    assert simulation.delivered_s() == pytest.approx([1, 2, 3, 4, 5])


def test_later_messages_may_wait_for_delivered_ones() -> None:
    simulation = simulation_of([[[0]]], [10])
    simulation.add_messages(Messages(channel=0, bits=10, milestone=True))
    assert simulation.advance() == [0]
    second = simulation.add_messages(Messages(channel=0, bits=10))
    simulation.add_waits([0], [second])
    simulation.advance()
    assert simulation.delivered_s() == pytest.approx([1, 2])
    with pytest.raises(ValueError, match="before the first advance"):
        simulation.add_waits([0], [second])


def test_lanes_pull_at_the_rate_of_their_paths() -> None:
    """One lane has a link of its own, the other shares one: together they send at 10 + 5."""
    simulation = simulation_of([[[0], [1]], [[1], [1]]], [10, 10])
    simulation.add_messages(Messages(channel=[0, 1], bits=[30, 1e3]))
    simulation.advance(1)
    assert simulation.rates_bps() == pytest.approx([10, 10 / 3, 10 / 3, 10 / 3])
    simulation.advance()
    assert simulation.delivered_s()[0] == pytest.approx(30 / (10 + 10 / 3))


def test_spraying_is_limited_by_the_most_loaded_path() -> None:
    simulation = Simulation([10, 2, 10])
    simulation.add_channels(Paths.sprayed([[[0, 1], [0, 2]]]))
    simulation.add_messages(Messages(channel=0, bits=40))
    simulation.advance()
    assert simulation.delivered_s() == pytest.approx([10])  # at 4, of which 2 go over link 1
    assert simulation.link_bits() == pytest.approx([40, 20, 20])


def test_a_link_dies_and_its_flow_moves() -> None:
    simulation = simulation_of([[[0]]], [10, 5])
    simulation.add_messages(Messages(channel=0, bits=100))
    simulation.advance(4)
    simulation.set_rate(0, 0)
    assert simulation.advance() == []
    assert simulation.undelivered == 1
    simulation.advance(6)
    simulation.set_paths([0], Paths.of([[[1]]]))
    simulation.advance()
    assert simulation.delivered_s() == pytest.approx([6 + 60 / 5])
    assert simulation.link_bits() == pytest.approx([40, 60])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"channel": 3}, "channel that does not exist"),
        ({"bits": -1.0}, "size of a message"),
        ({"bits": np.nan}, "size of a message"),
        ({"delay_s": np.inf}, "delay of a message"),
        ({"release_s": -1.0}, "release time of a message"),
    ],
)
def test_impossible_messages_are_rejected(change: dict[str, float], expected: str) -> None:
    simulation = simulation_of([[[0]]], [10])
    with pytest.raises(ValueError, match=expected):
        simulation.add_messages(Messages(**{"channel": 0, "bits": 1.0, **change}))
    assert simulation.undelivered == 0


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([[[1]]], "does not exist"), ([[[0, 0]]], "crosses a link twice"), ([[[-1]]], "crosses no link")],
)
def test_impossible_paths_are_rejected(rows: list[list[list[int]]], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        simulation_of(rows, [10])


def plain(capacity: Floats, rows: npt.NDArray[np.int32], bits: Floats, release: Floats) -> Floats:
    """Delivery times of single-flow messages, with all rates recomputed at every event."""
    left, delivered, now = bits.copy(), np.full(len(bits), np.nan), 0.0
    while np.isnan(delivered).any():
        busy = np.flatnonzero(np.isnan(delivered) & (release <= now))
        rate = max_min_rates(capacity, rows[busy], np.ones(busy.size))
        coming = release[release > now]
        step = min((left[busy] / rate).min(initial=np.inf), (coming - now).min(initial=np.inf))
        left[busy] -= rate * step
        now += step
        done = busy[left[busy] <= 1e-9 * bits[busy]]
        delivered[done] = now
    return delivered


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_deliveries_equal_those_of_a_plain_simulation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    links, flows = int(rng.integers(2, 12)), int(rng.integers(1, 40))
    capacity = rng.uniform(1, 10, links)
    rows = np.stack([rng.permutation(links)[:2] for _ in range(flows)]).astype(np.int32)
    rows[rng.random(flows) < 0.3, 1] = -1
    bits, release = rng.uniform(1, 50, flows), np.where(rng.random(flows) < 0.5, 0, rng.uniform(0, 20, flows))
    expected = plain(capacity, rows, bits, release)
    exact, late = (simulation_of(rows[:, None, :], capacity, stale_s) for stale_s in (0.0, 0.5))
    for simulation in (exact, late):
        simulation.add_messages(Messages(channel=np.arange(flows), bits=bits, release_s=release))
        simulation.advance()
    assert exact.delivered_s() == pytest.approx(expected, rel=1e-7)
    crossed = np.bincount(rows[rows >= 0], np.broadcast_to(bits[:, None], rows.shape)[rows >= 0], links)
    for simulation in (exact, late):
        assert simulation.link_bits() == pytest.approx(crossed, rel=1e-7)
        end = np.nanmax(simulation.delivered_s())
        assert end >= (crossed / capacity).max() * (1 - 1e-9)  # no link carries more than it can
        alone = bits / np.where(rows >= 0, capacity[rows], np.inf).min(axis=1)
        assert (simulation.delivered_s() - release >= alone * (1 - 1e-9)).all()


def test_equal_simulations_give_equal_results() -> None:
    rng = np.random.default_rng(4)
    rows = rng.integers(0, 8, (60, 3, 1))
    times = []
    for _ in range(2):
        simulation = simulation_of(rows, np.full(8, 10.0))
        simulation.add_messages(Messages(channel=np.arange(60), bits=np.arange(1, 61)))
        simulation.advance()
        times.append(simulation.delivered_s())
    assert (times[0] == times[1]).all()
