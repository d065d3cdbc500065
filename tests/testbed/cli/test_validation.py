# SPDX-License-Identifier: Apache-2.0
"""Validation of models: the overhead of a message is found again in times that have it, and the paths of routers."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from netmodel import Flow, LinuxL4Hash, forwarding, in_order_of, path_of
from testbed.cli.validation import Agreement, as_routed, markdown, message_delay_s
from testbed.progress import Silent
from testbed.simulate import fluid
from testbed.spec import Experiment, Instance, Spec, check


def made(delay_s: float, slices: int = 1) -> Experiment:
    return check(
        Spec.model_validate(
            {
                "name": "ring",
                "fabric": "fluid",
                "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}},
                "workload": {"kind": "ring_allreduce", "bytes": 409600, "slices": slices},
                "placement": {"rule": "cross_leaf"},
                "policies": [{"name": "pinned", "policy": "pinned"}, {"name": "lanes", "policy": "ecmp", "m": 4}],
                "seeds": 2,
                "fluid": {"message_delay_s": delay_s},
            }
        )
    )


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.05])
@pytest.mark.parametrize("slices", [1, 4])
def test_the_delay_of_a_message_is_found_again(delay_s: float, slices: int) -> None:
    runs = fluid.observe(made(delay_s, slices), Silent()).runs
    found = message_delay_s(made(0.0, slices), {(run.policy, run.seed): run.completion_s for run in runs})
    assert found == pytest.approx(delay_s, rel=0.02, abs=1e-9)


@pytest.mark.parametrize("policy", [{"policy": "ecmp", "m": 4}, {"policy": "pinned"}], ids=["ecmp", "pinned"])
def test_a_model_of_routers_takes_the_paths_of_their_next_hops(policy: dict[str, Any]) -> None:
    """Ports that are planned take the planned paths in that order, too, and only Linux's hash has it."""
    document = {
        "name": "tiers",
        "fabric": "routed",
        "topology": {"fat_tree": {"k": 4, "host_rate": "10 Mbit/s"}},
        "workload": {"kind": "permutation", "bytes": 65536, "shift": 8},
        "policies": [{"name": "it", **policy}, {"name": "other", "policy": "ecmp"}],
        "seeds": 2,
    }
    routed = check(Spec.model_validate(document))
    read = forwarding(routed.topology).groups
    hops = {name: {str(at): list(ports[::-1]) for at, ports in own.items()} for name, own in read.items()}
    routes = in_order_of(hops, forwarding(routed.topology))
    seen = fluid.observe(check(Spec.model_validate({**document, "fabric": "fluid"})), Silent()).runs[-2]
    part = as_routed(
        check(Spec.model_validate({**document, "fabric": "fluid"})), seen.model_copy(update={"next_hops": hops})
    )
    (run,) = fluid.observe(part, Silent()).runs
    assert (run.policy, run.seed) == ("it", 2)
    loaded = set()
    for entry in run.lanes:
        src, dst = (ip_address(Instance(routed, 2).address(entry.rank)), ip_address(entry.lane.peer))
        flow = Flow(src, dst, entry.lane.port)
        loaded |= {str(hop) for hop in path_of(routed.topology, flow, LinuxL4Hash(), routes=routes)[1:]}
    assert loaded == {load.port for load in run.links if load.tx_bytes}
    ports = [Instance(one, 2).ports(part.policy("it"))[0].towards(8) for one in (part, routed)]
    assert (ports[0] == ports[1]) == (policy["policy"] == "ecmp")


def test_no_delay_makes_up_for_a_model_that_is_too_slow() -> None:
    runs = fluid.observe(made(0.0), Silent()).runs
    assert message_delay_s(made(0.0), {(run.policy, run.seed): 0.9 * run.completion_s for run in runs}) == 0.0


def test_the_tables_of_the_documentation_have_the_ratios_of_each_model_by_policy_and_seed() -> None:
    runs = [(1, 1.0, 1.5), (2, 2.0, 1.9)]
    found = [Agreement("ring", "ecmp", "ecmp", seed, 2.0, fluid_s, "fluid") for seed, fluid_s, _ in runs]
    found += [Agreement("ring", "ecmp", "ecmp", seed, 2.0, packet_s, "packet") for seed, _, packet_s in runs]
    assert markdown(found).splitlines() == [
        "| policy | `fluid`, seeds 1, 2 | `packet`, seeds 1, 2 |",
        "|---|---|---|",
        "| ecmp | 0.50, 1.00 | 0.75, 0.95 |",
    ]
