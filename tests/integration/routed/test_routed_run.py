# SPDX-License-Identifier: Apache-2.0
"""`paralet run` on routers: paths planned and predicted by the kernels' order of next hops, and events of routers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from emul.routed.requirements import lack
from testbed.analysis.link_history import fabric_ports
from testbed.analysis.observations import Observations, RunRecord
from testbed.bench.measured import compared, said_paths
from testbed.cli.validation import as_routed
from testbed.progress import Silent
from testbed.simulate import fluid
from testbed.spec import load
from tests.integration.paralet import ROOT, run

LACK = lack()
pytestmark = [pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""), pytest.mark.long]

SPEC = Path(__file__).parent / "spec.yaml"


def run_with(tmp_path: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary and the observations of the spec with changed keys."""
    spec, results = tmp_path / "spec.yaml", tmp_path / "results"
    spec.write_text(yaml.safe_dump(yaml.safe_load(SPEC.read_text()) | changes))
    return run(spec, results), json.loads((results / "routed-small" / "observations.json").read_text())


def loaded(record: RunRecord) -> set[str]:
    """The ports that data have left by. Acknowledgements of them are much less, and so is BGP."""
    most = max(load.tx_bytes for load in record.links)
    return {load.port for load in record.links if load.tx_bytes > most / 20}


THREE_TIERS: dict[str, Any] = {
    "topology": {
        "clos": {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2, "hosts_per_leaf": 2, "host_rate": "20M"}
    },
    "workload": {"kind": "permutation", "shift": 4, "bytes": 1048576},
    "seeds": 1,
}


@pytest.mark.parametrize(
    ("changes", "ranks", "seeds", "choosing"),
    [
        ({}, 4, 2, {"leaf1", "leaf2"}),
        (THREE_TIERS, 8, 1, {f"{role}{number}" for role in ("leaf", "agg") for number in (1, 2, 3, 4)}),
    ],
    ids=["two tiers", "three tiers"],
)
def test_every_flow_goes_as_predicted_and_planned_flows_share_no_link(
    tmp_path: Path, changes: dict[str, Any], ranks: int, seeds: int, choosing: set[str]
) -> None:
    """Every link between routers then carries one flow in each direction."""
    summary, observations = run_with(tmp_path, **changes)
    assert all(policy["verified"] for policy in summary["policies"])
    assert summary["predictions"]["matched"] == summary["predictions"]["checked"] >= seeds * (4 * ranks + ranks)
    between = {str(port) for port in fabric_ports(load(tmp_path / "spec.yaml").topology)}
    pinned = [observed for observed in observations["runs"] if observed["policy"] == "pinned"]
    for observed in pinned:
        assert set(observed["next_hops"]) == choosing
        sent = [link["tx_bytes"] for link in observed["links"] if link["port"] in between]
        assert max(sent) < 1.2 * min(sent)
    modelled = load(tmp_path / "spec.yaml", fabric="fluid")
    for record in Observations.model_validate(observations).runs:
        (flowing,) = fluid.observe(as_routed(modelled, record), Silent()).runs
        assert loaded(flowing) & between == loaded(record) & between


def test_a_run_survives_all_that_happens_to_routers(tmp_path: Path) -> None:
    """The data arrive whatever dies, and the next run finds all routers as before."""
    silent = {port: {"loss": "100 %"} for port in ("leaf2:4", "spine2:2")}
    events = [
        {"at_s": 0.1, "drain": "spine2"},
        {"at_s": 0.2, "kill": "spine1"},
        {"at_s": 0.3, "revive": "spine1"},
        {"at_s": 0.4, "links": silent},
        {"at_s": 0.5, "kill": "spine2"},
    ]
    # On a busy machine an event takes long, and the run must last until the last one has happened.
    workload = {"kind": "permutation", "shift": 2, "bytes": 12582912}
    policies = [{"name": "paralet-4", "policy": "ecmp", "m": 4}]
    summary, observations = run_with(tmp_path, events=events, workload=workload, policies=policies)
    assert summary["policies"][0]["verified"]
    assert summary["predictions"]["checked"] == 0
    for observed in observations["runs"]:
        assert [event["what"] for event in observed["events"]][-1] == "kill spine2"
        assert {len(ports) for group in observed["next_hops"].values() for ports in group.values()} == {2}


@pytest.mark.parametrize(("name", "stalls"), [("silent_loss", True), ("drain", False)])
def test_an_experiment_with_events_loses_time_only(tmp_path: Path, name: str, stalls: bool) -> None:
    """On a smaller fabric, with one policy. A silent loss stops a planned path until BGP notices; a drain does not."""
    spec = yaml.safe_load((ROOT / "experiments" / "routed" / f"{name}.yaml").read_text())
    changed = {**THREE_TIERS, "workload": {**spec["workload"], "bytes": "8 MB"}}
    pinned = [policy for policy in spec["policies"] if policy["name"] == "pinned"]
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec | changed | {"policies": pinned}))
    (policy,) = run(file, tmp_path / "results")["policies"]
    assert policy["verified"]
    (events,), (recovery_s,) = policy["events"], policy["recovery_s"]
    assert bool(events[0]["concerned"]) == stalls
    assert max(recovery_s, default=0.0) > 1.0 if stalls else events[0]["what"] == "drain agg1"


@pytest.mark.parametrize(
    ("fabric", "events"),
    [("routed", [{"kill": "p2leaf1"}, {"kill": "p2leaf2"}]), ("mininet", [{"cut": "p2leaf1:1"}, {"cut": "p2leaf2:1"}])],
    ids=["routers die", "links of Open vSwitch are cut"],
)
def test_ranks_with_fused_nics_go_over_the_plane_that_lives(
    tmp_path: Path, fabric: str, events: list[dict[str, str]]
) -> None:
    """The second plane dies in the run, and returns after it."""
    planes = {"leaves": 2, "spines": 2, "hosts_per_leaf": 1, "host_rate": "20M", "planes": 2}
    summary, observations = run_with(
        tmp_path,
        topology={"leaf_spine": planes},
        fused_nics=["nic0", "nic1"],
        workload={"kind": "permutation", "shift": 1, "bytes": 12582912},
        policies=[{"name": "paralet-8", "policy": "ecmp", "m": 8}],
        fabric=fabric,
        events=[{"at_s": 0.5, **event} for event in events],
        seeds=1,
    )
    (policy,) = summary["policies"]
    assert policy["verified"]
    assert len(policy["events"][0]) == 2
    assert 0 < policy["bytes_to_nics"]["nic1"] < policy["bytes_to_nics"]["nic0"]
    assert policy["bytes_to_nics"]["nic0"] < 2 * 12582912 * 1.2  # hosts take each byte once
    (run,) = observations["runs"]
    assert {lane["lane"]["member"] for lane in run["lanes"] if lane["lane"]["tx_bytes"]} == {0}


PATIENCE_S = 60
"""For a plan: a device on a busy machine may wait long for it, and sends by the hash if it does not wait."""

CONTROLLER = {"policy": "controller", "elephant_bytes": 65536, "assign_wait_s": PATIENCE_S}


def test_the_path_service_plans_by_the_order_of_next_hops(tmp_path: Path) -> None:
    """On three tiers every link between routers carries the elephant of one host, and all go as predicted."""
    policies = [{"name": "controller", **CONTROLLER}]
    summary, observations = run_with(tmp_path, **{**THREE_TIERS, "policies": policies, "pinning": "hash"})
    (policy,) = summary["policies"]
    assert policy["verified"]
    assert policy["clients"][0]["ecmp_starts"] == 0, policy["clients"]
    assert summary["predictions"]["matched"] == summary["predictions"]["checked"] >= 16
    (observed,) = observations["runs"]
    assert observed["service"]["counts"]["next hops read"] == 1
    assert observed["service"]["dead_links"] == []
    between = {str(port) for port in fabric_ports(load(tmp_path / "spec.yaml").topology)}
    sent = [link["tx_bytes"] for link in observed["links"] if link["port"] in between]
    assert max(sent) < 1.2 * min(sent)


def test_the_path_service_plans_on_paths_that_hosts_measure(tmp_path: Path) -> None:
    """It is told neither the hash nor the next hops. Probes have at most 84 bytes, with the Ethernet header."""
    policies = [{"name": "controller", "m": 4, "rates": True, **CONTROLLER}]
    summary, observations = run_with(tmp_path, **{**THREE_TIERS, "policies": policies})
    assert summary["policies"][0]["verified"]
    assert observations["runs"][0]["service"]["options"]["rates"]
    assert summary["predictions"]["matched"] == summary["predictions"]["checked"] >= 16
    service = observations["runs"][0]["service"]
    assert (service["measured"]["probing_hosts"], service["measured"]["known_pairs"]) == (8, 8)
    assert "next hops read" not in service["counts"]
    assert service["counts"]["probes answered"] > 0.9 * service["counts"]["probes"] > 8 * 4
    assert 84 * service["counts"]["probes"] < 0.01 * 8 * THREE_TIERS["workload"]["bytes"]


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_parallel_links_are_measured_at_a_second_router(tmp_path: Path, ipv6: bool) -> None:
    """Of every port of an elephant, routers have noted those parallel links, up and down, that the service says."""
    links = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "20M", "parallel_links": 2, "ipv6": ipv6}
    workload = {"kind": "permutation", "shift": 2, "bytes": 8388608}
    policies = [{"name": "controller", "m": 4, **CONTROLLER}]
    changes = {"topology": {"leaf_spine": links}, "workload": workload, "policies": policies, "pinning": "measured"}
    summary, _ = run_with(tmp_path, **changes, seeds=1)
    assert summary["policies"][0]["verified"]
    folder = tmp_path / "results" / "routed-small"
    (record,) = Observations.load(folder / "observations.json").runs
    said = said_paths(folder / "logs" / "path-service-controller-1.jsonl")
    found = compared(load(tmp_path / "spec.yaml").topology, record, said)
    assert found.same == found.planned >= 4


def test_programs_over_sockets_of_their_own_take_planned_paths(tmp_path: Path) -> None:
    """Under `paralet pin` every link between routers carries the connection of one host."""
    sender, size = Path(__file__).with_name("tcp_sender.py"), THREE_TIERS["workload"]["bytes"]
    commands = [f"python3 {sender} $ADDRESS_{own} $ADDRESS_{(own + 4) % 8} {size}" for own in range(8)]
    workload = {"kind": "command", "bytes": size, "pairs": [[own, (own + 4) % 8] for own in range(8)]}
    policy = {"name": "pin", "policy": "controller", "transport": "socket", "assign_wait_s": PATIENCE_S}
    workload = {**workload, "commands": commands}
    run_with(tmp_path, **{**THREE_TIERS, "pinning": "hash", "policies": [policy], "workload": workload})
    observations = Observations.load(tmp_path / "results" / "routed-small" / "observations.json")
    (observed,) = observations.runs
    between = {str(port) for port in fabric_ports(load(tmp_path / "spec.yaml").topology)}
    sent = [link.tx_bytes for link in observed.links if link.port in between]
    assert max(sent) < 1.25 * min(sent)


def test_lanes_are_pinned_anew_when_a_core_dies(tmp_path: Path) -> None:
    """Nobody tells the path service. Afterwards it says of each port that it gave the path that routers have noted.

    A lane that performs badly takes a random port for a while: on a busy machine one may be there when the run ends.
    """
    written = yaml.safe_load((ROOT / "experiments" / "routed" / "router_death.yaml").read_text())
    policies = [policy for policy in written["policies"] if policy["policy"] == "controller"]
    changed = {**THREE_TIERS, "workload": {**written["workload"], "bytes": "4 MB"}, "policies": policies}
    file, results = tmp_path / "spec.yaml", tmp_path / "results"
    file.write_text(yaml.safe_dump(written | changed | {"events": [{"at_s": 1.0, "kill": "core1"}]}))
    (policy,) = run(file, results)["policies"]
    assert policy["verified"]
    ((repinned_s,),) = policy["repinned_s"]
    assert repinned_s is not None
    assert policy["probing"][0]["part_of_bytes"] < 0.01
    folder = results / written["name"]
    (record,) = Observations.load(folder / "observations.json").runs
    said = said_paths(folder / "logs" / "path-service-measured-1.jsonl")
    found = compared(load(file).topology, record, said)
    assert found.same == found.planned > 8
    assert found.flows - found.planned <= record.path_clients["reverted"]


def test_plans_keep_to_the_paths_that_ports_reach_with_a_polarised_hash(tmp_path: Path) -> None:
    """Planned before the run, or by the path service, which says what is wrong with the fabric."""
    policies = [{"name": "controller", **CONTROLLER}, {"name": "pinned", "policy": "pinned"}]
    routers = {"hash": "crc32", "hash_offset": {"core": 8}, "unnumbered": True}  # cores have no choice
    summary, observations = run_with(
        tmp_path, **{**THREE_TIERS, "policies": policies, "routers": routers, "pinning": "hash"}
    )
    assert all(policy["verified"] for policy in summary["policies"])
    assert summary["predictions"]["matched"] == summary["predictions"]["checked"] >= 16 + 8
    (service,) = (observed["service"] for observed in observations["runs"] if observed["policy"] == "controller")
    assert "ports reach 2 of 4 paths" in service["polarised"]


def test_the_path_service_plans_around_dead_aggs_and_cores(tmp_path: Path) -> None:
    """It reads the next hops again after each event, so that the data arrive by paths that exist."""
    events = [{"at_s": 0.3, "kill": "agg1"}, {"at_s": 0.6, "kill": "core4"}]
    workload = {"kind": "permutation", "shift": 4, "bytes": 8388608}
    policies = [{"name": "controller", **CONTROLLER}]
    summary, observations = run_with(
        tmp_path,
        **{**THREE_TIERS, "workload": workload, "policies": policies, "events": events, "pinning": "hash"},
    )
    assert summary["policies"][0]["verified"]
    service = observations["runs"][0]["service"]
    assert service["counts"]["next hops read"] == 3
    assert service["counts"]["elephants cut"] >= 4  # those of two hosts, which send and receive
    assert service["unreachable"] == 0
    dead = {end.partition(":")[0] for link in service["dead_links"] for end in link.split()}
    assert {"agg1", "core4"} <= dead


def test_planned_flows_take_their_paths_by_segments_whatever_routers_hash(tmp_path: Path) -> None:
    """Routers choose by a CRC, alike on both tiers: no port would take some of the paths."""
    clos = THREE_TIERS["topology"]["clos"]
    changes = {
        **THREE_TIERS,
        "topology": {"clos": {**clos, "ipv6": True}},
        "routers": {"hash": "crc32"},
        "pinning": "srv6",
        "policies": [{"name": "pinned", "policy": "pinned", "m": 2}],
    }
    summary, observations = run_with(tmp_path, **changes)
    assert all(policy["verified"] for policy in summary["policies"])
    (observed,) = observations["runs"]
    carried = [lane["lane"] for lane in observed["lanes"] if lane["lane"]["tx_bytes"]]
    assert len(carried) == 8 * 2
    assert summary["predictions"]["matched"] == summary["predictions"]["checked"] >= len(carried)
    between = {str(port) for port in fabric_ports(load(tmp_path / "spec.yaml").topology)}
    sent = [link["tx_bytes"] for link in observed["links"] if link["port"] in between]
    assert max(sent) < 1.2 * min(sent)
