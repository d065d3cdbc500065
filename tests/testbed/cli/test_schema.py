# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of users' files: every file of this project fits its schema, and wrong ones do not."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from testbed.cli.schema import KINDS, schema, schema_of
from testbed.spec.written import Spec

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


def of(section: str, key: str) -> Callable[[object], dict[str, Any]]:
    """A spec with one key of a section set to a value."""
    places: dict[str, Callable[[object], dict[str, Any]]] = {
        "topology": lambda value: {"topology": {"leaf_spine": {**LEAF_SPINE, "host_rate": 20, key: value}}},
        "links": lambda value: {"links": {"leaf1:5": {key: value}}},
        "workload": lambda value: {"workload": {"kind": "ring_allreduce", key: value}},
        "packet": lambda value: {"packet": {key: value}},
    }
    return places[section]


@pytest.mark.parametrize(
    ("section", "key", "good", "bad"),
    [
        ("topology", "host_rate", ["20 Mbit/s", 20, "20", "20.0 bit/s", "0.5k"], ["0 bit/s", "0.0 M", 0, "20.5", 20.5]),
        ("topology", "host_delay", ["50 us", 0, 1], [-1, 1000, "5"]),
        ("links", "loss", ["100 %", "100.0%", "007.5 %", 0.5, 1, 0], ["150 %", "100.1 %", 1.5, -0.1]),
        ("links", "delay", ["2 ms", 0.1], [0.2, 1000, "2"]),
        ("links", "mark_above", ["4 B", "0.3 KB", "0.5 KiB", 0], ["0.3 B", 0.3, -1, "4 kiB", "4"]),
        ("packet", "port_buffer_bytes", [10_000, "10 KB"], [9_999]),
        ("packet", "ecn_bytes", [1], [0]),
    ],
)
def test_the_schema_and_the_parser_agree_on_quantities(
    section: str, key: str, good: list[object], bad: list[object]
) -> None:
    written = of(section, key)
    for value in [*good, *bad]:
        assert validator("experiment").is_valid(demo(**written(value))) == (value in good), value
        assert accepted(demo(**written(value))) == (value in good), value


def accepted(written: dict[str, Any]) -> bool:
    """Whether the parser takes each section by itself."""
    try:
        Spec.model_validate(written)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_limits_have_the_keywords_of_json_schema(kind: str) -> None:
    assert not {"ge", "gt", "le", "lt"} & set(keywords(schema_of(kind)))


def keywords(node: object) -> Iterator[str]:
    """The keys of all mappings and of what is in them."""
    if isinstance(node, dict):
        yield from node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from keywords(part)


def test_every_section_of_a_spec_says_what_it_is_for() -> None:
    silent: list[list[str]] = []

    def look(node: object) -> None:
        if isinstance(node, dict) and "properties" in node and not node.get("description"):
            silent.append(list(node["properties"]))
        for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            look(part)

    look(schema_of("experiment"))
    assert silent == []


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
