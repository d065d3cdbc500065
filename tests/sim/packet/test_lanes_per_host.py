# SPDX-License-Identifier: Apache-2.0
"""Lanes of a host that all its peers share (ParaLet, section 5.3), beside lanes for each peer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import PortRef
from sim.packet import Options, Receiver, Simulation
from tests.sim.packet.test_simulation import LINKS, OPTIONS, all_accounted_for, row, simulation_of

SHARED = replace(OPTIONS, lanes_per_host=True)
FAR = replace(OPTIONS, link_delay_s=100e-6, window_bdp=0.001)
"""Round trips of 800 us, and windows of two packets, which are the least."""


def fan_out(options: Options, peers: int, lanes: int, packets: int) -> Simulation:
    """Messages of so many packets from h1 to h4 and the hosts after it."""
    spines = [lane % 2 for lane in range(lanes)]
    rows = [[row("h1", f"h{4 + peer}", spine) for spine in spines] for peer in range(peers)]
    simulation = simulation_of(rows, options)
    simulation.add_messages(np.arange(peers), packets * options.payload_bytes)
    return simulation


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_a_host_with_one_peer_sends_as_with_lanes_for_the_peer(lanes: int) -> None:
    ends = []
    for options in (OPTIONS, SHARED):
        simulation = fan_out(options, 1, lanes, 500)
        simulation.advance()
        ends.append(simulation.delivered_s()[0])
    assert ends[1] == pytest.approx(ends[0], rel=0.01)


@pytest.mark.parametrize("peers", [2, 3])
def test_all_peers_share_the_window_of_a_lane_and_take_turns(peers: int) -> None:
    """With windows of two packets, a lane for each peer sends as many times as much in a round trip."""
    own, shared = fan_out(FAR, peers, 1, 80), fan_out(replace(FAR, lanes_per_host=True), peers, 1, 80)
    own.advance()
    shared.advance()
    assert shared.now_s == pytest.approx(peers * own.now_s, rel=0.03)
    turn_s = shared.now_s / (10 * peers)
    assert np.ptp(shared.delivered_s()) <= (peers + 1) * turn_s * 1.1  # the first has two turns before the others come
    assert shared.route_counters()["flowlets"].tolist() == [10] * peers


@pytest.mark.parametrize("receiver", ["go_back_n", "selective_repeat"])
def test_a_peer_that_never_answers_holds_up_all_lanes_of_the_host(receiver: Receiver) -> None:
    delivered = []
    for shared in (False, True):
        simulation = fan_out(replace(OPTIONS, receiver=receiver, lanes_per_host=shared), 2, 4, 800)
        simulation.set_conditions(LINKS.number(PortRef("leaf2", 2)), loss=1.0)  # towards h5
        simulation.advance(until_s=0.02)
        delivered.append(np.isfinite(simulation.delivered_s()).tolist())
    assert delivered == [[True, False], [False, False]]


@settings(max_examples=25, deadline=None)
@given(
    peers=st.integers(1, 3),
    lanes=st.integers(1, 5),
    packets=st.integers(1, 60),
    loss=st.sampled_from([0.0, 0.05]),
    receiver=st.sampled_from(["go_back_n", "selective_repeat"]),
    seed=st.integers(0, 99),
)
def test_everything_arrives_once_whatever_is_lost(
    peers: int, lanes: int, packets: int, loss: float, receiver: Receiver, seed: int
) -> None:
    options = replace(SHARED, receiver=receiver)
    rows = [
        [row(src, f"h{4 + peer}", lane % 2) for lane in range(lanes)] for src in ("h1", "h2") for peer in range(peers)
    ]
    simulation = simulation_of(rows, options, seed=seed)
    for link in range(len(LINKS)):
        simulation.set_conditions(link, loss=loss)
    simulation.add_messages(np.arange(len(rows)), packets * options.payload_bytes)
    simulation.advance(until_s=60.0)
    assert simulation.undelivered == 0
    assert simulation.route_counters()["bytes"].sum() == len(rows) * packets * options.payload_bytes
    assert all_accounted_for(simulation)


def test_lanes_of_a_host_need_paths_of_their_own_and_one_number() -> None:
    with pytest.raises(ValueError, match="under scheme hashed only"):
        Simulation(LINKS, replace(SHARED, scheme="oblivious"))
    simulation = simulation_of([[row("h1", "h4")]], SHARED)
    with pytest.raises(ValueError, match="channels that share lanes differ in their number"):
        simulation.add_channels([[row("h1", "h5"), row("h1", "h5", 1)]], 4096)
