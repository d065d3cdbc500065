# SPDX-License-Identifier: Apache-2.0
"""The figures of a path service that are exported."""

from __future__ import annotations

import asyncio

from sdn.path_service.constraints import Constraints
from sdn.path_service.latency import BOUNDS_S, Latency
from sdn.path_service.messages import Announce, Assign, Hello, Measured, MeasuredFlow, Ping, Pong
from sdn.path_service.observation import figures
from sdn.path_service.server import Server, bind
from sdn.path_service.service import PathService
from tests.sdn.path_service.sample import RATE, TOKEN, address, fabric, hello
from tests.sdn.path_service.test_server import TOPOLOGY, Host, run, served


def test_latencies_are_counted_by_bucket() -> None:
    latency = Latency()
    latency.note(BOUNDS_S[0], 2)
    latency.note(1.5 * BOUNDS_S[0], 1)
    latency.note(60.0, 4)
    latency.note(1.0, 0)
    assert latency.counts == [2, 1, *[0] * (len(BOUNDS_S) - 2), 4]
    assert latency.sum_s == 240 + 3.5 * BOUNDS_S[0]


def test_figures_of_a_server_with_hosts_elephants_and_a_dead_link() -> None:
    async def body() -> None:
        async with served() as (server, at):
            host = await Host.greeted(at, 0)
            host.say(Announce(1, address(TOPOLOGY, 2), 1), Announce(2, address(TOPOLOGY, 3), 1))
            assert isinstance(await host.hear(), Assign)
            host.say(*(Announce(number, address(TOPOLOGY, 4), 1) for number in range(3, 8)))  # these wait for turns
            host.say(Measured([MeasuredFlow(1, RATE // 32, 0.5)]), Ping(1))
            while await host.hear() != Pong(1):
                pass
            wrong = await Host.to(at)
            wrong.say(Hello(1, "wrong", address(TOPOLOGY, 1), "0" * 16, 1))
            assert await wrong.refused() == "token"
            dead = [link for link in TOPOLOGY.links if link.a.node == "leaf3"][:1]
            drained = frozenset(link for link in TOPOLOGY.links if link.b.node == "spine2")
            pins = {(address(TOPOLOGY, 0), address(TOPOLOGY, 2)): (drained,)}
            server.constrain(Constraints(frozenset(dead), drained, pins))
            now = await figures(server)
            assert (now.topology, now.planner) == (TOPOLOGY.name, "optimal")
            assert (now.hosts, now.elephants, now.commodities, now.dead_links) == (1, 7, 3, 1)
            assert (now.drained_links, now.pinned_pairs) == (len(drained), 1)
            assert (now.counts["announced"], now.refused) == (7, {"token": 1})
            assert now.latency[-1] == (float("inf"), 7)
            assert [count for _, count in now.latency] == sorted(count for _, count in now.latency)
            assert now.latency_sum_s > 0
            assert now.worst.planned_commodities == 2  # of three elephants to the two links that are left
            assert now.worst.measured_ratio == 0.5

    run(body)


def test_a_service_without_elephants_has_no_worst_link() -> None:
    async def body() -> None:
        async with served() as (server, _):
            worst = (await figures(server)).worst
            assert (worst.planned_commodities, worst.measured_ratio) == (0, None)

    run(body)


def test_hosts_are_served_while_figures_are_made() -> None:
    """An event loop that others wait for goes round between two parts of the figures."""

    async def body() -> None:
        topology = fabric(leaves=4, hosts=8)
        service = PathService(topology)
        for host in range(32):
            service.connect(0.0, host + 1, hello(topology, host))
            service.handle(0.0, host + 1, [Announce(n, address(topology, n), 1) for n in range(32) if n != host])
        server = Server(service, TOKEN)
        await server.start(bind("127.0.0.1", 0))
        rounds = 0

        async def others() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        waiting = asyncio.create_task(others())
        now = await figures(server)
        waiting.cancel()
        await server.close()
        assert now.commodities == 32 * 31
        assert rounds >= now.commodities // 40

    run(body)
