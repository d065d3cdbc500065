# SPDX-License-Identifier: Apache-2.0
"""Policies of a spec that stand for several: one for each number of lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from netmodel import SpecError
from testbed import spec
from testbed.cli.schema import schema_of
from testbed.run.rank_configuration import prepare_commands
from tests.docs.markdown import ROOT
from tests.testbed.experiments import experiment, first_of

SPEC = """\
name: several
topology: {leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}}
fabric: fluid
workload: {kind: ring_allreduce, bytes: 1 MiB}
policies:
  - {name: ecmp, policy: ecmp}
  - name: paralet
    policy: ecmp
    m: [4, 8]
    flowlet_bytes: 40 KB
  - {name: pinned, policy: pinned}
"""


def loaded(folder: Path, text: str = SPEC, **options: Any) -> spec.Experiment:
    (folder / "s.yaml").write_text(text)
    return spec.load(folder / "s.yaml", **options)


def test_a_list_of_m_stands_for_a_policy_each(tmp_path: Path) -> None:
    found = loaded(tmp_path).spec.policies
    assert [(policy.name, policy.m, policy.flowlet_bytes) for policy in found] == [
        ("ecmp", 1, None),
        ("paralet-4", 4, 40_000),
        ("paralet-8", 8, 40_000),
        ("pinned", 1, None),
    ]
    assert [policy.m for policy in loaded(tmp_path, policies=["paralet-8"]).spec.policies] == [8]


def test_a_dumped_spec_has_the_policies_one_by_one(tmp_path: Path) -> None:
    experiment = loaded(tmp_path)
    (tmp_path / "again.yaml").write_text(spec.dump(experiment.spec))
    assert spec.load(tmp_path / "again.yaml").spec.policies == experiment.spec.policies


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("[4, 8]", "[4, 300]", 9, "must be less than or equal to 256"),
        ("[4, 8]", "[4, x]", 9, "must be a valid integer"),
        ("[4, 8]", "[]", 9, "must be a valid integer"),
        ("[4, 8]", "[4, 4]", 7, "another policy is called 'paralet-4' already"),
        ("40 KB", "0", 10, "must be greater than 0"),
        ("name: pinned", "name: paralet-4", 11, "another policy is called 'paralet-4' already"),
        ("policy: pinned", "policy: unknown", 11, "not 'unknown'"),
        ("policy: pinned", "policy: conweave", 11, "conweave"),
    ],
)
def test_mistakes_have_the_lines_of_the_file(tmp_path: Path, old: str, new: str, line: int, expected: str) -> None:
    assert old in SPEC
    with pytest.raises(SpecError) as refusal:
        loaded(tmp_path, SPEC.replace(old, new))
    assert refusal.value.mistakes[0].line == line
    assert expected in refusal.value.mistakes[0].what


def test_the_schema_knows_lists_of_m() -> None:
    policy: dict[str, Any] = {"name": "paralet", "policy": "ecmp"}
    schema = schema_of("experiment")
    check = jsonschema.Draft202012Validator({"$ref": "#/$defs/Policy", "$defs": schema["$defs"]})
    assert all(check.is_valid(policy | {"m": m}) for m in (1, 256, [1], [4, 8]))
    assert not any(check.is_valid(policy | {"m": m}) for m in (0, 257, [], [0], ["4"], "4"))


@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "nccl", "bytes": 800},
        {"kind": "torch", "bytes": 800, "script": str(ROOT / "experiments" / "torch" / "transformer.py")},
        {"kind": "command", "bytes": 800, "pairs": [[0, 1], [2, 3]], "commands": ["true"] * 4},
    ],
    ids=lambda workload: workload["kind"],
)
def test_sockets_of_programs_keep_to_paths_that_were_planned_before(tmp_path: Path, workload: dict[str, Any]) -> None:
    policies = [{"name": "a", "policy": "pinned", "transport": "socket", "assign_wait_s": 2}]
    found = first_of(experiment(tmp_path, workload=workload, policies=policies, fabric="mininet"))
    (policy,) = found.experiment.spec.policies
    kept = found.paths_to_keep(policy)
    assert len({path[1] for (src, _), path in kept.items() if src.startswith("10.0.0.")}) == 2
    for command in prepare_commands(found, policy, None).values():
        assert (command.device.policy, command.device.ports) == ("controller", None)


def test_lanes_of_planned_policies_wait_for_no_path_service(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="assign_wait_s: is for policy controller only"):
        experiment(tmp_path, policies=[{"name": "a", "policy": "pinned", "assign_wait_s": 2}])
    found = first_of(experiment(tmp_path))
    assert not found.paths_to_keep(found.experiment.spec.policies[1])
