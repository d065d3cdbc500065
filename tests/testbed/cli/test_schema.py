# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of users' files: every file of this project fits its schema, and wrong ones do not."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from testbed.cli.schema import KINDS, schema, schema_of

ROOT = Path(__file__).parents[3]


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(kind))


def kind_of(written: dict[str, Any]) -> str:
    if "policies" in written:
        return "experiment"
    if "strategies" in written and "cluster" in written:
        return "cluster"
    return "topology" if {"leaf_spine", "hosts"} & set(written) else "plan"


FILES = sorted(ROOT.glob("experiments/**/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "experiments")))
def test_every_example_fits_its_schema(path: Path) -> None:
    written = yaml.safe_load(path.read_text())
    errors = [f"{error.json_path}: {error.message}" for error in validator(kind_of(written)).iter_errors(written)]
    assert errors == []


def test_all_kinds_have_an_example() -> None:
    kinds = {kind_of(yaml.safe_load(path.read_text())) for path in FILES}
    assert kinds | {"topology"} == set(KINDS)


def demo(**changes: Any) -> dict[str, Any]:
    written: dict[str, Any] = yaml.safe_load((ROOT / "experiments/demo.yaml").read_text())
    return written | changes


LEAF_SPINE = {"leaves": 4, "spines": 4, "hosts_per_leaf": 4}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"sedes": 3}, "$"),
        ({"fabric": "mininett"}, "$.fabric"),
        ({"policies": [{"name": "a", "policy": "ecpm"}]}, "$.policies[0].policy"),
        ({"policies": [{"name": "a", "policy": "ecmp", "m": 0}]}, "$.policies[0].m"),
        ({"workload": {"kind": "ring_allreduce", "byte": 8}}, "$.workload"),
        ({"workload": {"bytes": 8}}, "$.workload"),
        ({"events": [{"at_s": -1, "cut": "leaf1:3"}]}, "$.events[0].at_s"),
        ({"topology": {"leaf_spine": {"leaves": 4, "spines": 4}}}, "$.topology"),
        ({"timeouts": {"run_s": "2 minutes"}}, "$.timeouts.run_s"),
        ({"workload": {"kind": "ring_allreduce", "bytes": "4 MBB"}}, "$.workload"),
        ({"workload": {"kind": "ring_allreduce", "bytes": -8}}, "$.workload"),
        ({"links": {"leaf1:5": {"loss": 5}}}, "$.links['leaf1:5'].loss"),
        ({"links": {"leaf1:5": {"delay": "5 usec"}}}, "$.links['leaf1:5'].delay"),
        ({"topology": {"leaf_spine": {**LEAF_SPINE, "host_rate": "20 Mbits"}}}, "$.topology"),
    ],
)
def test_a_mistake_is_marked_where_it_is(changes: dict[str, Any], where: str) -> None:
    assert where in [error.json_path for error in validator("experiment").iter_errors(demo(**changes))]


def test_quantities_are_written_as_a_spec_takes_them() -> None:
    links = {"leaf1:5": {"loss": "1 %", "mark_above": "40 KB", "delay": "50 us"}}
    workload = {"kind": "ring_allreduce", "bytes": "4 MiB"}
    assert validator("experiment").is_valid(demo(links=links, workload=workload))
    assert validator("experiment").is_valid(demo(links={"leaf1:5": {"loss": 0.01}}))
    assert not validator("experiment").is_valid(demo(links={"leaf1:5": {"loss": [1]}}))


def test_every_top_level_key_of_a_spec_says_what_it_is_for() -> None:
    silent = [name for name, key in schema_of("experiment")["properties"].items() if not key.get("description")]
    assert silent == []


def test_a_workload_of_a_python_file_may_have_any_keys() -> None:
    assert validator("experiment").is_valid(demo(workload={"file": "mine.py", "bytes": 8, "mine": True}))


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_prints_a_valid_schema(kind: str) -> None:
    printed = json.loads(CliRunner().invoke(schema, [kind], catch_exceptions=False).stdout)
    Draft202012Validator.check_schema(printed)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
