# SPDX-License-Identifier: Apache-2.0
"""Idle GPUs in the place of dead ones, on rails behind optical switches."""

from __future__ import annotations

import pytest

from netmodel import PortRef, Topology, TopologyError, check_circuits, forwarding, rail_only, with_circuits
from sdn.failover.substitutes import circuits_of, substituted

RAIL, HB = 10_000_000, 80_000_000


def fabric(spares: int = 1) -> Topology:
    return rail_only(3, 2, RAIL, HB, spare_gpus=spares)


def rail_of(topology: Topology, gpu: str) -> str:
    return topology.peer(PortRef(gpu, 1)).node


@pytest.mark.parametrize(("leaves", "spines"), [(1, 0), (3, 2)])
def test_circuits_make_the_rails_of_a_fabric_without_optical_switches(leaves: int, spines: int) -> None:
    plain = rail_only(3, 2, RAIL, HB, spines, leaves)
    spare = rail_only(3, 2, RAIL, HB, spines, leaves, spare_gpus=2)
    gpus = [host.name for host in plain.hosts]
    circuits = circuits_of(spare, gpus)
    check_circuits(spare, circuits)
    joined = with_circuits(spare, circuits)
    assert {frozenset((link.a, link.b)) for link in joined.links if "ocs" not in f"{link.a} {link.b}"} >= {
        frozenset((link.a, link.b)) for link in plain.links
    }
    assert len(spare.hosts) == 3 * 4
    assert len({nic.address for host in spare.hosts for nic in host.nics}) == 2 * 3 * 4


def test_an_idle_gpu_of_the_domain_is_on_the_rail_of_the_dead_one() -> None:
    topology = fabric()
    job = ("d1g1", "d1g2", "d2g1", "d2g2")
    then = substituted(topology, job, "d1g2")
    assert then == ("d1g1", "d1g3", "d2g1", "d2g2")
    joined = with_circuits(topology, circuits_of(topology, then))
    assert [rail_of(joined, gpu) for gpu in then] == ["rail1", "rail2", "rail1", "rail2"]
    groups = forwarding(joined).groups
    assert topology.host("d1g3").nics[0].address in groups["rail2"]
    assert topology.host("d1g2").nics[0].address not in groups["rail2"]


def test_a_full_domain_moves_to_an_idle_one() -> None:
    assert substituted(fabric(), ("d1g1", "d1g3", "d2g1", "d2g2"), "d1g1", ["d1g2"]) == ("d3g1", "d3g2", "d2g1", "d2g2")
    plain, job = rail_only(3, 2, RAIL, HB), ("d1g1", "d1g2", "d2g1", "d2g2")
    assert substituted(plain, job, "d2g2") == ("d1g1", "d1g2", "d3g1", "d3g2")
    # Without optical switches an idle GPU of the domain is on another rail.
    assert substituted(rail_only(2, 2, RAIL, HB), ("d1g1",), "d1g1") == ("d2g1",)


def test_without_optical_switches_tasks_stay_on_their_rails() -> None:
    plain, job = rail_only(3, 2, RAIL, HB), ("d1g2", "d2g2")
    then = substituted(plain, job, "d1g2")
    assert then == ("d3g2", "d2g2")
    assert [rail_of(plain, gpu) for gpu in then] == ["rail2", "rail2"]
    assert substituted(plain, ("d1g2", "d1g1"), "d1g1", dead=["d2g2"]) == ("d3g2", "d3g1")
    with pytest.raises(ValueError, match="no other domain has 1 idle GPUs on the same rails"):
        substituted(plain, job, "d1g2", dead=["d3g2"])


def test_a_job_without_a_substitute_is_refused() -> None:
    with pytest.raises(ValueError, match="HB domain of d1g1 can take its place, and no other domain has 2 idle GPUs"):
        substituted(rail_only(2, 2, RAIL, HB), ("d1g1", "d1g2", "d2g1", "d2g2"), "d1g1")
    with pytest.raises(ValueError, match="domain of d1g3 has more GPUs than rails"):
        circuits_of(fabric(), ["d1g1", "d1g2", "d1g3"])
    with pytest.raises(KeyError, match="d1g1 has no optical switch"):
        circuits_of(rail_only(2, 2, RAIL, HB), ["d1g1"])


@pytest.mark.parametrize("spares", [-1, 255])
def test_impossible_counts_are_refused(spares: int) -> None:
    with pytest.raises(TopologyError, match=f"spare_gpus is {spares}, but must lie in 0..254"):
        fabric(spares)
