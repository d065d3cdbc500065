# SPDX-License-Identifier: Apache-2.0
"""`paralet predict`: paths of flows, on topologies of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmodel import Flow, LinuxL4Hash, dump_topology, fat_tree, forwarding, in_order_of, load_topology, path_of
from netmodel.htsim import write_topo
from tests.netmodel.test_floodns import SMALL as FLOODNS
from tests.testbed.cli.test_cli import assert_refused, paralet
from tests.testbed.experiments import experiment, write_spec


@pytest.fixture
def fabric_file(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.yaml"
    path.write_text(dump_topology(experiment(tmp_path).topology))
    return path


@pytest.mark.parametrize("hash_name", ["ovs", "linux", "crc16", "crc32", "xor", "rules"])
def test_predictions_of_flows_and_of_ports_agree(fabric_file: Path, hash_name: str) -> None:
    options = ("--topology", fabric_file, "--hash", hash_name, "--json")
    every = json.loads(paralet("predict", "h1", "h3", *options).stdout)["paths"]
    assert sorted(port for path in every for port in path["ports"]) == list(range(0xC000, 0x10000))
    for path in every:
        if path["ports"]:
            predicted = json.loads(paralet("predict", "h1", "h3", path["ports"][0], *options).stdout)["paths"]
            assert predicted == [{**path, "ports": path["ports"][:1]}]


def test_predict_accepts_a_spec_and_a_switch(tmp_path: Path) -> None:
    done = paralet("predict", "h1", "h3", "--via", "spine2", "--topology", write_spec(tmp_path))
    assert done.exit_code == 0
    assert done.stdout.startswith("h1:1 -> leaf1:4 -> spine2:2 -> leaf2:1 -> h3  ")


CLOS = {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2, "hosts_per_leaf": 1, "host_rate": "1G"}
RAILS = {
    "domains": 4,
    "gpus_per_domain": 2,
    "rail_rate": "1G",
    "hb_rate": "8G",
    "spines": 2,
    "leaves_per_rail": 2,
    "pods": 2,
}
FAT_TREE = "fat_tree: {k: 4, host_rate: 10 Mbit/s}"


@pytest.mark.parametrize(("switch", "paths"), [("leaf8", 4), ("agg7", 2), ("core3", 1)])
def test_predict_lists_paths_through_a_switch_of_any_tier(tmp_path: Path, switch: str, paths: int) -> None:
    (fabric := tmp_path / "fabric.yaml").write_text(FAT_TREE)
    done = paralet("predict", "h1", "h16", "--via", switch, "--topology", fabric, "--json")
    found = json.loads(done.stdout)["paths"]
    assert len(found) == paths
    assert all(switch in path["nodes"] for path in found)


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.topo", write_topo(fat_tree(4, 10**11))),
        (
            "topology.txt",
            "5 2 5\n3 4\n0 3 1Gbps 1us 0\n1 3 1Gbps 1us 0\n2 4 1Gbps 1us 0\n3 4 1Gbps 1us 0\n3 4 1Gbps 1us 0\n",
        ),
        ("topology.properties", FLOODNS),
    ],
)
def test_commands_take_topologies_of_other_programs_by_the_names_of_their_files(
    tmp_path: Path, name: str, text: str
) -> None:
    (fabric := tmp_path / name).write_text(text)
    topology = load_topology(fabric)
    src, dst = topology.hosts[0].name, topology.hosts[-1].name
    answer = json.loads(paralet("predict", src, dst, 50000, "--topology", fabric, "--json").stdout)
    assert (answer["paths"][0]["nodes"][0], answer["paths"][0]["nodes"][-1]) == (src, dst)
    policies = [{"name": "ecmp", "policy": "ecmp"}]
    changes = {"fabric": "fluid", "placement": {"hosts": [src, dst]}, "policies": policies}
    spec = write_spec(tmp_path, topology={"file": name}, **changes)
    done = paralet("run", spec, "--results", tmp_path / "results")
    assert done.exit_code == 0, done.output
    again = paralet("report", tmp_path / "results" / "small")  # its spec has the topology in full
    assert again.exit_code == 0, again.output
    fabric.write_text(text.replace("1", "x", 1))
    assert_refused(paralet("predict", src, dst, 50000, "--topology", fabric), f"{name}:")
    assert_refused(paralet("run", spec), f"{name}:")


def test_predict_says_for_how_long_packets_are_under_way_where_links_have_delays(tmp_path: Path) -> None:
    (fabric := tmp_path / "fabric.yaml").write_text(
        "fat_tree: {k: 4, host_rate: 10 Mbit/s, host_delay: 500 ns, agg_delay: 2 us, core_delay: 10 us}"
    )
    for dst, delay_s, said in (("h16", 25e-6, "25 us"), ("h3", 5e-6, "5 us"), ("h2", 1e-6, "1 us")):
        options = ("predict", "h1", dst, 50000, "--topology", fabric)
        assert json.loads(paralet(*options, "--json").stdout)["paths"][0]["delay_s"] == delay_s
        assert paralet(*options).stdout.endswith(f"port 50000  delay {said}\n")


def test_predict_chooses_in_the_order_of_next_hops_that_routers_had(tmp_path: Path) -> None:
    """Of a run, and of lists that somebody wrote; both name only some of the groups."""
    (fabric := tmp_path / "fabric.yaml").write_text(FAT_TREE)
    topology = load_topology(fabric)
    address = topology.host("h16").nics[0].address
    order = {
        name: {str(address): ports[::-1]}
        for name, groups in forwarding(topology).groups.items()
        if len(ports := groups[address]) > 1
    }
    (by_hand := tmp_path / "hops.json").write_text(json.dumps(order))
    (of_run := tmp_path / "observations.json").write_text(json.dumps({"runs": [{}, {"next_hops": order, "seed": 1}]}))
    flow = Flow(topology.host("h1").nics[0].address, address, 50000)
    routes = in_order_of(order, forwarding(topology))
    expected = [str(port) for port in path_of(topology, flow, LinuxL4Hash(), routes=routes)]
    assert expected != [str(port) for port in path_of(topology, flow, LinuxL4Hash())]
    for file in (by_hand, of_run):
        options = ("--topology", fabric, "--next-hops", file, "--json")
        answer = json.loads(paralet("predict", "h1", "h16", 50000, *options).stdout)
        assert (answer["hash"], answer["paths"][0]["out_ports"]) == ("linux", expected)
        crossing = json.loads(paralet("predict", "h1", "h16", "--via", expected[2].split(":")[0], *options).stdout)
        (mine,) = [path for path in crossing["paths"] if path["out_ports"] == expected]
        assert 50000 in mine["ports"]


@pytest.mark.parametrize(
    ("written", "ends", "nic", "vias"),
    [
        ({"clos": {**CLOS, "planes": 2}}, ("h1", "h4"), "nic1", ("p2leaf1", "p2agg2", "p2core4", "p2agg4", "p2leaf4")),
        ({"clos": CLOS}, ("h1", "h4"), None, ("leaf1", "agg2", "core4", "agg4", "leaf4")),
        ({"rail_optimised": RAILS}, ("d1g1", "d4g2"), None, ("rail1l1", "agg2", "core2", "agg4", "rail2l2")),
        ({"rail_only": RAILS}, ("d1g1", "d4g1"), None, ("rail1l1", "rail1a1", "rail1c1", "rail1l2")),
        ({"rail_optimised": RAILS}, ("d1g1", "d1g2"), "nic1", ("hb1",)),
    ],
    ids=["planes", "one plane", "rails", "separate rails", "an HB domain"],
)
def test_paths_cross_switches_of_every_tier_of_planes_and_rails(
    tmp_path: Path, written: dict[str, Any], ends: tuple[str, str], nic: str | None, vias: tuple[str, ...]
) -> None:
    (file := tmp_path / "fabric.yaml").write_text(yaml.safe_dump(written))
    options = ["--topology", file, "--json", *([] if nic is None else ["--nic", nic])]
    for via in vias:
        crossing = json.loads(paralet("predict", *ends, "--via", via, *options).stdout)["paths"]
        assert all(path["ports"] for path in crossing)
        port = crossing[-1]["ports"][0]
        (path,) = json.loads(paralet("predict", *ends, str(port), *options).stdout)["paths"]
        assert via in path["nodes"]
    assert_refused(
        paralet("predict", *ends, "--topology", file, "--nic", "eth9"), f"--nic eth9: host {ends[0]} has nic0"
    )


def test_a_prediction_is_for_the_nic_of_the_spec(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, topology={"clos": {**CLOS, "planes": 2}}, nic="nic1")
    assert " p2leaf1:" in paralet("predict", "h1", "h4", 50000, "--topology", spec).stdout
    assert " p1leaf1:" in paralet("predict", "h1", "h4", 50000, "--topology", spec, "--nic", "nic0").stdout
    refused = paralet("predict", "h1", "h4", "--via", "p1core1", "--topology", spec)
    assert_refused(refused, "no shortest path crosses p1core1; where hosts have several NICs, --nic names another")


def test_paths_of_routers_with_a_crc_are_predicted_by_its_offsets(tmp_path: Path) -> None:
    """By the spec's own hash, with next hops or without. An offset of the aggs is all that reaches every core."""
    topology = {"clos": CLOS}
    (hops := tmp_path / "hops.json").write_text('{"leaf1": {"10.0.3.1": [3, 2]}}')
    reached = []
    for offset in ({}, {"agg": 8}):
        routers = {"hash": "crc32", "hash_offset": offset}
        spec = write_spec(tmp_path, topology=topology, fabric="routed", routers=routers)
        for options in ((), ("--next-hops", hops), ("--hash", "linux-crc32")):
            answer = json.loads(paralet("predict", "h1", "h4", "--topology", spec, "--json", *options).stdout)
            assert answer["hash"] == "linux-crc32"
            reached.append(sum(bool(path["ports"]) for path in answer["paths"]))
    assert reached == [2, 2, 2, 4, 4, 4]


def test_offsets_that_seeds_cannot_have_are_refused_on_other_fabrics_too(tmp_path: Path) -> None:
    """Only fabric routed uses them, but a prediction by next hops is one of routers."""
    switches = [{"name": name, "role": role, "hash_seed": 7} for name, role in (("leaf1", "leaf"), ("spine1", "spine"))]
    topology = {
        "name": "pair",
        "hosts": [{"name": f"h{n}", "nics": [{"address": f"10.0.0.{n}"}]} for n in (1, 2)],
        "switches": switches,
        "links": [
            *({"a": f"h{n}:1", "b": f"leaf1:{n}", "rate": "1G"} for n in (1, 2)),
            {"a": "leaf1:3", "b": "spine1:1", "rate": "1G"},
        ],
    }
    routers = {"hash": "crc32", "hash_offset": {"spine": 8}}
    changes = {"placement": None, "policies": [{"name": "ecmp", "policy": "ecmp"}]}
    spec = write_spec(tmp_path, topology=topology, routers=routers, **changes)
    (hops := tmp_path / "hops.json").write_text('{"leaf1": {"10.0.0.1": [1]}}')
    assert paralet("predict", "h1", "h2", 50000, "--topology", spec).exit_code == 0
    refused = paralet("predict", "h1", "h2", 50000, "--topology", spec, "--next-hops", hops)
    assert_refused(refused, "routers.hash_offset: hash seed 7 of switch 'spine1' is also that of a switch with another")


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("[]", "is neither observations.json of a run nor next hops by switch: Input should be an object"),
        ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        ('{"runs": [{}]}', "has no next hops; take the observations of a run on fabric routed"),
        ('{"leaf9": {}}', "topology fat-tree-4 has no switch 'leaf9'"),
        ('{"leaf1": {"10.9.9.9": [3]}}', "leaf1 has next hops to '10.9.9.9', which is no host's address"),
        ('{"leaf1": {"h16": [3]}}', "leaf1 has next hops to 'h16', which is no host's address"),
        ('{"leaf1": {"10.0.7.2": [3, 3]}}', "must be different ports of links: [3, 3]"),
        ('{"leaf1": {"10.0.7.2": []}}', "must be different ports of links: []"),
        ('{"leaf1": {"10.0.7.2": [9]}}', "must be different ports of links: [9]"),
        ('{"leaf1": {"10.0.7.2": [1]}}', "the routes to 10.0.7.2 end at host 'h1', which does not own it"),
        ('{"leaf1": {"10.0.7.2": [3]}, "agg1": {"10.0.7.2": [1]}}', "the routes to 10.0.7.2 loop"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_next_hops_that_fit_no_fabric_are_refused(tmp_path: Path, written: str | None, sentence: str) -> None:
    (fabric := tmp_path / "fabric.yaml").write_text(FAT_TREE)
    file = tmp_path / "hops.json"
    if written is not None:
        file.write_text(written)
    assert_refused(paralet("predict", "h1", "h16", 50000, "--topology", fabric, "--next-hops", file), sentence)


def test_predict_uses_source_port_rules_for_a_spec_with_pinning_rules(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, pinning="rules")
    said = [
        json.loads(paralet("predict", "h1", "h3", "--topology", spec, "--json", *options).stdout)
        for options in ((), ("--hash", "rules"), ("--hash", "ovs"))
    ]
    assert said[0] == said[1]
    assert said[0]["paths"] != said[2]["paths"]
    assert [answer["hash"] for answer in said] == ["rules", "rules", "ovs"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["h1", "h9", 50000], "has no host 'h9'"),
        (["h9", "h1", 50000], "has no host 'h9'"),
        (["h1", "h1", 50000], "both source and destination"),
        (["h1", "h3", "--via", "spine7"], "has no switch 'spine7'"),
        (["h1", "h2", "--via", "spine1"], "no shortest path crosses spine1"),
        (["h1", "h3", 50000, "--via", "spine1"], "give either PORT or --via"),
    ],
)
def test_predict_refuses_unknown_names(fabric_file: Path, arguments: list[object], sentence: str) -> None:
    assert_refused(paralet("predict", *arguments, "--topology", fabric_file), sentence)
