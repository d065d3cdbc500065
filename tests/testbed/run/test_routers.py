# SPDX-License-Identifier: Apache-2.0
"""What a run does to routers, on a fabric without a network that notes what it is told."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from netmodel import Forwarding, PortRef, forwarding
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run import experiment_runs
from testbed.run.experiment_runs import Runner
from testbed.run.rank_configuration import prepare_commands
from testbed.run.routers import Routers
from testbed.run.run_record import next_hops_of
from testbed.spec import Experiment
from tests.testbed.experiments import experiment, on_loopback
from tests.testbed.run.fake_fabric import TCP_AGENT, FakeFabric, outlast_events


class FakeRouters(FakeFabric):
    """Every reading finds the next hops in another order."""

    def __init__(self, made: Experiment) -> None:
        super().__init__(made)
        self.calls: list[tuple[object, ...]] = []
        self.read: list[Forwarding] = []

    def settle(self) -> None:
        self.calls.append(("settle",))

    def routes(self) -> Forwarding:
        turn = len(self.read)
        groups = forwarding(self._topology).groups
        self.read.append(
            Forwarding(
                {
                    name: {
                        address: ports[turn % len(ports) :] + ports[: turn % len(ports)]
                        for address, ports in own.items()
                    }
                    for name, own in groups.items()
                }
            )
        )
        return self.read[-1]

    def set_router(self, name: str, up: bool) -> None:
        self.calls.append(("router", name, up))

    def set_drained(self, name: str, drained: bool) -> None:
        self.calls.append(("drained", name, drained))

    def reset_session(self, port: PortRef) -> None:
        self.calls.append(("reset", port))


def test_events_of_routers_are_undone_and_the_order_is_read_before_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlast_events(monkeypatch)
    events = [
        {"at_s": 0.0, "drain": "spine1"},
        {"at_s": 0.0, "undrain": "spine1"},
        {"at_s": 0.0, "kill": "spine2"},
        {"at_s": 0.0, "revive": "spine2"},
        {"at_s": 0.0, "reset": "leaf1:3"},
    ]
    made = on_loopback(experiment(tmp_path, fabric="routed", events=events, seeds=2))
    fabric = FakeRouters(made)
    planned_by = []

    def prepare(*given: Any) -> dict[int, messages.Prepare]:
        planned_by.append(given[3])
        return prepare_commands(*given)

    monkeypatch.setattr(experiment_runs, "prepare_commands", prepare)
    with Steps(4) as steps:
        runner = Runner(made, fabric, Routers(fabric), [], tmp_path / "logs", TCP_AGENT)
        records = list(runner.runs(steps))
    happened = [
        ("drained", "spine1", True),
        ("drained", "spine1", False),
        ("router", "spine2", False),
        ("router", "spine2", True),
        ("reset", PortRef("leaf1", 3)),
    ]
    undone = [("router", "spine2", True), ("drained", "spine1", False)]
    assert fabric.calls == [("settle",), *happened, *undone] * len(records)
    assert fabric.link_changes == []
    assert planned_by == fabric.read
    assert [record.next_hops for record in records] == [next_hops_of(routes) for routes in fabric.read]
    assert records[0].next_hops != records[1].next_hops


class FakeService:
    """Notes the groups that it is told."""

    reported_s = 1.0
    address, token_file = "127.0.0.1:1", Path("token")

    def __init__(self) -> None:
        self.followed: list[object] = []

    def follow(self, groups: object) -> None:
        self.followed.append(groups)

    def keep_to(self, paths: object) -> None:
        assert paths == {}, "lanes have planned ports"

    def status(self) -> dict[str, Any]:
        return {}


def test_a_path_service_is_told_the_next_hops_before_a_run_and_after_each_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlast_events(monkeypatch)
    events = [{"at_s": 0.0, "kill": "spine2"}, {"at_s": 0.0, "revive": "spine2"}]
    made = on_loopback(experiment(tmp_path, fabric="routed", events=events, seeds=1))
    fabric, service = FakeRouters(made), FakeService()
    with Steps(2) as steps:
        runner = Runner(
            made, fabric, Routers(fabric), [], tmp_path / "logs", TCP_AGENT, lambda *_: nullcontext(service)  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        records = list(runner.runs(steps))
    assert service.followed == [routes.groups for routes in fabric.read]
    assert len(service.followed) == len(records) * (1 + len(events))
