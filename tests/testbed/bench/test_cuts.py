# SPDX-License-Identifier: Apache-2.0
"""The cases, the times and the tables of the bench of cuts, and its transfer, which needs no fabric."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from emul import MininetFabric, RoutedFabric
from netmodel import Host, Link, Nic, PortRef, Switch, Topology, clos, derived_mac, in_planes, leaf_spine, tiers
from testbed.bench import cuts
from testbed.bench.cuts import Outage, longest_pause_s
from testbed.bench.steady_transfer import SteadyTransfer
from testbed.errors import TestbedError

OUTAGE = Outage("cut: here", "ecmp", 8, 7, 3, 0, 0.25, 0.5, None, 12, 100, 0)


def test_the_longest_pause_is_found_within_the_interval() -> None:
    times = [0.0, 1.0, 1.1, 1.8, 2.0, 9.0]
    assert longest_pause_s(times, 1.0, 2.1) == pytest.approx(0.7)
    assert longest_pause_s(times, 1.5, 2.1) == pytest.approx(0.3)
    assert longest_pause_s([], 1.0, 1.9) == pytest.approx(0.9)


def test_a_pause_that_is_open_at_the_end_has_not_ended_if_it_is_long() -> None:
    assert longest_pause_s([1.1], 1.0, 3.0) is None
    assert longest_pause_s([1.1, 2.9], 1.0, 3.0) == pytest.approx(1.8)
    assert longest_pause_s([], 1.0, 3.0) is None


def test_links_of_each_tier_fail_loud_and_silent_in_one_direction(tmp_path: Path) -> None:
    topology = clos(2, 2, 4, 2, 1, 100_000_000)
    tier = tiers(topology)
    found = list(cuts.three_tiers(RoutedFabric(topology, log_dir=tmp_path)))
    loud, silent = ([case for case in found if case.name.startswith(kind)] for kind in ("cut", "silent"))
    assert [case.dead for case in loud] == [case.dead for case in silent]
    losing = [port for case in silent for port in case.lossy]
    assert [(tier[port.node], tier[topology.peer(port).node]) for port in losing] == [(1, 2), (2, 3), (3, 2), (2, 1)]
    assert losing[0].node == topology.peer(PortRef(topology.hosts[0].name, 1)).node
    assert topology.peer(losing[-1]).node == topology.peer(PortRef(topology.hosts[-1].name, 1)).node


def test_the_second_plane_fails_at_both_hosts_and_as_a_whole(tmp_path: Path) -> None:
    topology = in_planes(clos(2, 1, 2, 1, 1, 100_000_000), 2)
    found = list(cuts.two_planes(RoutedFabric(topology, log_dir=tmp_path)))
    for case in found[:-1]:
        assert {end.node for port in case.lossy for end in (port, topology.peer(port))} in (
            {"h1", "p2leaf1"},
            {"h2", "p2leaf2"},
        )
    assert {end.node for link in found[-1].dead for end in (link.a, link.b)} >= {"p2core1", "p2core2"}


def test_open_vswitch_does_not_notice_silent_losses(tmp_path: Path) -> None:
    found = list(cuts.two_tiers(MininetFabric(leaf_spine(2, 4, 1, 100_000_000), log_dir=tmp_path)))
    assert [bool(case.dead) for case in found] == [True, False, True, False]
    assert all(case.lossy for case in found)


def test_a_table_says_what_did_not_end_and_names_policies_other_than_ecmp() -> None:
    lines = list(cuts.table([OUTAGE]))
    assert lines[2] == "| cut: here | 8 | 7 | 3 | 0.25 s | 0.50 s | until the end | 12 |"
    assert len({line.count("|") for line in lines}) == 1


class Loopback:
    """Two hosts of one machine, whose programs run as any other."""

    def __init__(self) -> None:
        addresses = IPv4Address("127.0.0.1"), IPv4Address("127.0.0.2")
        hosts = [Host(f"h{n}", (Nic("nic0", one, derived_mac(one)),)) for n, one in enumerate(addresses, start=1)]
        links = [Link(PortRef(host.name, 1), PortRef("leaf1", n), 10**9) for n, host in enumerate(hosts, start=1)]
        self.topology = Topology("loopback", tuple(hosts), (Switch("leaf1", "leaf", 1, 1),), tuple(links), 9000)
        self.processes: list[subprocess.Popen[str]] = []

    def popen(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> subprocess.Popen[Any]:
        self.processes.append(subprocess.Popen(argv, **popen_kwargs))
        return self.processes[-1]


def test_a_transfer_goes_on_until_it_is_ended_and_is_compared() -> None:
    with SteadyTransfer(Loopback(), "h1", "h2", "ecmp") as transfer:
        lanes = transfer.lanes()
        assert transfer.lanes() == lanes  # it still runs
    assert len({lane.data.src_port for lane in lanes}) == len(lanes) == len(transfer.sent.progress)
    assert all(lane.data.dst == lane.acknowledgements.src for lane in lanes)
    assert transfer.received.messages == transfer.sent.messages > 0
    assert transfer.received.wrong == 0
    assert all(transfer.sent.progress)


def test_the_end_of_a_program_ends_the_transfer_with_a_sentence() -> None:
    fabric = Loopback()
    with pytest.raises(TestbedError, match="the transfer has ended at h1"), SteadyTransfer(fabric, "h1", "h2", "ecmp"):
        fabric.processes[1].kill()
    assert all(process.returncode is not None for process in fabric.processes)
