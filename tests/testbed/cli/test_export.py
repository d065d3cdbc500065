# SPDX-License-Identifier: Apache-2.0
"""`paralet export`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from netmodel import leaf_spine, load_topology
from netmodel.htsim import read_topo, write_topo
from testbed.cli import main
from testbed.traces.htsim import read_connections
from tests.netmodel.test_floodns import SMALL

ROOT = Path(__file__).parents[3]
DEMO = str(ROOT / "experiments" / "demo.yaml")


def export(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["export", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_topology_becomes_yaml_htsims_and_containerlabs(tmp_path: Path) -> None:
    topology = leaf_spine(2, 2, 4, 100 * 10**9)
    (tmp_path / "t.properties").write_text(SMALL)
    export(str(tmp_path / "t.properties"), "--to", "yaml", "--output", str(tmp_path / "t.yaml"))
    assert load_topology(tmp_path / "t.yaml") == topology
    text = export(str(tmp_path / "t.yaml"), "--to", "topo")
    assert text == write_topo(topology)
    (tmp_path / "t.topo").write_text(text)
    assert read_topo(text) == leaf_spine(2, 2, 4, 100 * 10**9, host_delay_s=1e-6, fabric_delay_s=1e-6)
    nodes = yaml.safe_load(export(str(tmp_path / "t.topo"), "--to", "containerlab"))["topology"]["nodes"]
    assert sum(node["kind"] == "linux" for node in nodes.values()) == 8
    assert export(DEMO, "--to", "containerlab").startswith("# Make the bridges first")


def test_routers_become_a_folder_for_containerlab(tmp_path: Path) -> None:
    routed, folder = str(ROOT / "experiments" / "routed.yaml"), tmp_path / "lab"
    assert export(routed, "--to", "containerlab-frr", "--output", str(folder)) == ""
    assert len(list(folder.glob("*.conf"))) == 20
    assert {file.name for file in folder.iterdir() if file.suffix != ".conf"} == {"clos-4x2x2x2x2.clab.yml", "daemons"}
    (file := tmp_path / "file").write_text("")
    for output in (["--output", str(file)], []):
        done = CliRunner().invoke(main, ["export", routed, "--to", "containerlab-frr", *output])
        assert done.exit_code == 2
        assert ("cannot make the folder" if output else "give their folder by --output") in done.output


@pytest.mark.parametrize(("form", "ending"), [("linux-rules", ".rules"), ("sonic-acl", ".json")])
def test_rules_on_source_ports_are_a_file_for_each_switch_with_a_choice(form: str, ending: str, tmp_path: Path) -> None:
    routed, folder = str(ROOT / "experiments" / "routed.yaml"), tmp_path / "rules"
    assert export(routed, "--to", form, "--output", str(folder)) == ""
    assert len(list(folder.iterdir())) == 8 + 8  # leaves and aggs; a core has one way to each pod
    assert all(file.suffix == ending for file in folder.iterdir())
    text = (folder / f"leaf1{ending}").read_text()
    assert "172.16.0.1" in text
    routers = tmp_path / "routers.json"
    routers.write_text('{"10.9.0.1": "agg1:1"}')
    argv = ["export", routed, "--to", form, "--output", str(folder), "--routers", str(routers)]
    done = CliRunner().invoke(main, argv)
    assert done.exit_code == 2
    assert "no address has the port" in done.output
    done = CliRunner().invoke(main, ["export", routed, "--to", "yaml", "--routers", str(routers)])
    assert "--routers is for" in done.output


def test_the_traffic_of_a_spec_becomes_a_connection_matrix() -> None:
    graph = read_connections(export(DEMO, "--to", "cm"))
    sends = [task for task in graph.tasks if task.kind == "send"]
    assert graph.devices == 16
    assert sum(task.bytes for task in sends) == 2 * 15 * 1_572_864
    assert len(set(graph.sent_bytes())) == 1


@pytest.mark.parametrize(
    ("content", "suffix", "form", "expected"),
    [
        ("Tiers 4\n", ".topo", "yaml", "t.topo:1: Tiers is 4"),
        ("a\n", ".properties", "yaml", "t.properties:1: must be a key"),
        ("leaf_spine: {leaves: 1}\n", ".yaml", "topo", "t.yaml:1: leaf_spine.spines: "),
        ("leaf_spine: {leaves: 1}\n", ".yaml", "cm", "t.yaml:1: "),
        (None, ".topo", "yaml", "t.topo: cannot be read: No such file"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(
    tmp_path: Path, content: str | None, suffix: str, form: str, expected: str
) -> None:
    file = tmp_path / f"t{suffix}"
    if content is not None:
        file.write_text(content)
    done = CliRunner().invoke(main, ["export", str(file), "--to", form])
    assert done.exit_code == 2
    assert expected in done.output


@pytest.mark.parametrize("suffix", [".topo", ".properties"])
def test_a_file_without_end_and_one_that_is_no_text_are_refused(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"t{suffix}"
    file.write_bytes(b"\xff")
    assert (
        "is not UTF-8 text: invalid start byte at byte 0"
        in CliRunner().invoke(main, ["export", str(file), "--to", "yaml"]).output
    )
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    done = CliRunner().invoke(main, ["export", str(file), "--to", "yaml"])
    assert done.exit_code == 2
    assert "is larger than 64 MiB" in done.output
