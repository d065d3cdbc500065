# SPDX-License-Identifier: Apache-2.0
"""Specs whose ranks have fused NICs: devices, ideal times, what events leave without a path, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emul.shaping import burst_bytes
from netmodel import PortRef, SpecError
from testbed.arrangements import RunTraffic
from testbed.run.rank_configuration import prepare_commands
from testbed.spec import Experiment
from tests.testbed.experiments import experiment, first_of

RATE = 10_000_000
PLANES: dict[str, Any] = {
    "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 1, "host_rate": RATE, "planes": 2}},
    "fabric": "routed",
    "fused_nics": ["nic0", "nic1"],
    "workload": {"kind": "permutation", "shift": 1, "bytes": 1_000_000},
    "placement": {"rule": "in_order"},
    "policies": [{"name": "ecmp", "policy": "ecmp", "m": 8}],
    "seeds": 1,
}


def fused(folder: Path, **changes: Any) -> Experiment:
    return experiment(folder, **{**PLANES, **changes})


def test_a_rank_has_one_device_of_all_its_nics(tmp_path: Path) -> None:
    made = fused(tmp_path)
    first = first_of(made)
    (prepared, _) = prepare_commands(first, made.policy("ecmp"), None).values()
    nics = made.topology.host("h1").nics
    assert prepared.device.address == f"{nics[0].address}+{nics[1].address}"
    assert prepared.device.line_rate_bps == 2 * RATE
    assert not prepared.others


def test_the_ideal_is_that_of_all_nics_together(tmp_path: Path) -> None:
    alone = first_of(fused(tmp_path, fused_nics=[])).ideal_s()
    burst_s = 8 * burst_bytes(RATE, 9000) / RATE  # which every NIC sends at once
    assert first_of(fused(tmp_path)).ideal_s() + burst_s == pytest.approx((alone + burst_s) / 2)


def test_a_transfer_has_a_path_while_any_plane_lives(tmp_path: Path) -> None:
    made = fused(tmp_path)
    first, topology = first_of(made), made.topology
    one, other = (frozenset([topology.link_at(PortRef("h1", port))]) for port in (1, 2))
    assert not list(first.stranded(one))
    assert not list(first.stranded(other))
    assert {transfer.src for transfer in first.stranded(one | other)} == {0, 1}


def test_the_report_has_what_each_nic_received(tmp_path: Path) -> None:
    (arrangement,) = first_of(fused(tmp_path)).arrangements
    counted = {"p1leaf1:1": 3_000_000, "p1leaf2:1": 1_000_000, "p2leaf1:1": 500_000, "p1leaf1:2": 7}
    runs = [RunTraffic("ecmp", {}, [], counted)] * 2
    assert arrangement.summary(runs) == {"bytes_to_nics": {"nic0": 4e6, "nic1": 5e5}}
    (section,) = arrangement.sections(runs)
    (table,) = section.tables
    assert [list(row) for row in table.rows] == [["ecmp", "4.000", "0.500"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fused_nics": ["nic0"]}, "two to four NICs, each once"),
        ({"fused_nics": ["nic0", "nic0"]}, "two to four NICs, each once"),
        ({"fused_nics": ["nic0", "nic2"]}, "no device 'nic2'"),
        ({"nic": "nic1"}, "leave it out"),
        ({"fabric": "fluid"}, "only fabrics mininet and routed fuse NICs"),
        ({"policies": [{"name": "p", "policy": "pinned", "m": 2}]}, "plans for one NIC"),
        ({"policies": [{"name": "c", "policy": "controller", "m": 2}]}, "plans for one NIC"),
        ({"policies": [{"name": "e", "policy": "ecmp"}]}, "2 fused NICs need as many lanes or more"),
        ({"workload": {"kind": "nccl", "bytes": 4096}}, "uses one NIC only"),
    ],
)
def test_what_fused_nics_do_not_serve_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        fused(tmp_path, **changes)


def test_fused_nics_have_links_of_one_rate(tmp_path: Path) -> None:
    rails = {"rail_only": {"domains": 2, "gpus_per_domain": 2, "rail_rate": RATE, "hb_rate": 2 * RATE}}
    with pytest.raises(SpecError, match="the links of d1g1 have different rates; fuse NICs of one rate"):
        fused(tmp_path, topology=rails, fabric="mininet")
