# SPDX-License-Identifier: Apache-2.0
"""A service takes over the hosts of another one on a topology with more links or hosts: paths stay where they can."""

from __future__ import annotations

import pytest

from netmodel import Topology
from sdn.measured.router_names import names_of
from sdn.path_service.constraints import Constraints
from sdn.path_service.messages import Announce
from sdn.path_service.service import Options, PathService
from sdn.path_service.succession import SuccessionError, take_over
from tests.sdn.path_service.sample import Hosts, address, fabric, three_tiers
from tests.sdn.path_service.test_constraints import busy, change, drained, load, ways
from tests.sdn.path_service.test_places import MEBIBYTES, Programs, counted_on, ports_elsewhere, spine_of

BEFORE = fabric(leaves=3, spines=2)


def follow(hosts: Hosts, topology: Topology, constraints: Constraints | None = None) -> int:
    """The hosts are those of a new service now. Returns how many messages they got."""
    old, new = hosts.service, PathService(topology, hosts.service.options)
    sends = take_over(hosts.now_s, old, new, constraints or Constraints())
    hosts.service, hosts.topology = new, topology
    count = len(sends)
    hosts.hear(sends)
    while new.busy:
        more = new.tick(hosts.now_s)
        count += len(more)
        hosts.hear(more)
    return count


@pytest.mark.parametrize("planner", ["optimal", "ecmp", "greedy"])
@pytest.mark.parametrize("topology", [BEFORE, three_tiers()], ids=lambda topology: topology.name)
def test_the_same_topology_moves_nothing_and_tells_nobody(topology: Topology, planner: str) -> None:
    hosts, _ = busy(PathService(topology, Options(planner)))
    before = ways(hosts.service)
    assert follow(hosts, topology) == 0
    assert ways(hosts.service) == before
    hosts.check()
    hosts.release(1, 3)
    hosts.announce(1, 99, 3)
    hosts.check()


def test_a_spine_more_moves_nothing_by_itself_and_is_used_then() -> None:
    """Leaves hash over more links, so all ports are others; the paths are the same."""
    hosts, _ = busy(PathService(BEFORE))
    before, counts = ways(hosts.service), hosts.service.status()["counts"]["hellos"]
    assert follow(hosts, fabric(leaves=3, spines=3)) > 0
    hosts.check()
    assert hosts.service.status()["counts"]["hellos"] == counts
    same = sum(path == ways(hosts.service)[ends] for ends, path in before.items())
    assert same == len(before)
    for number in range(4):
        hosts.announce(1, 100 + number, 2 + number)
        hosts.release(1, 100 + number)
    hosts.check()


def test_a_host_more_and_drains_hold() -> None:
    hosts, _ = busy(PathService(fabric(leaves=3, spines=2, hosts=1)))
    more = BEFORE
    kept = {address(fabric(leaves=3, spines=2, hosts=1), host) for host in range(3)}
    assert kept <= {address(more, host) for host in range(6)}
    follow(hosts, more, drained(more, "spine2"))
    assert load(hosts.service, "spine2") == 0
    hosts.check()
    conn = hosts.connect(5)
    hosts.announce(conn, 1, 0)
    hosts.check()
    change(hosts, Constraints())


def test_connections_that_cannot_move_do_not_after_it() -> None:
    hosts = Hosts(PathService(fabric(leaves=2, spines=2, hosts=4)))
    conns = [hosts.connect(host, fixed=True) for host in range(4)]
    hosts.announce(conns[0], 1, 4)
    hosts.announce(conns[1], 1, 5, size=1)
    hosts.announce(conns[2], 1, 6, size=0)
    before = ways(hosts.service)
    assert follow(hosts, hosts.topology) == 0
    assert ways(hosts.service) == before
    assert all(client.fixed for client in hosts.service.clients)


def test_ports_that_were_told_are_kept() -> None:
    """Before, the new service chose others, and counted the connections on the paths of these."""
    topology = fabric(leaves=2, spines=2, hosts=4)
    programs = Programs(PathService(topology))
    told: dict[tuple[int, int], int] = {}
    for host in range(4):
        connection = programs.begin(host, host + 4)
        told[connection] = next(ports_elsewhere(programs, connection))
        programs.sent(connection, MEBIBYTES, told[connection])
    before = {connection: counted_on(programs, connection) for connection in told}
    assert follow(programs, topology) == 0
    assert {connection: counted_on(programs, connection) for connection in told} == before
    ports = {number: flow["ports"] for flow in programs.service.flows(9) for number in flow["ids"]}
    assert ports == {number: [port] for (_, number), port in told.items()}
    follow(programs, fabric(leaves=2, spines=3, hosts=4))
    for connection, port in told.items():
        assert counted_on(programs, connection) == spine_of(programs, connection, port)


def test_what_cannot_be_taken_over_is_refused() -> None:
    hosts, _ = busy(PathService(BEFORE))
    before = ways(hosts.service)
    with pytest.raises(SuccessionError, match=r"^10.0.2.1 is connected, and is not in the new topology$"):
        take_over(0.0, hosts.service, PathService(fabric(leaves=2, spines=2)), Constraints())
    measured = PathService(BEFORE, routers=names_of(BEFORE))
    with pytest.raises(SuccessionError, match="start the service anew"):
        take_over(0.0, hosts.service, measured, Constraints())
    assert ways(hosts.service) == before
    hosts.hear(hosts.service.handle(0.0, 1, [Announce(77, address(BEFORE, 4), 1)]))
    hosts.check()
