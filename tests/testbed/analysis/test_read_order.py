# SPDX-License-Identifier: Apache-2.0
"""Predictions on routers, by the order of next hops that was read from their kernels."""

from __future__ import annotations

from pathlib import Path

from netmodel import Forwarding, forwarding, path_of
from testbed.analysis.flows import check_flows, flows_of
from testbed.analysis.observations import Observations
from testbed.run.run_record import next_hops_of
from tests.testbed.experiments import experiment
from tests.testbed.run.fake_fabric import made_up


def test_paths_are_predicted_by_the_order_that_was_read(tmp_path: Path) -> None:
    made = experiment(tmp_path, fabric="routed")
    read = Forwarding(
        {
            name: {address: tuple(reversed(ports)) for address, ports in groups.items()}
            for name, groups in forwarding(made.topology).groups.items()
        }
    )
    runs = [run.model_copy(update={"next_hops": next_hops_of(read)}) for run in made_up(made).runs]
    (flows, *_) = flows_of(made, Observations(runs=runs))
    assert flows.run.next_hops["leaf1"]
    ways = [path_of(made.topology, flow, made.ecmp_hash, routes=read) for flow, _ in flows.sent]
    assert [[flows.links.ports[link] for link in row if link >= 0] for row in flows.rows.tolist()] == [*map(list, ways)]
    others = [path_of(made.topology, flow, made.ecmp_hash) for flow, _ in flows.sent]
    assert ways != others


def test_flows_are_not_compared_while_routers_change_their_routes(tmp_path: Path) -> None:
    for event in ({"drain": "spine1"}, {"kill": "spine1"}, {"links": {"leaf1:3": {"loss": 1}}}, {"reset": "leaf1:3"}):
        made = experiment(tmp_path, fabric="routed", events=[{"at_s": 0.1, **event}])
        checks = check_flows(made, flows_of(made, made_up(made)))
        assert checks
        assert not any(check.checked for check in checks)
