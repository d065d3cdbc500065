# SPDX-License-Identifier: Apache-2.0
"""Which topologies the planners and arrangements of policies serve: others are refused with the spec."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from netmodel import LocatedError, SpecError
from netmodel.router_plan import RouterPlan
from sdn.path_service.service import Options, PathService
from sdn.planners import PLANNERS
from testbed.cli import main
from testbed.policies import OURS
from testbed.progress import Silent
from testbed.simulate import fluid, packet
from testbed.spec import FABRICS, Experiment, Spec, check, load
from tests.testbed.experiments import SMALL, first_of, write_spec

RATE = "100 Mbit/s"


def spelt_out(name: str, switches: dict[str, str], cables: list[tuple[str, str]]) -> dict[str, Any]:
    """A topology of these switches (with their roles) and cables; nodes that are not switches are hosts."""
    used: dict[str, int] = {}

    def port(node: str) -> str:
        used[node] = used.get(node, 0) + 1
        return f"{node}:{used[node]}"

    hosts = list(dict.fromkeys(node for cable in cables for node in cable if node not in switches))
    return {
        "name": name,
        "hosts": [{"name": host, "nics": [{"address": f"10.0.0.{n}"}]} for n, host in enumerate(hosts, start=1)],
        "switches": [{"name": switch, "role": role} for switch, role in switches.items()],
        "links": [{"a": port(a), "b": port(b), "rate": RATE} for a, b in cables],
    }


def fat_tree() -> dict[str, Any]:
    """A fat-tree of switches with four ports: 16 hosts, three tiers."""
    switches = {f"core{c}": "spine" for c in range(4)}
    cables = []
    for pod in range(4):
        for n in range(2):
            switches |= {f"edge{pod}{n}": "leaf", f"agg{pod}{n}": "spine"}
            cables += [(f"h{pod}{n}{host}", f"edge{pod}{n}") for host in range(2)]
            cables += [(f"agg{pod}{n}", f"core{2 * n + core}") for core in range(2)]
        cables += [(f"edge{pod}{edge}", f"agg{pod}{agg}") for edge in range(2) for agg in range(2)]
    return spelt_out("fat-tree", switches, cables)


def dragonfly() -> dict[str, Any]:
    """Three groups of two routers, which have the hosts."""
    switches = {f"r{group}-{n}": "leaf" for group in range(3) for n in range(2)}
    cables = [(f"h{switch[1:]}-{host}", switch) for switch in switches for host in range(2)]
    cables += [(f"r{group}-0", f"r{group}-1") for group in range(3)]
    return spelt_out("dragonfly", switches, cables + [(f"r{group}-0", f"r{(group + 1) % 3}-1") for group in range(3)])


ONE_SWITCH = [(f"h{host}", "s1") for host in range(4)]
HOSTS_ON_A_SPINE = [("h1", "leaf1"), ("h2", "leaf2"), ("h3", "spine1"), ("leaf1", "spine1"), ("leaf2", "spine1")]
CHAIN = [
    *(("h1", "leaf1"), ("h2", "leaf2"), ("h3", "leaf3")),
    *(("leaf1", "spine1"), ("leaf2", "spine1"), ("leaf2", "spine2"), ("leaf3", "spine2")),
]
"""No spine joins leaf 1 and leaf 3."""
LEAF_SPINE = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": RATE}
CLOS = {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2, "hosts_per_leaf": 2, "host_rate": RATE}
RAILS = {"domains": 4, "gpus_per_domain": 2, "rail_rate": RATE, "hb_rate": "800 Mbit/s"}
ON_RAILS = {
    "local_nic": "nic1",
    "workload": {"kind": "hierarchical_allreduce", "gpus_per_domain": 2, "bytes": 80_000},
}
VCLOS: dict[str, Any] = {"placement": {"rule": "vclos"}}
RINGS: dict[str, Any] = {"optical": {"strides": [1, 2]}}
DIRECT = {"hosts": 4, "degree": 2, "rate": RATE}

TOPOLOGIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "leaf-spine": ({"leaf_spine": LEAF_SPINE}, {}),
    "parallel links": ({"leaf_spine": {**LEAF_SPINE, "parallel_links": 2, "ipv6": True}}, {}),
    "one leaf": ({"leaf_spine": {**LEAF_SPINE, "leaves": 1}}, {}),
    "optical": ({"leaf_spine": {**LEAF_SPINE, "optical_switches": 2}}, VCLOS),
    "placed by vClos": ({"leaf_spine": LEAF_SPINE}, VCLOS),
    "rail-optimised": ({"rail_optimised": {**RAILS, "spines": 4}}, ON_RAILS),
    "rail-optimised, one network": ({"rail_optimised": {**RAILS, "spines": 4}}, {}),
    "in an HB domain": ({"rail_optimised": {**RAILS, "spines": 4}}, {"nic": "nic1", "placement": {"ranks": 2}}),
    "rail-only": ({"rail_only": RAILS}, ON_RAILS),
    "rail-only with spines": ({"rail_only": {**RAILS, "spines": 2, "leaves_per_rail": 2}}, ON_RAILS),
    "rails over three tiers": (
        {"rail_optimised": {**RAILS, "spines": 2, "leaves_per_rail": 2, "pods": 2}},
        ON_RAILS,
    ),
    "separate rails over three tiers": (
        {"rail_only": {**RAILS, "spines": 2, "leaves_per_rail": 2, "pods": 2}},
        ON_RAILS,
    ),
    "direct-connect": ({"direct_connect": DIRECT}, RINGS),
    "look-ahead": ({"direct_connect": {**DIRECT, "look_ahead": True}}, RINGS),
    "fat-tree": (fat_tree(), {}),
    "Clos of three tiers": ({"clos": CLOS}, {}),
    "two planes of three tiers": ({"clos": {**CLOS, "planes": 2}}, {"nic": "nic1"}),
    "two planes": ({"leaf_spine": {**LEAF_SPINE, "planes": 2}}, {"nic": "nic1"}),
    "fat-tree, placed by vClos": (fat_tree(), {**VCLOS, "jobs": [2, 2]}),
    "dragonfly": (dragonfly(), {}),
    "dragonfly, placed by vClos": (dragonfly(), VCLOS),
    "one switch": (spelt_out("star", {"s1": "leaf"}, ONE_SWITCH), {}),
    "one spine": (spelt_out("star", {"s1": "spine"}, ONE_SWITCH), {}),
    "hosts on a spine": (
        spelt_out("mixed", {"leaf1": "leaf", "leaf2": "leaf", "spine1": "spine"}, HOSTS_ON_A_SPINE),
        {},
    ),
    "a chain": (
        spelt_out("chain", {**{f"leaf{n}": "leaf" for n in (1, 2, 3)}, "spine1": "spine", "spine2": "spine"}, CHAIN),
        {},
    ),
}
"""Every kind of topology, with what a spec needs on it."""

POLICIES = [{"policy": name} for name in OURS if name != "controller"]
POLICIES += [{"policy": "controller", "planner": name, "elephant_bytes": 1} for name in PLANNERS]
REFUSED_AT = (("policies", 0, "policy"), ("placement",), ("jobs",), ("topology",), ("fabric",), ("pinning",))
"""The keys of a spec whose lines refusals have."""


def checked(topology: str, policy: dict[str, Any], fabric: str) -> Experiment | LocatedError:
    """The experiment, or the error that refuses it."""
    written, needs = TOPOLOGIES[topology]
    document = {
        **SMALL,
        "workload": {"kind": "ring_allreduce", "bytes": 80_000},
        "placement": {"rule": "in_order"},
        "fabric": fabric,
        "topology": written,
        "policies": [{"name": "it", **policy}],
        "packet": {"ecn_bytes": 100_000},
        "seeds": 1,
        **needs,
    }
    try:
        return check(Spec.model_validate(document))
    except LocatedError as error:
        return error


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_policy_runs_or_is_refused_in_a_sentence(topology: str) -> None:
    """Whatever passes the checks also runs: on the models, and as far as the runner plans before a run."""
    models: dict[str, Callable[..., object]] = {"fluid": fluid.observe, "packet": packet.observe}
    refused = 0
    for policy, fabric in product(POLICIES, FABRICS):
        made = checked(topology, policy, fabric)
        if isinstance(made, LocatedError):
            refused += 1
            for error in made.all:
                assert error.where in REFUSED_AT, error
                assert re.fullmatch(r"[a-z].* .*[^.\n]", str(error))
                assert "not in list" not in str(error)
        elif fabric in models:
            models[fabric](made, Silent())
        else:
            if fabric == "routed":
                RouterPlan(made.topology)
            first_of(made).ports(made.spec.policies[0])
            if policy["policy"] == "controller":
                PathService(made.topology, Options(policy["planner"]))
    assert refused >= sum("mininet" in kind.lacking for kind in OURS.values())  # mininet has none of these


@pytest.mark.parametrize(
    ("topology", "policy", "why"),
    [
        ("dragonfly", "controller", "'dragonfly' is not a two-level leaf-spine: link r0-0:3 to r0-1:3 joins neither"),
        ("Clos of three tiers", "vclos", "has no virtual Clos: link leaf1:3 to agg1:1 does not join a leaf to a spine"),
        ("dragonfly", "pinned", "'dragonfly' is not a two-level leaf-spine: link r0-0:3 to r0-1:3 joins neither"),
        (
            "dragonfly",
            "vclos",
            "'dragonfly' has no virtual Clos: link r0-0:3 to r0-1:3 does not join a leaf to a spine",
        ),
        ("rail-only", "controller", "no leaf is linked to a spine"),
        ("optical", "pinned", "is not a two-level leaf-spine"),
        ("hosts on a spine", "vclos", "host h3 is not plugged into a leaf"),
        ("in an HB domain", "vclos", "has the first NIC of each host only; leave out nic"),
        ("one spine", "vclos", "it has no leaf"),
        ("a chain", "pinned", "no spine has links to the leaves of both 'h3' and 'h1'"),
    ],
)
def test_the_refusal_names_the_line_of_the_policy(tmp_path: Path, topology: str, policy: str, why: str) -> None:
    written, needs = TOPOLOGIES[topology]
    spec = write_spec(
        tmp_path,
        **{"workload": {"kind": "ring_allreduce", "bytes": 80_000}, "placement": None, "topology": written, **needs},
        policies=[{"name": "first", "policy": "ecmp"}, {"name": "second", "policy": policy}],
    )
    line = 1 + spec.read_text().splitlines().index(f"  policy: {policy}")
    with pytest.raises(SpecError) as refused:
        load(spec)
    (sentence,) = str(refused.value).splitlines()
    assert sentence.startswith(f"{spec}:{line}: policies[1].policy: ")
    assert why in sentence


@pytest.mark.parametrize(
    ("topology", "policy"),
    [(dragonfly, "vclos"), (dragonfly, "pinned"), (dragonfly, "controller"), (fat_tree, "vclos")],
)
def test_every_command_that_takes_a_spec_refuses_it_alike(
    tmp_path: Path, topology: Callable[[], dict[str, Any]], policy: str
) -> None:
    """On every fabric, before anything is started. Routers have no vclos at all, which is another sentence."""
    spec = write_spec(tmp_path, topology=topology(), placement=None, policies=[{"name": "it", "policy": policy}])
    out = ["--results", str(tmp_path / "out")]
    said = set()
    for words in (
        ["run", str(spec), *out],
        *(["run", str(spec), "--fabric", name, *out] for name in FABRICS if (name, policy) != ("routed", "vclos")),
        ["sweep", str(spec), "--fabric", "fluid", *out],
        ["predict", "h1", "h2", "--topology", str(spec)],
        ["path-service", "run", "--topology", str(spec), "--token-file", str(tmp_path / "token")],
        ["export", str(spec), "--to", "topo"],
        ["export", str(spec), "--to", "cm"],
    ):
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, done.stdout) == (2, ""), (words, done.output)
        said.add(done.stderr)
    (sentence,) = said
    assert re.fullmatch(rf"paralet: {spec}:[0-9]+: policies\[0\]\.policy: .*\n", sentence)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spec.yaml"]  # nothing was started


def test_the_path_service_names_the_file_of_a_topology_that_its_planner_does_not_serve(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(yaml.safe_dump(dragonfly()))
    words = [
        "path-service",
        "run",
        "--topology",
        str(tmp_path / "fabric.yaml"),
        "--token-file",
        str(tmp_path / "token"),
    ]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"paralet: {tmp_path / 'fabric.yaml'}: topology 'dragonfly' is not a two-level leaf")
