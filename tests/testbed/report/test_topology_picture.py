# SPDX-License-Identifier: Apache-2.0
"""The picture of a topology is SVG that has every node and link, with nothing on top of another."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from netmodel import Topology, fat_tree, leaf_spine
from testbed.cli.graph import graph
from testbed.report.topology_picture import svg_of

SVG = "{http://www.w3.org/2000/svg}"
DEMO = Path(__file__).parents[3] / "experiments" / "demo.yaml"


def boxes(picture: ET.Element) -> dict[str, tuple[float, float]]:
    """By the text in it: the corner of each box."""
    found = {}
    for group in picture.iter(f"{SVG}g"):
        text, rect = group.find(f"{SVG}text"), group.find(f"{SVG}rect")
        assert text is not None
        assert text.text is not None
        assert rect is not None
        found[text.text] = float(rect.attrib["x"]), float(rect.attrib["y"])
    return found


@pytest.mark.parametrize(
    "topology",
    [
        leaf_spine(2, 3, 4, 10**9),
        leaf_spine(2, 1, 1, 10**9, parallel_links=3),
        fat_tree(4, 10**9),
    ],
    ids=lambda topology: topology.name,
)
def test_every_node_and_link_is_drawn_apart(topology: Topology) -> None:
    picture = ET.fromstring(svg_of(topology))
    drawn = boxes(picture)
    assert set(drawn) == {node.name for node in topology.hosts} | {node.name for node in topology.switches}
    rows: dict[float, list[float]] = {}
    for x, y in drawn.values():
        rows.setdefault(y, []).append(x)
    assert all(right - left >= 72 for row in rows.values() for left, right in pairwise(sorted(row)))
    assert len({path.attrib["d"] for path in picture.iter(f"{SVG}path")}) == len(topology.links)
    assert max(drawn[host.name][1] for host in topology.hosts) == max(rows)
    assert all(drawn[switch.name][1] < max(rows) for switch in topology.switches)


def test_the_command_writes_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: not shown.append(uri))
    file = tmp_path / "demo.svg"
    done = CliRunner().invoke(graph, [str(DEMO), "--out", str(file), "--open"])
    assert (done.exit_code, done.output) == (0, f"Picture: {file}\n")
    assert shown == [file.as_uri()]
    assert len(boxes(ET.fromstring(file.read_text()))) == 24
