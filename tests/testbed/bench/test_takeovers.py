# SPDX-License-Identifier: Apache-2.0
"""Two path services as processes: whatever happens to one of them, hosts end up with the ports that are planned."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from hostlib import Device
from netmodel import dump_topology, leaf_spine
from sdn.path_service.token import make_token, read_token
from testbed.bench.takeovers import FAILURES, Scene, Service, Takeover, measure, table
from tests.hostlib.conftest import A, B, join
from tests.hostlib.path_service import eventually

COUNT = int(os.environ.get("PARALET_TAKEOVERS", "4"))
"""How many failures; `PARALET_TAKEOVERS=50` for a longer look (docs/high-availability.md)."""
NAMES = "one", "other"
ORDER = "stop", "no answers from it", "cut between", "kill", *FAILURES


def test_a_service_takes_over_from_the_other_and_hosts_have_the_planned_ports(tmp_path: Path) -> None:
    order = list(islice(cycle(ORDER), COUNT))
    found = asyncio.run(measure(tmp_path, order, 4, print))
    assert [each.failure for each in found] == order
    assert all(each.after > each.before for each in found)


def test_the_engine_goes_over_to_the_service_that_takes_over(tmp_path: Path) -> None:
    """Two devices of the engine with both addresses, whose votes are a majority, and elephants all the time."""
    asyncio.run(_kill_the_one_that_leads(tmp_path))


async def _kill_the_one_that_leads(folder: Path) -> None:
    topology = dump_topology(leaf_spine(2, 2, 1, 10**9)).replace("10.0.0.1", A).replace("10.0.1.1", B)
    (folder / "fabric.yaml").write_text(topology)
    one, other = both = [Service(folder / name, folder / "fabric.yaml", standby=name == "other") for name in NAMES]
    for service in both:
        service.folder.mkdir()
    make_token(one.token)
    token = read_token(one.token)
    other.token.write_text(token)
    other.token.chmod(0o600)
    try:
        for service in both:
            await service.from_hosts.start()
            await service.from_other.start()
        await asyncio.gather(one.start(other.from_other.at), other.start(one.from_other.at))
        services = ",".join(f"{address}:{port}" for address, port in (service.from_hosts.at for service in both))
        while not (await one.availability()).get("followed"):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(_devices_meet, services, token, one, other, asyncio.get_running_loop())
        assert (await other.availability())["role"] == "leading"
    finally:
        for service in both:
            await service.kill()
            await service.from_hosts.close()
            await service.from_other.close()


def _devices_meet(services: str, token: str, leads: Service, follows: Service, loop: asyncio.AbstractEventLoop) -> None:
    options: dict[str, Any] = {
        "policy": "controller",
        "path_service": services,
        "token": token,
        "lanes": 4,
        "min_timeout_s": 2.0,
    }
    with Device(A, **options) as near, Device(B, **options) as far:
        pair = join(near, far)

        def client(device: Device) -> dict[str, int]:
            return dict(device.counters()["path_client"])

        def is_assigned(before: int) -> bool:
            pair.exchange(bytes(4 << 20))
            return client(near)["assigns"] > before

        eventually(lambda: client(near)["connected"] and client(far)["connected"], "never connected")
        eventually(lambda: is_assigned(0), "no elephant was given ports")
        eventually(
            lambda: follows.operator.status()["availability"]["witnesses"] == 2,
            lambda: f"{follows.operator.status()['availability']}",
        )
        asyncio.run_coroutine_threadsafe(leads.kill(), loop).result()
        before = client(near)["assigns"]
        eventually(lambda: is_assigned(before), lambda: f"no ports after the takeover: {client(near)}")


def test_a_leader_that_goes_on_alone_while_hosts_are_looked_at_is_not_settled(tmp_path: Path) -> None:
    """The other one could not take over from it. Neither is one settled that was not acknowledged for long."""
    follows = {"role": "following", "followed": False, "generation": 2, "lag_s": 0.1, "witnesses": 0}
    leads = {"role": "leading", "followed": True, "generation": 2, "lag_s": 0.1, "witnesses": 0}
    alone = {"role": "leading", "followed": False, "generation": 3, "lag_s": None}
    anew = {**leads, "generation": 4}
    looks = [(leads, follows), (alone, follows), ({**anew, "lag_s": 0.6}, follows), (anew, follows), (anew, follows)]
    scene = Scene(tmp_path, 2, print)

    def says(index: int) -> Callable[[], Awaitable[dict[str, Any]]]:
        states = iter([look[index] for look in looks])

        async def availability() -> dict[str, Any]:
            return dict(next(states))

        return availability

    for index, service in enumerate(scene.services):
        service.availability = says(index)  # type: ignore[method-assign]
    assert asyncio.run(scene.settled()) == (scene.services[0], 4)


def test_a_leader_that_had_gone_on_alone_is_known_by_its_log(tmp_path: Path) -> None:
    leads = Scene(tmp_path, 2, print).services[0]
    (leads.folder / "log").write_text(
        "following in generation 9: generation 9 leads\nleading alone in generation 3: the other one cannot lead\n"
    )
    assert leads.went_on_alone_after(2)
    assert not leads.went_on_alone_after(3)


def test_the_table_has_a_row_for_each_kind_of_failure() -> None:
    found = [
        Takeover("kill", True, 1.0, 2.0, 1, 2),
        Takeover("stop", True, 1.5, 1.5, 2, 3),
        Takeover("kill", False, 1.5, 1.75, 3, 4),
    ]
    rows = [
        "| kill | 2 | 1 | 1.25 s | 1.50 s | 2.00 s |",
        "| stop | 1 | 1 | 1.50 s | 1.50 s | 1.50 s |",
    ]
    assert table(found)[2:] == rows
    alone = Takeover("stop", False, 9.0, 9.0, 4, 6, was_alone=True)
    said = "Left out: 1 failure of a leader that had just gone on alone, which the other one cannot take over from."
    assert table([*found, alone])[2:] == [*rows, "", said]
