# SPDX-License-Identifier: Apache-2.0
"""Policies by name: ours, and those that other packages add by entry points, as they add planners."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from netmodel import Location, SpecError
from testbed.policies import OURS, option_owners, policy_kind, policy_names
from testbed.spec import FABRICS, load
from tests.testbed.experiments import write_spec
from tests.testbed.workloads.test_kinds import ROOT, package, paralet

SPEC = """
name: own
fabric: fluid
topology:
  leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}
workload: {kind: permutation, bytes: 2000000, shift: 1}
placement: {rule: cross_leaf}
policies:
  - {name: pinned, policy: pinned}
  - {name: own, policy: one_spine}
  - {name: greedy, policy: controller, planner: greedy, elephant_bytes: 1}
  - {name: planned, policy: controller, planner: mine, elephant_bytes: 1}
"""


def documented() -> str:
    """The policy of docs/extending.md, and a planner."""
    page = (ROOT / "docs" / "extending.md").read_text()
    (source,) = (
        example
        for example in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        if "class OneSpine" in example
    )
    return source + "\nfrom sdn.planners import greedy as mine\n"


def test_a_package_adds_a_policy_and_a_planner_by_entry_points(tmp_path: Path) -> None:
    package(
        tmp_path,
        documented(),
        "[paralet.policies]\none_spine = chain:one_spine\n[paralet.planners]\nmine = chain:mine\n",
    )
    (tmp_path / "spec.yaml").write_text(SPEC)
    done = paralet(tmp_path, "run", tmp_path / "spec.yaml", "--results", tmp_path / "results", "--json")
    assert done.returncode == 0, done.stderr
    times = {policy["name"]: policy["mean_s"] for policy in json.loads(done.stdout)["policies"]}
    assert times["own"] > 1.9 * times["pinned"]  # two pairs share each uplink
    assert times["planned"] == pytest.approx(times["greedy"])


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            "[paralet.policies]\none_spine = nowhere:one",
            "nowhere:one, which cannot be imported: No module named 'nowhere'",
        ),
        ("[paralet.policies]\none_spine = chain:number", "chain:number, which is no testbed.policies.PolicyKind"),
    ],
)
def test_an_entry_point_without_a_policy_is_a_mistake_of_one_sentence(entries: str, said: str, tmp_path: Path) -> None:
    package(tmp_path, "number = 1\n", entries + "\n")
    (tmp_path / "spec.yaml").write_text(SPEC.replace("planner: mine", "planner: ecmp"))
    done = paralet(tmp_path, "run", tmp_path / "spec.yaml", "--results", tmp_path / "results")
    assert done.returncode == 2
    assert f"policies[1].policy: policy one_spine is {said}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("policy", "place", "said"),
    [
        (
            {"policy": "mine"},
            ("policies", 0, "policy"),
            "must be 'ecmp', 'pinned', 'adaptive', ",
        ),
        (
            {"policy": "controller", "planner": "mine"},
            ("policies", 0, "planner"),
            "must be 'optimal', 'greedy', 'annealing', 'ilp' or 'ecmp', not 'mine'",
        ),
    ],
)
def test_unknown_names_are_told_with_the_known_ones(
    tmp_path: Path, policy: dict[str, str], place: Location, said: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        load(write_spec(tmp_path, policies=[{"name": "it", **policy}]))
    (mistake,) = refusal.value.mistakes
    assert mistake.place == place
    assert said in mistake.what


def test_what_policies_say_fits_together() -> None:
    assert policy_names()[: len(OURS)] == list(OURS)
    assert [policy_kind(name) for name in OURS] == list(OURS.values())
    assert {fabric for kind in OURS.values() for fabric in kind.lacking} <= set(FABRICS)
    assert all(name in OURS[owner].options for name, owner in option_owners().items())
    assert len(option_owners()) == sum(len(kind.options) for kind in OURS.values())
