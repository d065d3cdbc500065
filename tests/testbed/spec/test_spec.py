# SPDX-License-Identifier: Apache-2.0
"""Specs: the experiments that they describe, and the error of every kind of mistake."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from netmodel import PortRef, SpecError, dump_topology
from testbed.cli import main
from testbed.errors import InputError
from testbed.policies import OURS
from testbed.spec import FABRICS, Experiment, Instance, all_hosts, dump, load
from tests.testbed.experiments import SMALL, experiment, first_of, write_spec

ROOT = Path(__file__).parents[3]
TOPOLOGY = SMALL["topology"]["leaf_spine"]
ECMP = [{"name": "one", "policy": "ecmp"}]
IPV6 = {"leaf_spine": {**TOPOLOGY, "ipv6": True}}
LOOPBACK = {
    "name": "pair",
    "hosts": [{"name": f"h{n}", "nics": [{"address": f"127.0.0.{n}"}]} for n in (1, 2)],
    "switches": [{"name": "leaf1", "role": "leaf"}],
    "links": [{"a": f"h{n}:1", "b": f"leaf1:{n}", "rate": "1 Mbit/s"} for n in (1, 2)],
}
UNCABLED = {
    "name": "pair",
    "hosts": [{"name": f"h{n}", "nics": [{"address": f"10.0.0.{n}"}]} for n in (1, 2)],
    "switches": [{"name": "leaf1", "role": "leaf"}],
    "links": [{"a": "h1:1", "b": "leaf1:1", "rate": "1G"}],
}
ONE_SEED = {
    "name": "four",
    "hosts": [{"name": f"h{n}", "nics": [{"address": f"10.0.0.{n}"}]} for n in (1, 2, 3, 4)],
    "switches": [
        {"name": name, "role": role, "hash_seed": 7}
        for name, role in (("leaf1", "leaf"), ("leaf2", "leaf"), ("spine1", "spine"))
    ],
    "links": [
        *({"a": f"h{n}:1", "b": f"leaf{(n + 1) // 2}:{n}", "rate": "1G"} for n in (1, 2, 3, 4)),
        *({"a": f"leaf{n}:9", "b": f"spine1:{n}", "rate": "1G"} for n in (1, 2)),
    ],
}


def facts(made: Experiment) -> list[object]:
    """All that an experiment says."""
    return [getattr(made, field.name) for field in fields(made)]


def test_a_spec_gives_hosts_and_jobs(tmp_path: Path) -> None:
    made = experiment(tmp_path, pcap=["leaf1:3"], seeds=[7, 3])
    first = first_of(made)
    assert first.hosts == made.first_hosts == ("h1", "h3", "h2", "h4")
    assert first.leaves == ("leaf1", "leaf2", "leaf1", "leaf2")
    assert first.address(1) == "10.0.1.1"
    assert first.line_rate_bps(0) == 100_000_000
    assert made.pcap == (PortRef("leaf1", 3),)
    assert made.seeds == (7, 3)


def test_jobs_divide_the_ranks_and_number_them_from_zero(tmp_path: Path) -> None:
    made = experiment(tmp_path, jobs=2)
    assert [(job.name, list(job.ranks)) for job in made.jobs] == [("job1", [0, 1]), ("job2", [2, 3])]
    assert [made.job_of(rank).name for rank in range(4)] == ["job1", "job1", "job2", "job2"]
    pairs = {(transfer.src, transfer.dst) for transfer in first_of(made).transfers}
    assert pairs == {(0, 1), (1, 0), (2, 3), (3, 2)}
    steps = [transfer.step for transfer in first_of(made).transfers]
    assert steps == sorted(steps)
    assert first_of(experiment(tmp_path)).transfers == made.spec.workload.schedule(4, 1)
    assert [job.size for job in experiment(tmp_path, jobs=[2, 2]).jobs] == [2, 2]


def test_redraw_gives_every_seed_its_own_placement(tmp_path: Path) -> None:
    drawn = experiment(tmp_path, placement={"rule": "random", "ranks": 2, "redraw": True}, seeds=8)
    placements = [Instance(drawn, seed).hosts for seed in drawn.seeds]
    assert drawn.first_hosts == placements[0]
    assert placements == [Instance(drawn, seed).hosts for seed in drawn.seeds]
    assert len(set(placements)) > 2
    assert set(all_hosts(drawn)) == {host for hosts in placements for host in hosts}
    assert Instance(drawn, 3).address(1) == str(drawn.topology.host(placements[2][1]).nics[0].address)
    fixed = experiment(tmp_path, placement={"rule": "random"}, seeds=8)
    assert {Instance(fixed, seed).hosts for seed in fixed.seeds} == {fixed.first_hosts}


def test_a_number_of_seeds_counts_from_one(tmp_path: Path) -> None:
    assert experiment(tmp_path, seeds=3).seeds == (1, 2, 3)


def test_a_topology_may_be_in_a_file_beside_the_spec(tmp_path: Path) -> None:
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text(dump_topology(experiment(tmp_path).topology))
    made = experiment(tmp_path, topology={"file": "fabric.yaml"})
    assert len(made.topology.hosts) == 4
    fabric.unlink()
    again = tmp_path / "again.yaml"
    again.write_text(dump(made.spec))  # the copy in the results needs no other file
    assert facts(load(again)) == facts(made)


def test_an_app_of_the_switches_is_missed_only_by_who_runs_it(tmp_path: Path) -> None:
    made = experiment(tmp_path, openflow={"app": "mine.py"}, policies=[{"name": "one", "policy": "ecmp"}])
    assert not made.predicts
    again = tmp_path / "again.yaml"
    again.write_text(dump(made.spec))
    with pytest.raises(SpecError, match=r"openflow\.app: there is no file .*mine\.py"):
        load(again, run_code=True)
    app = tmp_path / "mine.py"
    app.write_text("first")
    first = load(again, run_code=True).spec
    assert dump(load(again).spec) == dump(first)
    app.write_text("second")
    assert dump(load(again, run_code=True).spec) != dump(first)  # runs of the first are not continued
    app.unlink()
    again.write_text(dump(first))
    assert load(again).spec == first  # a report of results elsewhere


def test_ranks_are_placed_on_all_hosts_in_order_by_default(tmp_path: Path) -> None:
    assert experiment(tmp_path, placement=None).first_hosts == ("h1", "h2", "h3", "h4")
    assert experiment(tmp_path, placement={"ranks": 2}).first_hosts == ("h1", "h2")


def test_a_dumped_spec_is_the_same_experiment(tmp_path: Path) -> None:
    made = experiment(tmp_path, path_mtu=1024)
    again = tmp_path / "again.yaml"
    again.write_text(dump(made.spec))
    assert facts(load(again)) == facts(made)


EXPERIMENTS = ROOT / "experiments"
OTHERS = [path for folder in ("clusters", "plan", "validation") for path in (EXPERIMENTS / folder).rglob("*.yaml")]
OWN = sorted(set(EXPERIMENTS.rglob("*.yaml")) - set(OTHERS))


@pytest.mark.parametrize("spec", OWN, ids=lambda path: path.name)
def test_experiments_of_the_project_are_valid(spec: Path) -> None:
    assert load(spec, run_code=True).spec.name in (spec.stem, f"{spec.parent.name}_{spec.stem}")


def test_options_choose_policies_and_seeds(tmp_path: Path) -> None:
    made = load(write_spec(tmp_path), policies=["pinned"], seeds=4)
    assert [policy.name for policy in made.spec.policies] == ["pinned"]
    assert made.seeds == (1, 2, 3, 4)
    with pytest.raises(InputError, match="no policy 'spray'; it has ecmp, pinned"):
        load(write_spec(tmp_path), policies=["spray"])


TORCH = {"kind": "torch", "script": str(EXPERIMENTS / "torch" / "transformer.py"), "bytes": 800}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"sedes": 3}, "sedes: unknown key; did you mean 'seeds'"),
    ({"workload": {**SMALL["workload"], "slics": 3}}, "workload.slics: unknown key; did you mean 'slices'"),
    ({"policies": [{"name": "a", "policy": "ecmp", "lanes": 8}]}, r"policies\[0\].lanes: unknown key"),
    ({"name": None}, "name: is missing"),
    ({"name": "../up"}, "name: "),
    ({"name": "latest"}, "name: 'latest' is the name of the link"),
    ({"fabric": "fluid", "pcap": ["leaf1:1"]}, "pcap: fabric fluid has no real packets to capture"),
    (
        {"policies": [{"name": "a", "policy": "recycled"}]},
        r"policies\[0\].policy: fabric mininet has no policy recycled; use fluid or packet",
    ),
    (
        {"fabric": "packet", "policies": [{"name": "a", "policy": "ecmp", "congestion_control": "delay"}]},
        r"policies\[0\].congestion_control: it is for transport paralet on fabrics mininet and routed",
    ),
    (
        {"policies": [{"name": "a", "policy": "ecmp", "window_packets": 8}]},
        r"policies\[0\].window_packets: is for congestion_control fixed_window only",
    ),
    (
        {"policies": [{"name": "a", "policy": "ecmp", "paced": True}]},
        r"policies\[0\].paced: only fabric fluid models it",
    ),
    (
        {"fabric": "fluid", "policies": [{"name": "a", "policy": "spraying", "paced": True}]},
        r"policies\[0\].paced: is for lanes that pull",
    ),
    (
        {"fabric": "fluid", "policies": [{"name": "a", "policy": "ecmp", "lanes_per": "host"}]},
        r"policies\[0\].lanes_per: fabric fluid has no lanes of a host; leave it out",
    ),
    (
        {"fabric": "packet", "policies": [{"name": "a", "policy": "drill", "lanes_per": "host"}]},
        r"policies\[0\].lanes_per: is for lanes that each have a path, which policy drill does not have",
    ),
    (
        {"policies": [{"name": "a", "policy": "ecmp", "transport": "socket"}]},
        r"policies\[0\].transport: socket is for workloads nccl, torch and command on fabrics mininet and routed",
    ),
    (
        {"fabric": "fluid", "policies": [{"name": "a", "policy": "ecmp", "transport": "tcp"}]},
        r"policies\[0\].transport: tcp is for fabrics mininet and routed",
    ),
    (
        {
            "links": {"leaf1:3": {"corruption": 0.01}},
            "policies": [{"name": "a", "policy": "ecmp", "transport": "tcp"}],
        },
        r"policies\[0\].transport: links damage packets of RoCEv2 only",
    ),
    (
        {"policies": [{"name": "a", "policy": "ecmp", "transport": "tcp", "congestion_control": "delay"}]},
        r"policies\[0\].congestion_control: it is for transport paralet on fabrics mininet and routed",
    ),
    (
        {
            "workload": {"kind": "nccl", "bytes": 800},
            "policies": [{"name": "a", "policy": "adaptive", "transport": "socket"}],
        },
        r"policies\[0\].transport: socket has no lanes: take policy ecmp, pinned or controller, leave out m and",
    ),
    (
        {"workload": {"kind": "nccl", "bytes": 404, "collective": "reduce_scatter"}},
        "workload.bytes: 404 bytes are not a whole number of elements for each of",
    ),
    ({"workload": {"kind": "nccl", "bytes": 800}, "fabric": "softroce"}, "workload.kind: workload nccl runs on fabric"),
    ({"workload": TORCH, "fabric": "fluid"}, "workload.kind: workload torch runs on fabric mininet"),
    ({"workload": TORCH, "fabric": "packet"}, "workload.kind: workload torch runs on fabric mininet"),
    ({"workload": {**TORCH, "script": "none.py"}}, "workload.script: there is no file .*/none.py"),
    ({"workload": {**TORCH, "script": None}}, "workload.script: "),
    (
        {"workload": {**TORCH, "arguments": ["--width", "8", "--seed=3"]}},
        r"workload.arguments\[2\]: the script gets --seed from the spec's other keys; leave it out",
    ),
    ({"workload": {**TORCH, "arguments": ["--width", 8]}}, r"workload.arguments\[1\]: must be a valid string, not 8"),
    (
        {"links": {"leaf1:33": {"loss": 0.1}}},
        "'leaf1:33' is not a connected port; write a switch's like 'leaf1:5', or a host's first NIC like 'h1:1'",
    ),
    ({"links": {"h1:0": {"loss": 0.1}}}, "'h1:0' is not a connected port"),
    ({"links": {"h1:2": {"loss": 0.1}}}, "'h1:2' is not a connected port"),
    (
        {"links": {"h1:1": {"mark_above": 1}}, "fabric": "packet"},
        "hosts of fabric packet have no queue that marks; leave it out, or use mininet",
    ),
    ({"links": {"leaf1:3": {"loss": "1"}}}, "'1' is not a probability: write it like '1 %' or 0.01"),
    ({"links": {"leaf1:3": {"loss": "101 %"}}}, "links.leaf1:3.loss: must be less than or equal to 1"),
    (
        {"links": {"leaf1:3": {"mark_above": "40 Kbit"}}},
        "'40 Kbit' is not a size: write it like '4 MiB', '40 KB' or 40000",
    ),
    ({"links": {"leaf1:3": {"mark_above": "0.5 B"}}}, "'0.5 B' is not a whole number of bytes"),
    (
        {"workload": {"kind": "permutation", "shift": 1, "bytes": "4 MiB/s"}},
        "workload.bytes: '4 MiB/s' is not a size: write it like '4 MiB', '40 KB' or 40000",
    ),
    ({"links": {"leaf1:3": {"delay": "50"}}}, "'50' is not a time: write it like '50 us', '2 ms' or 0.002"),
    ({"links": {"leaf1:3": {"delay": "101 ms"}}}, "links.leaf1:3.delay: must be less than or equal to 0.1"),
    ({"links": {"leaf1:3": {"reorder": 0.1}}}, "links.leaf1:3: reorder needs late_by, the longest time"),
    ({"links": {"leaf1:3": {"late_by": 0.1}}}, "links.leaf1:3: reorder needs late_by, the longest time"),
    ({"events": [{"at_s": 1.0, "links": {"leaf1:33": {}}}]}, "'leaf1:33' is not a connected port"),
    ({"events": [{"at_s": 1.0, "cut": "h1:1"}]}, "'h1:1' is not a connected switch port"),
    ({"events": [{"at_s": 1.0, "links": {}}]}, r"events\[0\].links: "),
    (
        {"fabric": "fluid", "events": [{"at_s": 1.0, "links": {"leaf1:3": {}}}]},
        r"events\[0\].links: fabric fluid has no links with faults; use mininet",
    ),
    (
        {
            "fabric": "softroce",
            "topology": {
                "leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": 1, "host_delay": 1e-6}
            },
        },
        "topology: fabric softroce has no links with delays; leave them out, or use mininet",
    ),
    ({"fabric": "routed", "pinning": "rules"}, "pinning: routers choose paths by a hash: give hash, measured or srv6"),
    (
        {"topology": LOOPBACK},
        "topology: host 'h1' has the loopback address 127.0.0.1, where no other",
    ),
    (
        {"fabric": "fluid", "openflow": {"app": "mine.py"}, "policies": ECMP},
        "openflow: only fabric mininet has switches with OpenFlow; leave it out, or use mininet",
    ),
    (
        {"openflow": {"app": "mine.py"}, "policies": ECMP, "pinning": "rules"},
        "pinning: it needs rules of our own app; leave it out, or",
    ),
    (
        {"openflow": {"app": "mine.py"}, "policies": ECMP, "jobs": 2},
        "jobs: the links that jobs share are told by predicted paths",
    ),
    (
        {"openflow": {"app": "mine.py"}, "policies": [{"name": "one", "policy": "pinned"}]},
        r"policies\[0\].policy: policy pinned plans paths by the rules of our own app; take ecmp or adaptive",
    ),
    ({"pinning": "measured"}, "pinning: only routers answer probes: use fabric routed"),
    ({"pinning": "srv6"}, "pinning: only fabric routed has segments; leave it out, or take hash"),
    ({"fabric": "routed", "pinning": "srv6"}, "pinning: segments are IPv6 addresses; give the topology ipv6: true"),
    (
        {"fabric": "routed", "topology": IPV6, "pinning": "srv6", "routers": {"unnumbered": True}},
        "routers.unnumbered: segments lead to the addresses of links",
    ),
    (
        {
            "fabric": "routed",
            "topology": IPV6,
            "workload": {"kind": "permutation", "shift": 1, "bytes": "1 MiB"},
            "pinning": "srv6",
            "policies": [{"name": "p", "policy": "pinned", "transport": "tcp"}],
        },
        r"policies\[0\].transport: only transport paralet has segments",
    ),
    (
        {"fabric": "routed", "policies": [{"name": "c", "policy": "vclos"}]},
        r"policies\[0\].policy: fabric routed has no policy vclos; use mininet or fluid or packet",
    ),
    (
        {"fabric": "routed", "events": [{"at_s": 1, "kill": "spine9"}]},
        "events.0..kill: topology .* has no switch spine9",
    ),
    ({"fabric": "routed", "events": [{"at_s": 1, "drain": "h1"}]}, r"events\[0\].drain: topology .* has no router h1"),
    (
        {"fabric": "routed", "events": [{"at_s": 1, "reset": "leaf1:1"}]},
        r"events\[0\].reset: no port of a link between",
    ),
    (
        {"fabric": "routed", "routers": {"hash_offset": {"spine": 8}}},
        "routers.hash_offset: the hash linux has no offset; leave it out, or take hash crc32",
    ),
    (
        {"fabric": "routed", "routers": {"hash": "crc32", "hash_offset": {"spine": 32}}},
        "routers.hash_offset.spine: .* less than 32",
    ),
    (
        {
            "fabric": "routed",
            "routers": {"hash": "crc32", "hash_offset": {"spine": 8}},
            "topology": ONE_SEED,
        },
        "routers.hash_offset: hash seed 7 of switch .* is also that of a switch with another offset",
    ),
    ({"events": [{"at_s": 1, "revive": "spine1"}]}, r"events\[0\].revive: only fabric routed has routers"),
    ({"fabric": "fluid", "events": [{"at_s": 1, "reset": "leaf1:3"}]}, r"events\[0\].reset: only fabric routed has"),
    ({"links": {"leaf1:3": {"loss": 0.1}}, "fabric": "fluid"}, "fabric fluid has no links with faults; use mininet"),
    ({"links": {"leaf1:3": {"loss": 0.1}}, "fabric": "softroce"}, "fabric softroce has no links with faults"),
    ({"fabric": "fluid", "events": [{"at_s": 0.0, "degrade": "leaf1:3"}]}, "degrade needs part"),
    ({"topology": {"leaf_spine": {**TOPOLOGY, "host_rate": 0}}}, "topology.leaf_spine.host_rate: rate 0 must lie"),
    ({"topology": {"leaf_spine": {**TOPOLOGY, "spines": 0}}}, "topology.leaf_spine"),
    ({"topology": UNCABLED}, "topology: no link of topology 'pair' is plugged into port h2:1; add one"),
    ({"topology": {"file": "none.yaml"}}, "none.yaml: cannot be read"),
    ({"topology": {"file": "none.yaml", "rate": 3}}, "topology.rate: unknown key"),
    ({"placement": {"hosts": ["h1", "h9"]}}, r"placement.hosts\[1\]: topology .* has no host 'h9'"),
    ({"placement": {"hosts": ["h1", "h1"]}}, r"placement.hosts\[1\]: host h1 has a rank already"),
    ({"placement": {"rule": "packed", "ranks": 5}}, "placement: 5 ranks need 5 hosts, .* has 4"),
    ({"placement": {"rule": "cross_leaf", "ranks": 3}}, "placement: .* cannot close a ring of 3"),
    ({"placement": {"rule": "packed", "hosts": ["h1", "h2"]}}, "placement: give either hosts or rule"),
    ({"placement": {"hosts": ["h1", "h2"], "ranks": 2}}, "placement.ranks: the list of hosts gives the number"),
    ({"nic": "eth7"}, "nic: host h1 has no device 'eth7'; let nic be one of its devices: nic0"),
    ({"pcap": ["leaf1:77"]}, r"pcap\[0\]: 'leaf1:77' is not a connected switch port"),
    ({"pcap": ["h1:1"]}, r"pcap\[0\]: 'h1:1' is not a connected switch port"),
    ({"pcap": ["leaf1"]}, r"pcap\[0\]: 'leaf1' is not a connected switch port"),
    ({"policies": []}, "policies: "),
    (
        {"policies": [{"name": "a", "policy": "spray"}]},
        r"policies\[0\].policy: must be 'ecmp', 'pinned', 'adaptive', .* or '\w+', not 'spray'$",
    ),
    (
        {"policies": [{"name": "a", "policy": "ecmp", "planner": "greedy"}]},
        r"policies\[0\].planner: is for policy controller",
    ),
    (
        {"policies": [{"name": "a", "policy": "controller", "planner": "magic"}]},
        r"policies\[0\].planner: must be 'optimal', ",
    ),
    (
        {"policies": [{"name": "a", "policy": "ecmp", "uplinks": {"leaf1": {1: 3}}}]},
        r"policies\[0\].uplinks: is for policy source_routing only",
    ),
    (
        {"policies": [{"name": "a", "policy": "source_routing", "uplinks": {"leaf1": {1: 3, 2: 3}}}]},
        r"policies\[0\]\.uplinks: source routing: two host ports of leaf1 share a spine port",
    ),
    (
        {
            "topology": {"leaf_spine": {**TOPOLOGY, "spines": 1}},
            "policies": [{"name": "a", "policy": "source_routing"}],
        },
        r"policies\[0\]\.policy: source routing gives every host an uplink of its own, and leaf1 has 2 hosts and 1",
    ),
    (
        {
            "topology": {"leaf_spine": {**TOPOLOGY, "spines": 3, "hosts_per_leaf": 3}},
            "policies": [{"name": "a", "policy": "source_routing", "uplinks": "by_rank"}],
        },
        r"policies\[0\]\.uplinks: source routing by rank takes 4 uplinks on each leaf, .* and leaf1 has 3",
    ),
    (
        {"policies": [{"name": "a", "policy": "source_routing", "uplinks": "by_luck"}]},
        r"policies\[0\]\.uplinks: ",
    ),
    ({"jobs": 3}, "jobs: 3 jobs of two ranks or more do not fit 4 ranks"),
    ({"jobs": 0}, "jobs: 0 jobs"),
    ({"jobs": [2, 3]}, "jobs: the sizes of the jobs must be 2 or more and add up to the 4 ranks placed"),
    ({"jobs": [3, 1]}, "jobs: the sizes of the jobs"),
    ({"placement": {"rule": "packed", "redraw": True}}, "placement.redraw: only rule random"),
    ({"pinning": "luck"}, "pinning: must be 'hash', 'rules', 'measured' or 'srv6'"),
    (
        {"events": [{"at_s": 1}]},
        r"events\[0\]: give exactly one of cut, degrade, mend, swap, kill, revive, drain, undrain, reset, links",
    ),
    ({"events": [{"at_s": 1, "cut": "leaf1:3", "mend": "leaf1:3"}]}, r"events\[0\]: give exactly one of"),
    ({"events": [{"at_s": 1.0, "cut": "leaf1:33"}]}, r"events\[0\].cut: 'leaf1:33' is not a connected switch port"),
    (
        {"events": [{"at_s": 1.0, "path_service": "kill"}]},
        r"events\[0\].path_service: no policy of the spec uses the path service",
    ),
    ({"policies": [{"name": "a", "policy": "ecmp"}] * 2}, r"policies\[1\].name: another policy is called 'a'"),
    ({"policies": [{"name": "a", "policy": "ecmp", "m": 0}]}, r"policies\[0\].m: "),
    ({"seeds": 0}, "seeds: "),
    ({"seeds": 10**12}, "seeds: give the number of seeds, 1 to 100000, or list them"),
    ({"seeds": []}, "seeds: "),
    ({"seeds": [1, 1]}, "seeds: "),
    ({"seeds": [-1]}, "seeds: "),
    (
        {"path_mtu": 4096, "topology": {"leaf_spine": {**TOPOLOGY, "mtu_bytes": 1500}}},
        "path_mtu: 4096 bytes of payload and 64 of headers do not fit the topology's MTU of 1500",
    ),
    ({"path_mtu": 9000}, "path_mtu: must be 256, 512, 1024, 2048 or 4096, not 9000"),
    (
        {"fabric": "fluid", "when_busy": "repeat"},
        "when_busy: a model does not depend on how busy the machine is; leave it out",
    ),
    ({"timeouts": {"run_s": 0}}, "timeouts.run_s: "),
    ({"timeouts": {"run_s": float("inf")}}, "timeouts.run_s: must be a finite number, not inf"),
    ({"events": [{"at_s": float("inf"), "cut": "leaf1:3"}]}, r"events\[0\].at_s: must be a finite number, not inf"),
    ({"workload": {"kind": "gossip", "bytes": 8}}, "workload.kind: must be one of"),
    ({"workload": {"kind": "training", "models": 5}}, "workload.models: must be a valid list"),
    (
        {"workload": {"kind": "training", "models": [{"model": "bloom", "data": 2}]}},
        "workload.models: the sizes of the jobs must be 2 or more and add up to the 4 ranks placed",
    ),
    ({"workload": {"kind": "ring_allreduce", "bytes": 81}}, "workload.bytes: 81 bytes are not a whole number of int64"),
    ({"workload": {"kind": "ring_allreduce", "bytes": 8}}, "workload.bytes: 8 bytes are less than one element"),
    ({"workload": {"kind": "ring_allreduce", "bytes": "80 kbit"}}, "workload.bytes: '80 kbit' is not a size"),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_mistake_is_reported_in_one_sentence_with_its_line(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence) as caught:
        experiment(tmp_path, **changes)
    (mistake,) = caught.value.mistakes
    assert "\n" not in str(mistake)
    assert mistake.line is not None or "none.yaml" in str(mistake)


def mistakes(folder: Path, **changes: Any) -> list[str]:
    """The field and the beginning of the message of every mistake, in order."""
    with pytest.raises(SpecError) as caught:
        experiment(folder, **changes)
    lines = [mistake.line or 0 for mistake in caught.value.mistakes if mistake.file.endswith("spec.yaml")]
    assert lines == sorted(lines)
    return [f"{mistake.field}: {mistake.what.split(';')[0]}" for mistake in caught.value.mistakes]


def test_mistakes_within_and_between_sections_are_reported_together(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        name="latest",
        placement={"hosts": ["h1", "h9", "h1"]},
        policies=[{"name": "a", "policy": "drill"}, {"name": "b", "policy": "ecmp", "lanes": 8, "planner": "greedy"}],
        seeds=[1, 1],
        events=[{"at_s": 1.0, "cut": "leaf1:33"}, {"at_s": 1.0, "degrade": "leaf1:34", "part": 0.5}],
        pcap=["leaf1:77", "leaf1:1"],
        path_mtu=9000,
        sedes=3,
    )
    assert found == [
        "name: 'latest' is the name of the link to the newest results",
        "placement.hosts[1]: topology leaf-spine-2x2x2 has no host 'h9'",
        "placement.hosts[2]: host h1 has a rank already",
        "policies[0].policy: fabric mininet has no policy drill",
        "policies[1].lanes: unknown key",
        "seeds: a list of seeds needs distinct numbers, none below 0",
        "events[0].cut: 'leaf1:33' is not a connected switch port",
        "events[1].degrade: 'leaf1:34' is not a connected switch port",
        "pcap[0]: 'leaf1:77' is not a connected switch port",
        "path_mtu: must be 256, 512, 1024, 2048 or 4096, not 9000",
        "sedes: unknown key",
    ]


def test_checks_need_valid_sections(tmp_path: Path) -> None:
    wrong_topology = {"leaf_spine": {**TOPOLOGY, "spines": "2"}}
    assert mistakes(tmp_path, topology=wrong_topology, pcap=["leaf1:77"], placement={"hosts": ["h1", "h9"]}) == [
        "topology.leaf_spine.spines: must be a valid integer, not '2'"
    ]
    assert mistakes(tmp_path, fabric="fluide", policies=[{"name": "a", "policy": "drill"}]) == [
        "fabric: must be 'mininet', 'routed', 'fluid', 'packet' or 'softroce', not 'fluide'"
    ]
    policies = [{"name": "a", "policy": "controler"}]
    assert [
        found.split(",")[0]
        for found in mistakes(tmp_path, policies=policies, events=[{"at_s": 1.0, "path_service": "kill"}])
    ] == ["policies[0].policy: must be 'ecmp'"]


def test_mistakes_in_a_topology_file_are_reported_with_those_of_the_spec(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text("leaf_spine: {leaves: 0, spines: 0, hosts_per_leaf: 2, host_rate: 1G}\n")
    found = mistakes(tmp_path, topology={"file": "fabric.yaml"}, nic=3)
    assert found == [
        "nic: must be a valid string, not 3",
        "leaf_spine.leaves: leaves is 0, but must lie in 1..65536",
        "leaf_spine.spines: spines is 0, but must lie in 1..65535",
    ]


def test_mistakes_of_chosen_policies_have_their_lines_in_the_file(tmp_path: Path) -> None:
    policies = [{"name": "a", "policy": "drill"}, {"name": "b", "policy": "conweave"}]
    with pytest.raises(SpecError) as caught:
        load(write_spec(tmp_path, policies=policies), policies=["b"])
    assert [mistake.field for mistake in caught.value.mistakes] == ["policies[1].policy"]


def test_the_command_prints_a_line_for_every_mistake(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run", str(write_spec(tmp_path, seeds=0, sedes=1))], prog_name="paralet")
    assert result.exit_code == 2
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["paralet", "paralet"]


def test_a_rank_cannot_be_its_own_partner(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"workload.shift: "):
        experiment(tmp_path, workload={"kind": "permutation", "bytes": 800, "shift": 4})


@pytest.mark.parametrize("fabric", FABRICS)
def test_the_documented_table_of_policies_and_fabrics_is_correct(fabric: str) -> None:
    """Compares each column of the table in docs/spec.md with the code."""
    page = (ROOT / "docs" / "spec.md").read_text()
    head, _, *rows = page[page.index("| `policy` | `mininet`, `softroce` |") :].split("\n\n", 1)[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    column = next(n for n, title in enumerate(head.strip("|").split("|")) if f"`{fabric}`" in title)
    said = {name.strip("` "): row[column] == "yes" for row in cells for name in row[0].split(",")}
    assert said == {name: FABRICS[fabric].has(kind) for name, kind in OURS.items()}


@pytest.mark.parametrize(("written", "part"), [("1 %", 0.01), ("0.5%", 0.005), (0.02, 0.02), (1, 1.0)])
def test_probabilities_are_written_as_shares_or_percent(tmp_path: Path, written: object, part: float) -> None:
    made = experiment(tmp_path, links={"leaf1:3": {"loss": written, "corruption": written}})
    (settings,) = made.spec.links.values()
    assert (settings.loss, settings.corruption) == (pytest.approx(part), pytest.approx(part))


def test_sizes_are_written_with_units_wherever_bytes_are(tmp_path: Path) -> None:
    made = experiment(
        tmp_path,
        fabric="packet",
        workload={"kind": "permutation", "shift": 1, "bytes": "64KiB"},
        policies=[{"name": "p", "policy": "ecmp", "m": 2, "flowlet_bytes": "16 KiB", "mice_bytes": "1.5 KB"}],
        packet={"switch_buffer_bytes": "9 MB", "port_buffer_bytes": "1 MiB", "ecn_bytes": "200 KB"},
    )
    (policy,), packet = made.spec.policies, made.spec.packet
    assert made.spec.workload.bytes == 65_536
    assert (policy.flowlet_bytes, policy.mice_bytes) == (16_384, 1500)
    assert (packet.switch_buffer_bytes, packet.port_buffer_bytes, packet.ecn_bytes) == (9_000_000, 2**20, 200_000)


def test_settings_of_links_are_written_with_units(tmp_path: Path) -> None:
    links = {"leaf1:3": {"mark_above": "40 KB", "delay": "50 us", "reorder": "1 %", "late_by": "2.5 ms"}}
    made = experiment(
        tmp_path, links=links, events=[{"at_s": 1.0, "links": {"leaf2:3": {"delay": 0.1, "loss": "2 %"}}}]
    )
    (settings,), (event,) = made.spec.links.values(), made.spec.events
    assert (settings.mark_above, settings.reorder) == (40_000, 0.01)
    assert (settings.delay, settings.late_by) == (pytest.approx(50e-6), pytest.approx(2.5e-3))
    assert settings.what == "marks above 40,000 B, delay 50 us, reorder 1 % by 2500 us"
    assert event.what == "set leaf2:3 to loss 2 %, delay 100000 us"
    assert event.link is None
