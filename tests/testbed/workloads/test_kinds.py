# SPDX-License-Identifier: Apache-2.0
"""The table of workloads: kinds are imported when they are asked for, and other packages add theirs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.workloads import kinds, workload_class

ROOT = Path(__file__).parents[3]

SPEC = """
name: chain
fabric: fluid
topology:
  leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}
workload: {kind: KIND, bytes: 80000}
policies:
  - {name: ecmp, policy: ecmp}
"""


def package(folder: Path, source: str, entry_points: str) -> None:
    """An installed package with a module `chain`, as pip leaves it in a folder of the path."""
    (folder / "chain.py").write_text(source)
    metadata = folder / "chain-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: chain\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def paralet(packages: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{packages}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_kind_has_the_name_by_which_specs_ask_for_it() -> None:
    assert [workload_class(kind).model_fields["kind"].default for kind in kinds().values()] == list(kinds())


def test_a_spec_imports_only_the_workload_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace("KIND", "permutation"))
    program = f"""
import sys
from pathlib import Path
import testbed.spec
rooms = ("testbed.workloads.", "testbed.training.", "testbed.traces.")
print(*(name for name in sys.modules if name.startswith(rooms)))
testbed.spec.load(Path({str(tmp_path / "spec.yaml")!r}))
print(*(name for name in sys.modules if name.startswith(rooms)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    imported, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert imported == {"testbed.workloads.base", "testbed.workloads.files", "testbed.workloads.kinds"}
    assert loaded - imported == {"testbed.workloads.permutation"}


def documented() -> tuple[str, str]:
    """The example of docs/extending.md: a workload, and the entry point that adds it."""
    page = (ROOT / "docs" / "extending.md").read_text()
    (source,) = re.findall(r"^```python\n(.*?class ChainBroadcast.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (entry,) = re.findall(r'^\[project\.entry-points\."paralet\.workloads"\]\n(.+)$', page, re.MULTILINE)
    return source, "[paralet.workloads]\n" + entry.replace('"', "")


def test_a_package_adds_a_workload_by_an_entry_point(tmp_path: Path) -> None:
    package(tmp_path, *documented())
    (tmp_path / "spec.yaml").write_text(SPEC.replace("KIND", "chain_broadcast"))
    done = paralet(tmp_path, "run", tmp_path / "spec.yaml", "--results", tmp_path / "results", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policies"][0]["completions_s"][0] > 0
    (tmp_path / "spec.yaml").write_text(SPEC.replace("KIND", "chain_broadcast").replace("bytes", "sices: 2, bytes"))
    done = paralet(tmp_path, "run", tmp_path / "spec.yaml", "--results", tmp_path / "results")
    assert "workload.sices: unknown key; did you mean 'slices'?" in done.stderr


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("chain_broadcast = nowhere:Chain", "nowhere:Chain, which cannot be imported: No module named 'nowhere'"),
        ("chain_broadcast = chain:Other", "chain:Other, which cannot be imported: module 'chain' has no attribute"),
        ("chain_broadcast = chain:number", "chain:number, which is no class of testbed.workloads.Workload"),
    ],
)
def test_an_entry_point_without_a_workload_is_a_mistake_of_one_sentence(
    entry: str, sentence: str, tmp_path: Path
) -> None:
    package(tmp_path, "number = 1\n", f"[paralet.workloads]\n{entry}\n")
    (tmp_path / "spec.yaml").write_text(SPEC.replace("KIND", "chain_broadcast"))
    done = paralet(tmp_path, "run", tmp_path / "spec.yaml", "--results", tmp_path / "results")
    assert done.returncode == 2
    assert f"workload chain_broadcast is {sentence}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_package_does_not_replace_a_workload_of_ours(tmp_path: Path) -> None:
    package(tmp_path, "", "[paralet.workloads]\npermutation = nowhere:Chain\n")
    (tmp_path / "spec.yaml").write_text(SPEC.replace("KIND", "permutation"))
    done = paralet(tmp_path, "run", tmp_path / "spec.yaml", "--results", tmp_path / "results", "--json")
    assert done.returncode == 0, done.stderr
