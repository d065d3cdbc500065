# SPDX-License-Identifier: Apache-2.0
"""Load-balancing schemes on two leaves of four hosts and four spines."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from netmodel import equal_cost_paths, leaf_spine
from sim.links import Links
from sim.packet import Options, Scheme, Simulation

RATE_BPS = 10_000_000_000
HOSTS = SPINES = 4
LINKS = Links(leaf_spine(2, SPINES, HOSTS, RATE_BPS))
PACKETS = 400
OPTIONS = Options(ecn_bytes=40_000)
IDEAL_S = (PACKETS + 3) * 8 * (OPTIONS.payload_bytes + OPTIONS.header_bytes) / RATE_BPS + 4e-6


def run(options: Options, spines: range = range(SPINES), seed: int = 1) -> Simulation:
    """Every host of leaf 1 sends to one of leaf 2, over `spines` unless switches choose."""
    if options.scheme in ("spraying", "drill", "letflow"):
        spines = range(1)  # for acknowledgements
    simulation = Simulation(LINKS, options, seed)
    ways = [equal_cost_paths(LINKS.topology, f"h{n}", f"h{n + HOSTS}") for n in range(1, HOSTS + 1)]
    simulation.add_channels([[LINKS.row(way[spine]) for spine in spines] for way in ways], 4 * options.payload_bytes)
    simulation.add_messages(np.arange(HOSTS), PACKETS * options.payload_bytes)
    simulation.advance()
    assert simulation.undelivered == 0
    totals = simulation.totals()
    assert totals["sent"] == totals["arrived"] + totals["dropped"] + totals["in_flight"]
    assert min(simulation.delivered_s()) >= IDEAL_S * (1 - 1e-9)
    return simulation


def uplink_packets(simulation: Simulation) -> list[int]:
    """Data packets that leaf 1 has sent to each spine."""
    way = equal_cost_paths(LINKS.topology, "h1", f"h{1 + HOSTS}")
    return [int(simulation.link_counters()["packets"][LINKS.row(path)[1]]) for path in way]


def last_s(simulation: Simulation) -> float:
    return float(max(simulation.delivered_s()))


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_every_scheme_delivers_everything_and_a_seed_repeats_it(scheme: Scheme) -> None:
    """Where anything is drawn: `hashed` is given its routes, and senders at line rate leave `letflow` no gaps."""
    one, same, other = (run(replace(OPTIONS, scheme=scheme, flowlet_gap_s=0.0), seed=seed) for seed in (1, 1, 2))
    assert one.delivered_s().tolist() == same.delivered_s().tolist()
    assert one.events == same.events
    assert (one.delivered_s().tolist() == other.delivered_s().tolist()) == (scheme == "hashed")
    assert one.route_counters()["bytes"].sum() == HOSTS * PACKETS * OPTIONS.payload_bytes


@pytest.mark.parametrize("scheme", ["spraying", "oblivious"])
def test_go_back_n_retransmits_reordered_packets_and_selective_repeat_hardly_any(scheme: Scheme) -> None:
    """The reordering window of selective repeat starts at a quarter of a round trip and widens at each mistake."""
    back, kept = (
        run(replace(OPTIONS, scheme=scheme, receiver=receiver)) for receiver in ("go_back_n", "selective_repeat")
    )
    assert kept.totals()["out_of_order"] > 0
    assert kept.totals()["dropped"] == back.totals()["dropped"] == 0
    assert kept.route_counters()["retransmits"].sum() < 0.01 * HOSTS * PACKETS
    assert back.route_counters()["retransmits"].sum() > HOSTS * PACKETS
    assert last_s(kept) < 1.2 * IDEAL_S < last_s(back)


def test_drill_spreads_more_evenly_than_chance() -> None:
    drill, chance = (
        run(replace(OPTIONS, scheme=scheme, receiver="selective_repeat")) for scheme in ("drill", "spraying")
    )
    assert max(uplink_packets(drill)) < 1.05 * HOSTS * PACKETS / SPINES
    assert drill.link_counters()["longest_bytes"].max() <= chance.link_counters()["longest_bytes"].max()


def test_letflow_moves_a_flow_only_after_a_gap() -> None:
    """A sender at line rate leaves no gaps, so flows do not move; if every pause is a gap, they are sprayed."""
    still, moving = (run(replace(OPTIONS, scheme="letflow", flowlet_gap_s=gap)) for gap in (100e-6, 0.0))
    assert all(count % PACKETS == 0 for count in uplink_packets(still))
    assert still.route_counters()["retransmits"].sum() == 0
    assert not all(count % PACKETS == 0 for count in uplink_packets(moving))


def test_conweave_leaves_a_full_path_and_keeps_order() -> None:
    """Four queue pairs on two spines: those with long round trips move, and receivers see no reordering."""
    simulation = run(replace(OPTIONS, scheme="conweave", reroute_rtts=1.5))
    used = simulation.route_counters()["packets"].reshape(HOSTS, SPINES) > 0
    assert used.sum() > HOSTS  # some moved
    assert simulation.totals()["out_of_order"] == 0
    assert simulation.route_counters()["retransmits"].sum() == 0
    stuck = run(replace(OPTIONS, scheme="conweave", reroute_rtts=1e5))
    assert (stuck.route_counters()["packets"].reshape(HOSTS, SPINES) > 0).sum() == HOSTS
    assert last_s(simulation) < last_s(stuck)


def test_plb_leaves_a_path_that_marks() -> None:
    """Four flows on two spines always collide, so some must have used more than one route."""
    simulation = run(replace(OPTIONS, scheme="plb"), range(2))
    assert simulation.link_counters()["marked"].sum() > 0
    assert (simulation.route_counters()["packets"] > 0).sum() > HOSTS
    unmarked = run(replace(OPTIONS, scheme="plb", ecn_bytes=None), range(2))
    assert (unmarked.route_counters()["packets"] > 0).sum() == HOSTS


def test_recycled_entropies_are_no_slower_than_random_ones() -> None:
    recycled, chance = (
        run(replace(OPTIONS, scheme=scheme, receiver="selective_repeat", ecn_bytes=15_000))
        for scheme in ("recycled", "oblivious")
    )
    assert last_s(recycled) <= last_s(chance)


def test_an_unknown_scheme_is_rejected() -> None:
    with pytest.raises(ValueError, match="scheme is unknown"):
        Simulation(LINKS, replace(OPTIONS, scheme="flat"))  # type: ignore[arg-type]
