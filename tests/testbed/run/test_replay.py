# SPDX-License-Identifier: Apache-2.0
"""Replays of simulated clusters: what they plan, and how jobs take and release links, without a fabric."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netmodel import Flow, LinuxL4Hash, OvsHash, PortRef, path_of
from sdn.isolation.virtual_clos import VirtualClos
from testbed.errors import InputError
from testbed.process_group import ProcessError
from testbed.run import replay as replay_module
from testbed.run.agents import StartAgent
from testbed.run.replay import Record, ReplaySwitches, replay
from testbed.run.replay_plan import ReplayPlan, plan_replay, ports_of
from testbed.spec.cluster import ClusterSpec
from tests.testbed.experiments import experiment, on_loopback
from tests.testbed.run.fake_fabric import TCP_AGENT, FakeFabric, agents_by

PACKED = {"name": "packed", "placement": "packed", "network": "ecmp"}
VCLOS = {"name": "vclos", "placement": "vclos", "network": "reserved"}

JOBS = """JobID|Submit|ElapsedRaw|AllocTRES
wide|2026-01-01T00:00:00|20|gres/gpu=4
small|2026-01-01T00:00:01|10|gres/gpu=1
pair|2026-01-01T00:00:02|10|gres/gpu=2
never|2026-01-01T00:00:03|10|gres/gpu=99
"""
"""On 4 GPUs: `small` and `pair` wait for `wide`."""


def spec(folder: Path, *strategies: dict[str, Any], speedup: float = 100.0, **changes: Any) -> ClusterSpec:
    file = folder / "jobs.txt"
    file.write_text(JOBS)
    return ClusterSpec.model_validate(
        {
            "name": "small",
            "cluster": {"leaves": 2, "spines": 2, "servers_per_leaf": 2, "gpus_per_server": 1},
            "trace_file": {
                "file": str(file),
                "format": "sacct",
                "pattern": "pairwise_alltoall",
                "communication": 0.5,
            },
            "fidelity": "fair",
            "rounds": 2,
            "replay": {"speedup": speedup, "rate": "100 Mbit/s"},
            "strategies": list(strategies),
            **changes,
        }
    )


@pytest.fixture(autouse=True)
def _counters_never_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the fake fabric grow with every reading."""
    monkeypatch.setattr(replay_module, "_QUIET_S", 0.0)


def test_a_plan_has_the_starts_the_hosts_and_the_reservations_of_the_simulation(tmp_path: Path) -> None:
    plan, results = plan_replay(spec(tmp_path, VCLOS))
    (strategy,) = plan.strategies
    assert strategy.isolated
    wide, *others = strategy.jobs
    assert [job.name for job in strategy.jobs] == ["wide", "small", "pair"]
    assert [job.start_s for job in strategy.jobs] == pytest.approx([0.0, 0.2, 0.2])
    assert [outcome.state for outcome in results["vclos"].outcomes] == ["ended", "ended", "ended", "refused"]
    assert wide.hosts == ["h1", "h2", "h3", "h4"]
    assert wide.uplinks == ["leaf1:3", "leaf1:4", "leaf2:3", "leaf2:4"]
    assert wide.paths == {}
    for job in others:
        assert (job.after, job.uplinks) == ([0], [])
    assert not {*others[0].hosts} & {*others[1].hosts}
    workload = wide.workload
    assert workload.compute_s == pytest.approx(0.2 * 0.5 / 2)
    assert workload.bytes == pytest.approx(0.2 * 0.5 * 100e6 / 8, rel=0.02)  # and headers
    assert others[0].workload.compute_s == pytest.approx(0.1 / 2)  # one GPU sends nothing


@pytest.mark.parametrize("network", ["ecmp", "balanced", "source_routing", "pinned", "paralet"])
def test_pinned_ports_take_the_spines_of_the_simulation(tmp_path: Path, network: str) -> None:
    """In vClos's terms: by the links on which the simulation counts flows, all of them and no other."""
    plan, results = plan_replay(spec(tmp_path, {"name": "own", "placement": "packed", "network": network, "lanes": 4}))
    topology = plan.topology
    (strategy,) = plan.strategies
    job = strategy.jobs[0]
    assert strategy.lanes == (4 if network == "paralet" else 1)
    tables = ports_of(job, topology, OvsHash(), None)
    across = {(src, dst) for src, table in tables.items() for dst in table}
    assert across == {(src, dst) for src in range(4) for dst in range(4) if src // 2 != dst // 2}
    flows: dict[PortRef, float] = {}
    for step in job.workload.destinations:
        on = dict.fromkeys(topology.linked_ports(), 0.0)
        for src, dst in enumerate(step):
            for port in tables[src].get(dst, []):
                addresses = [topology.host(job.hosts[rank]).nics[0].address for rank in (src, dst)]
                for link in path_of(topology, Flow(*addresses, port), OvsHash())[1:-1]:
                    on[link] += 1 / strategy.lanes
        flows = {link: max(flows.get(link, 0.0), count) for link, count in on.items()}
    if network in ("source_routing", "pinned", "balanced"):
        assert max(flows.values()) == 1
    worst = results["own"].outcomes[0]
    assert worst.running_s is not None
    stretched = max(flows.values()) > 1
    assert (worst.running_s > 20.0 + 1e-6) == stretched


PODS = {
    "clos": {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2},
    "servers_per_leaf": 1,
    "gpus_per_server": 1,
}


@pytest.mark.parametrize("fabric", ["mininet", "routed"])
@pytest.mark.parametrize("strategy", [PACKED, PACKED | {"network": "paralet", "lanes": 3}, VCLOS])
def test_on_three_tiers_ports_take_the_aggs_and_cores_of_the_simulation(
    tmp_path: Path, fabric: str, strategy: dict[str, Any]
) -> None:
    """Those of `vclos` too, because only switches of a leaf-spine keep jobs apart."""
    plan, _ = plan_replay(spec(tmp_path, strategy, cluster=PODS, replay={"speedup": 100, "fabric": fabric}))
    (own,), topology = plan.strategies, plan.topology
    assert (plan.fabric, own.isolated) == (fabric, False)
    wide, ecmp_hash = own.jobs[0], LinuxL4Hash() if fabric == "routed" else OvsHash()
    seen: set[int] = set()
    for src, table in ports_of(wide, topology, ecmp_hash, None).items():
        for dst, ports in table.items():
            addresses = [topology.host(wide.hosts[rank]).nics[0].address for rank in (src, dst)]
            paths = [path_of(topology, Flow(*addresses, port), ecmp_hash) for port in ports]
            assert [[*map(str, path)] for path in paths] == wide.paths[src][dst]
            seen |= {len(path) for path in paths}
    assert seen == {4, 6}  # within a pod and between two
    assert len(wide.paths) == 4


def test_a_path_that_no_port_takes_is_refused(tmp_path: Path) -> None:
    """Routers of one seed choose alike, so that an agg's choice of a core follows from the leaf's of the agg."""
    plan, _ = plan_replay(spec(tmp_path, PACKED, cluster=PODS, replay={"speedup": 100, "fabric": "routed"}))
    same = replace(plan.topology, switches=tuple(replace(switch, hash_seed=1) for switch in plan.topology.switches))
    with pytest.raises(InputError, match=r"no source port from h\d to h\d takes the path h\d:1, leaf"):
        ports_of(plan.strategies[0].jobs[0], same, LinuxL4Hash(), None)


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ({"name": "a", "placement": "packed", "network": "ideal"}, "'a' cannot be replayed: packed with ideal has no"),
        ({"name": "a", "placement": "packed", "network": "replanned"}, "moves flows while they send; these networks"),
        ({"name": "a", "placement": "ocs_vclos", "network": "reserved"}, "needs optical switches between"),
    ],
)
def test_a_strategy_that_cannot_be_replayed_is_refused(tmp_path: Path, strategy: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        plan_replay(spec(tmp_path, strategy))


def test_several_planes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one NIC for each GPU, so one plane: leave out planes"):
        plan_replay(spec(tmp_path, PACKED, cluster=PODS | {"planes": 2}))


def test_a_spec_without_a_speedup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs the key `replay` in the spec"):
        plan_replay(spec(tmp_path, VCLOS, replay=None))


def replayed(folder: Path, plan: ReplayPlan, start: StartAgent = TCP_AGENT) -> tuple[Record, FakeFabric]:
    made = on_loopback(experiment(folder))
    assert made.topology.name == plan.topology.name
    fabric = FakeFabric(made)
    switches = ReplaySwitches(OvsHash(), fabric)
    return replay(plan, made.topology, fabric, switches, folder / "logs", start), fabric


def test_jobs_take_their_links_when_they_start_and_release_them_at_their_end(tmp_path: Path) -> None:
    plan, _ = plan_replay(spec(tmp_path, VCLOS))
    record, fabric = replayed(tmp_path, plan)
    (strategy,) = record.strategies
    wide, small, pair = strategy.jobs
    assert [job.wrong_bytes for job in strategy.jobs] == [0, 0, 0]
    assert all(
        job.end_s > job.start_s >= planned.start_s
        for job, planned in zip(strategy.jobs, plan.strategies[0].jobs, strict=True)
    )
    assert min(small.start_s, pair.start_s) >= wide.end_s
    assert set(wide.uplink_bytes) == {"leaf1:3", "leaf1:4", "leaf2:3", "leaf2:4"}
    held = [
        {job.job for job in steering.jobs} if isinstance(steering, VirtualClos) else None for steering in fabric.steered
    ]
    assert held[:3] == [set(), {"wide"}, set()]
    assert held[-1] == set()
    assert all(held[number] != held[number + 1] for number in range(len(held) - 1))
    assert set().union(*(names or set() for names in held)) == {"wide", "small", "pair"}
    assert strategy.strays == {"leaf1:2": 7}


def test_strategies_are_replayed_one_after_the_other(tmp_path: Path) -> None:
    paralet = {"name": "paralet", "placement": "scattered", "network": "paralet", "lanes": 2}
    plan, _ = plan_replay(spec(tmp_path, PACKED, paralet))
    record, fabric = replayed(tmp_path, plan)
    assert [strategy.name for strategy in record.strategies] == ["packed", "paralet"]
    assert not any(job.wrong_bytes for strategy in record.strategies for job in strategy.jobs)
    assert fabric.steered == [None, None]
    assert all(strategy.strays == {} for strategy in record.strategies)
    assert set(record.strategies[0].uplink_bytes) == {f"leaf{leaf}:{port}" for leaf in (1, 2) for port in (3, 4)}


def test_the_first_failure_ends_all_jobs(tmp_path: Path) -> None:
    """One agent dies when its job begins: jobs that wait for its hosts give up, and the error names it."""
    plan, _ = plan_replay(spec(tmp_path, VCLOS))
    dying = agents_by(sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)")
    with pytest.raises(ProcessError, match=r"the agent on h\d ended with status 3; its log is"):
        replayed(tmp_path, plan, dying)
