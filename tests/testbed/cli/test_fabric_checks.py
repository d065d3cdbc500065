# SPDX-License-Identifier: Apache-2.0
"""`paralet doctor --topology`: whether source ports reach all paths of a fabric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from testbed.cli import main
from tests.testbed.experiments import write_spec

CLOS = {"clos": {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2, "hosts_per_leaf": 1, "host_rate": "1G"}}
LEAF_SPINE = {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "1G", "parallel_links": 2}}


def found(file: Path, *options: str) -> dict[str, Any]:
    """What the doctor finds of the fabric in a file."""
    done = CliRunner().invoke(main, ["doctor", "--topology", str(file), "--json", *options])
    answer = next(one for one in json.loads(done.stdout)["findings"] if one["name"].startswith("paths of "))
    assert answer["ok"]
    return dict(answer)


@pytest.mark.parametrize(
    ("topology", "reached", "switches"),
    [(CLOS, "2 of 4", "leaves, aggs and cores"), (LEAF_SPINE, "4 of 8", "leaves and spines")],
)
def test_a_polarised_hash_is_named_with_its_remedy(
    tmp_path: Path, topology: dict[str, Any], reached: str, switches: str
) -> None:
    (file := tmp_path / "fabric.yaml").write_text(yaml.safe_dump(topology))
    assert found(file)["detail"] == "source ports reach all of them by the hash ovs"
    sick = found(file, "--hash", "crc32")
    assert f"ports reach {reached} paths, by the hash crc32" in sick["detail"]
    assert sick["remedy"] == f"give {switches} different hash functions, or one of them an offset of its hash bits"


@pytest.mark.parametrize(("offset", "detail"), [({}, "2 of 4 paths"), ({"agg": 8}, "reach all of them")])
def test_an_offset_in_a_spec_heals_it(tmp_path: Path, offset: dict[str, int], detail: str) -> None:
    routers = {"hash": "crc32", "hash_offset": offset}
    answer = found(write_spec(tmp_path, topology=CLOS, fabric="routed", routers=routers))
    assert detail in answer["detail"]
    assert "linux-crc32" in answer["detail"]


def test_fabrics_that_no_planner_serves_are_not_examined(tmp_path: Path) -> None:
    rails = {"rail_only": {"domains": 4, "gpus_per_domain": 2, "rail_rate": "1G", "hb_rate": "8G"}}
    (file := tmp_path / "fabric.yaml").write_text(yaml.safe_dump(rails))
    assert found(file)["detail"].startswith("not examined: ")
    refused = CliRunner().invoke(main, ["doctor", "--hash", "crc32"])
    assert refused.exit_code == 2
    assert "--hash is that of the switches of --topology" in refused.stderr
