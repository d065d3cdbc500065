# SPDX-License-Identifier: Apache-2.0
"""The packet simulation, compared with closed forms, bounds and invariants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import Path, PortRef, equal_cost_paths, leaf_spine
from sim.links import Links
from sim.packet import Options, Scheme, Simulation

RATE_BPS = 10_000_000_000
OPTIONS = Options(link_delay_s=1e-6)
PACKET_S = 8 * (OPTIONS.payload_bytes + OPTIONS.header_bytes) / RATE_BPS
LINKS = Links(leaf_spine(2, 2, 3, RATE_BPS, fabric_rate_bps=RATE_BPS))
"""Leaf 1 has h1 to h3, leaf 2 has h4 to h6."""


def path(src: str, dst: str, spine: int = 0) -> Path:
    return equal_cost_paths(LINKS.topology, src, dst)[spine]


def row(src: str, dst: str, spine: int = 0) -> list[int]:
    return LINKS.row(path(src, dst, spine))


def simulation_of(
    rows: list[list[list[int]]], options: Options = OPTIONS, links: Links = LINKS, seed: int = 0
) -> Simulation:
    """A channel per entry of `rows`, each a list of lanes' links."""
    simulation = Simulation(links, options, seed)
    longest = max(len(lane) for lanes in rows for lane in lanes)
    padded = [[lane + [-1] * (longest - len(lane)) for lane in lanes] for lanes in rows]
    simulation.add_channels(padded, 8 * options.payload_bytes)
    return simulation


def all_accounted_for(simulation: Simulation) -> bool:
    totals = simulation.totals()
    return totals["sent"] == totals["arrived"] + totals["dropped"] + totals["in_flight"]


@pytest.mark.parametrize("packets", [1, 2, 100])
def test_a_single_flow_takes_its_serialisation_time_and_the_hops_of_the_last_packet(packets: int) -> None:
    simulation = simulation_of([[row("h1", "h4")]])
    simulation.add_messages(0, packets * OPTIONS.payload_bytes)
    simulation.advance()
    assert simulation.delivered_s()[0] == pytest.approx((packets + 3) * PACKET_S + 4 * 1e-6, rel=1e-12)
    assert simulation.totals()["dropped"] == simulation.route_counters()["retransmits"].sum() == 0


def test_links_have_the_delay_of_the_topology_or_that_of_the_options() -> None:
    links = Links(leaf_spine(2, 2, 3, RATE_BPS, host_delay_s=0.0, fabric_delay_s=7e-6))
    plain, mixed = LINKS, Links(leaf_spine(2, 2, 3, RATE_BPS, fabric_delay_s=7e-6))
    for fabric, together_s in ((plain, 4e-6), (mixed, 2 * 7e-6 + 2 * 1e-6), (links, 14e-6)):
        simulation = simulation_of([[row("h1", "h4")]], links=fabric)
        simulation.set_conditions(fabric.number(PortRef("leaf1", 4)), delay_s=3e-6)  # beside its own
        simulation.add_messages(0, 100)
        simulation.advance()
        own_s = 4 * 8 * 158 / RATE_BPS
        assert simulation.delivered_s()[0] == pytest.approx(own_s + together_s + 3e-6, rel=1e-12)


def test_a_lane_that_leaves_a_shared_spine_has_the_whole_rate_from_then_on() -> None:
    """The second flow moves when half of both has been sent."""
    packets = 400
    simulation = simulation_of([[row("h1", "h4")], [row("h2", "h5")]])
    simulation.add_messages([0, 1], packets * OPTIONS.payload_bytes)
    clock = simulation.add_messages(-1, 0, pause_s=packets * PACKET_S, milestone=True)
    assert simulation.advance() == [clock]
    assert simulation.now_s == pytest.approx(packets * PACKET_S)
    simulation.move_lanes([1], [row("h2", "h5", 1)])
    assert simulation.advance() == []
    # Packets behind the first one on the new way come early, and are sent again.
    assert max(simulation.delivered_s()) == pytest.approx(1.5 * packets * PACKET_S, rel=0.05)
    assert simulation.route_counters()["bytes"].tolist() == [packets * OPTIONS.payload_bytes] * 2
    assert all_accounted_for(simulation)


def test_lanes_move_between_their_own_nics_and_where_they_have_routes_of_their_own() -> None:
    simulation = simulation_of([[row("h1", "h4")]])
    with pytest.raises(ValueError, match="leaves by another NIC"):
        simulation.move_lanes([0], [row("h2", "h4")])
    with pytest.raises(ValueError, match="a lane does not exist"):
        simulation.move_lanes([1], [row("h1", "h4")])
    simulation.move_lanes([0], [row("h1", "h4", 1)])
    with pytest.raises(ValueError, match="added before lanes move"):
        simulation.add_channels([[row("h2", "h5")]], 4096)
    other = simulation_of([[row("h1", "h4")]], replace(OPTIONS, scheme="oblivious"))
    with pytest.raises(ValueError, match="scheme hashed only"):
        other.move_lanes([0], [row("h1", "h4", 1)])


def test_a_short_last_packet_takes_less_at_every_hop() -> None:
    simulation = simulation_of([[row("h1", "h4")]])
    simulation.add_messages(0, 100)
    simulation.advance()
    assert simulation.delivered_s()[0] == pytest.approx(4 * (8 * 158 / RATE_BPS + 1e-6), rel=1e-12)


@pytest.mark.parametrize(("spine", "slower"), [(0, 2), (1, 1)])
def test_two_flows_take_twice_as_long_only_if_they_collide(spine: int, slower: int) -> None:
    packets = 200
    simulation = simulation_of([[row("h1", "h4")], [row("h2", "h5", spine)]])
    simulation.add_messages([0, 1], packets * OPTIONS.payload_bytes)
    simulation.advance()
    expected = (slower * packets + 3) * PACKET_S + 4e-6
    assert max(simulation.delivered_s()) == pytest.approx(expected, rel=1e-9)
    assert min(simulation.delivered_s()) >= expected - PACKET_S * 1.001  # one of them is last


def test_lanes_that_pull_use_both_spines() -> None:
    """Two flows with one lane on each spine are nearly as fast together as alone."""
    packets = 200
    simulation = simulation_of(
        [[row(src, dst, spine) for spine in (0, 1)] for src, dst in (("h1", "h4"), ("h2", "h5"))]
    )
    simulation.add_messages([0, 1], packets * OPTIONS.payload_bytes)
    simulation.advance()
    ideal = (packets + 3) * PACKET_S + 4e-6
    assert ideal <= min(simulation.delivered_s())
    assert max(simulation.delivered_s()) < 1.1 * ideal
    assert simulation.route_counters()["bytes"] == pytest.approx(packets / 2 * OPTIONS.payload_bytes, rel=0.2)


def test_messages_wait_for_their_release_and_for_others() -> None:
    simulation = simulation_of([[row("h1", "h4")]])
    first = simulation.add_messages(0, [4096, 4096, 0], [1e-3, 0, 0])
    simulation.add_waits([first, first + 1], [first + 1, first + 2])
    simulation.advance()
    once = 4 * (PACKET_S + 1e-6)
    assert simulation.delivered_s() == pytest.approx([1e-3 + once, 1e-3 + 2 * once, 1e-3 + 2 * once], rel=1e-12)
    with pytest.raises(ValueError, match="before the first advance"):
        simulation.add_waits([0], [1])


def test_messages_that_one_delivery_releases_are_sent_in_order() -> None:
    simulation = simulation_of([[row("h1", "h4")]])
    simulation.add_messages(-1, 0, pause_s=1e-3)
    simulation.add_messages(0, [4096] * 4)
    simulation.add_waits([0] * 4, [1, 2, 3, 4])
    simulation.advance()
    once = 4 * (PACKET_S + 1e-6)
    assert simulation.delivered_s()[1:] == pytest.approx(1e-3 + once + np.arange(4) * PACKET_S, rel=1e-9)


def test_a_pause_passes_after_the_last_wait_and_needs_no_channel() -> None:
    """A pause of 1 ms follows a message, one of 2 ms precedes the next, and one of 2 ms follows a late release."""
    simulation = simulation_of([[row("h1", "h4")]])
    simulation.add_messages(0, 4096)
    simulation.add_messages(-1, 0, pause_s=1e-3)
    simulation.add_messages(0, 4096, [0.0, 0.1], pause_s=2e-3)
    simulation.add_waits([0, 1, 2], [1, 2, 3])
    simulation.advance()
    once = 4 * (PACKET_S + 1e-6)
    expected = [once, once + 1e-3, 2 * once + 3e-3, once + 0.102]
    assert simulation.delivered_s() == pytest.approx(expected, rel=1e-12)
    assert simulation.link_counters()["packets"].max() == 3


def test_impossible_arguments_are_rejected() -> None:
    simulation = Simulation(LINKS, OPTIONS)
    ways: list[tuple[Any, str]] = [
        ([[[0]]], "end at a host"),
        ([[[10_000]]], "does not exist"),
        ([[row("h1", "h4")[::-1]]], "begin at a host"),
        ([[row("h1", "h4"), row("h2", "h4")]], "one NIC"),
    ]
    for rows, message in ways:
        with pytest.raises(ValueError, match=message):
            simulation.add_channels(rows, 4096)
    with pytest.raises(ValueError, match="too small for priority flow control"):
        Simulation(LINKS, replace(OPTIONS, pfc=True, switch_buffer_bytes=50_000))
    for channel in (0, -2):
        with pytest.raises(ValueError, match="channel that does not exist"):
            simulation.add_messages(channel, 1)
    with pytest.raises(ValueError, match="goes over no channel has bytes"):
        simulation.add_messages(-1, 1)
    with pytest.raises(ValueError, match="a time is negative"):
        simulation.add_messages(-1, 0, pause_s=-1.0)


def incast(options: Options, packets: int = 300, loss: float = 0.0, seed: int = 0) -> Simulation:
    """Five hosts send to one. The link from the first spine to that host's leaf loses packets."""
    simulation = simulation_of([[row(f"h{n}", "h6", n % 2 if n < 4 else 0)] for n in range(1, 6)], options, seed=seed)
    simulation.set_conditions(row("h1", "h6")[2], loss=loss)
    simulation.add_messages(np.arange(5), packets * options.payload_bytes)
    simulation.advance()
    assert simulation.undelivered == 0
    assert all_accounted_for(simulation)
    return simulation


SHALLOW = replace(OPTIONS, switch_buffer_bytes=200_000, window_bdp=20.0)


@pytest.mark.parametrize("receiver", ["go_back_n", "selective_repeat"])
def test_packets_dropped_at_a_full_buffer_are_retransmitted(receiver: Any) -> None:
    simulation = incast(replace(SHALLOW, receiver=receiver))
    dropped = simulation.link_counters()["dropped"].sum()
    assert dropped > 0
    assert simulation.route_counters()["retransmits"].sum() > 0
    assert simulation.link_counters()["longest_bytes"].max() <= 200_000
    assert max(simulation.delivered_s()) >= 5 * 300 * PACKET_S


def test_a_port_may_be_limited_to_a_part_of_the_buffer() -> None:
    simulation = incast(replace(SHALLOW, port_buffer_bytes=50_000))
    assert 0 < simulation.link_counters()["longest_bytes"].max() <= 50_000


def test_pfc_pauses_and_never_drops() -> None:
    simulation = incast(replace(SHALLOW, pfc=True))
    assert simulation.link_counters()["dropped"].sum() == 0
    assert simulation.link_counters()["pauses"].sum() > 0
    assert simulation.route_counters()["retransmits"].sum() == 0
    # Nothing lost, nothing idle: the last link is busy from the first packet on.
    assert max(simulation.delivered_s()) == pytest.approx(5 * 300 * PACKET_S, rel=0.01)


def test_switches_mark_above_the_threshold_and_dctcp_keeps_queues_there() -> None:
    marking = replace(OPTIONS, window_bdp=20.0, ecn_bytes=40_000)
    unheeded, heeded = incast(marking), incast(replace(marking, congestion="dctcp"))
    assert incast(replace(marking, ecn_bytes=9_000_000)).link_counters()["marked"].sum() == 0
    assert heeded.link_counters()["marked"].sum() > 0
    longest = [simulation.link_counters()["longest_bytes"].max() for simulation in (unheeded, heeded)]
    assert longest[1] <= longest[0]
    mean_delay = [np.mean(simulation.delivered_s()) for simulation in (unheeded, heeded)]
    assert mean_delay[1] < 1.1 * mean_delay[0]


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    one, same, other = (incast(SHALLOW, loss=0.1, seed=seed) for seed in (1, 1, 2))
    assert one.delivered_s().tolist() == same.delivered_s().tolist()
    assert one.events == same.events
    for counters in ("link_counters", "route_counters"):
        for name, values in getattr(one, counters)().items():
            assert values.tolist() == getattr(same, counters)()[name].tolist()
    assert one.delivered_s().tolist() != other.delivered_s().tolist()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Links, list[list[list[int]]], list[int], Options]:
    """A small fabric, channels over random paths, message sizes, and random options."""
    links = Links(
        leaf_spine(draw(st.integers(2, 3)), draw(st.integers(1, 3)), 2, draw(st.sampled_from([10**8, 10**10])))
    )
    hosts = [host.name for host in links.topology.hosts]
    rows, lanes = [], draw(st.integers(1, 3))
    for _ in range(draw(st.integers(1, 6))):
        src, dst = draw(st.permutations(hosts))[:2]
        ways = equal_cost_paths(links.topology, src, dst)
        rows.append([links.row(draw(st.sampled_from(ways))) for _ in range(lanes)])
    sizes = draw(st.lists(st.integers(0, 300_000), min_size=len(rows), max_size=len(rows)))
    options = Options(
        link_delay_s=draw(st.sampled_from([0.0, 1e-6, 1e-4])),
        switch_buffer_bytes=draw(st.sampled_from([30_000, 200_000, 9_000_000])),
        ecn_bytes=20_000,
        receiver=draw(st.sampled_from(["go_back_n", "selective_repeat"])),
        congestion=draw(st.sampled_from(["fixed", "dctcp"])),
        window_bdp=draw(st.sampled_from([0.5, 2.0, 30.0])),
        scheme=draw(st.sampled_from(get_args(Scheme))),
    )
    return links, rows, sizes, options


def least_s(links: Links, rows: list[list[list[int]]], sizes: list[int], options: Options) -> list[float]:
    """A lower bound for each channel: its payload at the rate of its NIC, and the delay of each hop."""
    return [
        8 * size / links.rate_bps[lanes[0][0]] + min(len(lane) for lane in lanes) * options.link_delay_s
        if size
        else 0.0
        for lanes, size in zip(rows, sizes, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from([0.0, 0.02, 0.3]))
def test_all_messages_arrive_and_none_beats_its_bound(
    case: tuple[Links, list[list[list[int]]], list[int], Options], loss: float
) -> None:
    links, rows, sizes, options = case
    simulation = simulation_of(rows, options, links)
    for lane in rows[0]:
        simulation.set_conditions(lane[1], loss=loss)
    simulation.add_messages(np.arange(len(rows)), sizes)
    for part in range(1, 4):
        simulation.advance(part * 1e-5)
        assert all_accounted_for(simulation)
    simulation.advance()
    assert simulation.undelivered == 0
    assert all_accounted_for(simulation)
    for delivered, least in zip(simulation.delivered_s(), least_s(links, rows, sizes, options), strict=True):
        assert delivered >= least * (1 - 1e-9)
    assert simulation.route_counters()["bytes"].sum() == sum(sizes)
    for number, port in enumerate(links.ports):
        busy_s = 8 * simulation.link_counters()["bytes"][number] / links.rate_bps[number]
        assert busy_s <= simulation.now_s * (1 + 1e-9), port


@settings(max_examples=30, deadline=None)
@given(cases())
def test_pfc_never_drops(case: tuple[Links, list[list[list[int]]], list[int], Options]) -> None:
    links, rows, sizes, options = case
    simulation = simulation_of(rows, replace(options, pfc=True, switch_buffer_bytes=9_000_000), links)
    simulation.add_messages(np.arange(len(rows)), sizes)
    simulation.advance()
    assert simulation.undelivered == 0
    assert simulation.totals()["dropped"] == 0


RELAYED = [row("h1", "h2")[0], *row("h1", "h2")[1:], *row("h2", "h4")]


def test_a_host_relays_and_acknowledgements_take_the_links_that_are_given() -> None:
    simulation = Simulation(LINKS, OPTIONS)
    simulation.add_channels([[RELAYED]], 8 * OPTIONS.payload_bytes, [row("h4", "h1")])
    simulation.add_messages(0, 100 * OPTIONS.payload_bytes)
    simulation.advance()
    hops = len(RELAYED)
    assert simulation.delivered_s()[0] == pytest.approx((99 + hops) * PACKET_S + hops * 1e-6, rel=1e-12)
    packets = simulation.link_counters()["packets"]
    assert packets[RELAYED].tolist() == [100] * hops
    back = packets[row("h4", "h1")]
    assert back.tolist() == [99] * 4  # the simulation ends with the last delivery
    assert packets.sum() == 100 * hops + back.sum()


@pytest.mark.parametrize("options", [replace(OPTIONS, pfc=True), replace(OPTIONS, scheme="spraying")])
def test_hosts_do_not_relay_where_switches_pause_or_choose(options: Options) -> None:
    with pytest.raises(ValueError, match="hosts relay only where switches neither choose, hold nor pause"):
        Simulation(LINKS, options).add_channels([[RELAYED]], 4096, [row("h4", "h1")])


def test_acknowledgements_lead_from_the_receiver_to_the_sender() -> None:
    with pytest.raises(ValueError, match="acknowledgements do not lead from the receiver to the sender"):
        Simulation(LINKS, OPTIONS).add_channels([[row("h1", "h4")]], 4096, [row("h4", "h2")])


@pytest.mark.parametrize(("loss", "most"), [(0.01, 1.03), (0.05, 1.15)])
def test_a_loss_costs_selective_repeat_little_more_than_the_lost_packet(loss: float, most: float) -> None:
    """A flow of 41 MB. A packet is repeated about a round trip after it was lost, long before a timeout."""
    packets = 10_000
    times_s = []
    for share in (0.0, loss):
        simulation = simulation_of([[row("h1", "h4")]], replace(OPTIONS, receiver="selective_repeat"))
        simulation.set_conditions(row("h1", "h4")[1], loss=share)
        simulation.add_messages(0, packets * OPTIONS.payload_bytes)
        simulation.advance()
        assert all_accounted_for(simulation)
        times_s.append(simulation.delivered_s()[0])
    lost = simulation.link_counters()["lost"].sum()
    counters = simulation.route_counters()
    assert loss / 2 < lost / packets < 2 * loss
    assert lost <= counters["retransmits"].sum() <= lost + counters["timeouts"].sum()  # probes may repeat one more
    assert counters["timeouts"].sum() <= 1  # the last packets may be lost, and the packets that repeat them
    assert times_s[1] <= most * times_s[0]
