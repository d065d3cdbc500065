# SPDX-License-Identifier: Apache-2.0
"""The fabric of a spec is read without what runs on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from netmodel import SpecError, dump_topology, leaf_spine
from testbed.spec import dump_bare, load_bare

TOPOLOGY = "{leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 1, host_rate: 20 Mbit/s}}"


def written(folder: Path, text: str) -> Path:
    file = folder / "spec.yaml"
    file.write_text(text)
    return file


LOOPBACK = (
    "{name: one, hosts: [{name: h1, nics: [{address: 127.0.0.1}]}], switches: [{name: leaf1, role: leaf}], "
    "links: [{a: 'h1:1', b: 'leaf1:1', rate: 1 Mbit/s}]}"
)


def test_workload_and_policies_may_be_anything(tmp_path: Path) -> None:
    text = f"name: bare\ntopology: {TOPOLOGY}\nfabric: routed\nworkload: {{file: gone.py}}\n"
    bare = load_bare(written(tmp_path, f"{text}links: {{'h1:1': {{loss: 5 %}}}}"))
    assert (bare.name, bare.fabric, bare.kind.routers, bare.links["h1:1"].loss) == ("bare", "routed", True, 0.05)
    assert bare.built == leaf_spine(2, 2, 1, 20_000_000)


def test_routers_are_those_of_the_spec(tmp_path: Path) -> None:
    text = f"name: bare\ntopology: {TOPOLOGY}\nfabric: routed\nrouters: {{unnumbered: true}}"
    assert load_bare(written(tmp_path, text)).routers.unnumbered


def test_it_is_read_back_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(dump_topology(leaf_spine(2, 1, 1, 1_000_000)))
    bare = load_bare(written(tmp_path, "name: bare\ntopology: {file: fabric.yaml}\npinning: rules"), "mininet")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = load_bare(written(elsewhere, dump_bare(bare)))
    assert (again.built, again.pinning) == (bare.built, "rules")


def test_the_name_of_an_app_starts_at_the_folder_of_the_spec(tmp_path: Path) -> None:
    bare = load_bare(written(tmp_path, f"name: bare\ntopology: {TOPOLOGY}\nopenflow: {{app: mine.py}}"))
    assert bare.openflow is not None
    assert bare.openflow.app == str(tmp_path / "mine.py")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert load_bare(written(elsewhere, dump_bare(bare))).openflow == bare.openflow


def test_a_topology_alone_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    topology = leaf_spine(2, 1, 1, 1_000_000)
    file.write_text(dump_topology(topology))
    bare = load_bare(file, "routed")
    assert (bare.name, bare.built, bare.fabric) == (topology.name, topology, "routed")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"name: x\ntopology: {TOPOLOGY}\nlinks: {{'h9:1': {{loss: 5 %}}}}",
            "3: links.h9:1: 'h9:1' is not a connected port",
        ),
        (f"topology: {TOPOLOGY}", "name"),
        ("name: x\ntopology: {file: gone.yaml}", "gone.yaml"),
        (f"name: x\ntopology: {TOPOLOGY}\nfabric: water", "fabric"),
        (f"name: x\ntopology: {LOOPBACK}", "host 'h1' has the loopback address 127.0.0.1"),
    ],
)
def test_mistakes_have_their_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("(", r"\(")):
        load_bare(written(tmp_path, text))
