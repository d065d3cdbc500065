# SPDX-License-Identifier: Apache-2.0
"""Histories of link loads: which ports, which moments, and the utilisation in between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import PortRef, leaf_spine
from testbed.analysis.link_history import MOST_MOMENTS, fabric_ports, history_of, utilisation
from testbed.analysis.observations import LinkHistory
from testbed.progress import Silent
from testbed.simulate import fluid, packet
from tests.testbed.experiments import experiment


def test_each_link_between_switches_has_a_port_in_each_direction() -> None:
    topology = leaf_spine(leaves=2, spines=3, hosts_per_leaf=2, host_rate_bps=10**9)
    ports = fabric_ports(topology)
    assert len(ports) == len(set(ports)) == 2 * 2 * 3
    assert {port.node for port in ports[:6]} == {"leaf1", "leaf2"}
    assert [topology.peer(port) for port in ports[:6]] == ports[6:]


@given(
    moments=st.integers(0, 1000),
    ports=st.sampled_from([1, 40, 8192, 300_000]),
    scale_s=st.floats(1e-6, 1e3, allow_nan=False),
)
def test_few_moments_are_kept_and_the_last_always(moments: int, ports: int, scale_s: float) -> None:
    names = [PortRef("leaf1", 1)] * min(ports, 100)  # the limit depends on their number only
    made = [(scale_s * (index + 1), np.full(len(names), index)) for index in range(moments)]
    history = history_of(names, made)
    assert len(history.at_s) == len(history.tx_bytes) <= MOST_MOMENTS
    assert history.at_s == sorted(set(history.at_s))
    assert history.at_s[-1:] == [at_s for at_s, _ in made[-1:]]
    assert [history.tx_bytes[n] for n in range(len(history.at_s))] == [
        [round(at_s / scale_s) - 1] * len(names) for at_s in history.at_s
    ]


def test_a_large_fabric_keeps_fewer_moments() -> None:
    names = [PortRef("leaf1", port) for port in range(1, 8193)]
    history = history_of(names, [(float(n), np.full(8192, n)) for n in range(1, 200)])
    assert 2 <= len(history.at_s) <= 400_000 // 8192
    assert history.at_s[-1] == 199


def test_utilisation_is_the_share_of_the_rate_between_two_moments() -> None:
    history = LinkHistory(
        ports=["a:1", "b:1"], at_s=[0.01, 1.0, 1.01, 3.0], tx_bytes=[[1, 1], [125, 0], [126, 0], [375, 500]]
    )
    busy = utilisation(history, [1000.0, 2000.0], shortest_s=0.05)
    assert busy.until_s == [1.0, 3.0]  # two moments follow others too closely
    assert busy.shares == pytest.approx(np.array([[1.0, 0.0], [1.0, 1.0]]))


def test_a_run_without_moments_has_no_intervals() -> None:
    assert utilisation(LinkHistory(ports=["a:1"], at_s=[], tx_bytes=[]), [1e9], 0.0).until_s == []


@pytest.mark.parametrize("model", [fluid, packet])
def test_models_record_the_first_seed_up_to_the_total_of_each_link(tmp_path: Path, model: object) -> None:
    made = experiment(tmp_path, fabric=model.__name__.rpartition(".")[2])  # type: ignore[attr-defined]
    for run in model.observe(made, Silent()).runs:  # type: ignore[attr-defined]
        if run.seed != made.seeds[0]:
            assert run.history is None
            continue
        totals = {load.port: load.tx_bytes for load in run.links}
        assert run.history.tx_bytes[-1] == pytest.approx([totals[port] for port in run.history.ports], abs=1)
        assert (np.diff(np.array(run.history.tx_bytes), axis=0) >= 0).all()
