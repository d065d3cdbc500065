# SPDX-License-Identifier: Apache-2.0
"""Experiments from Python, and the notebook that shows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import yaml

from testbed.analysis.metrics import PolicyResult
from testbed.errors import InputError, TestbedError
from testbed.notebook import read, run
from tests.testbed.experiments import write_spec

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

pytestmark = pytest.mark.usefixtures("no_plots")


def test_a_run_gives_its_summary_and_tables_whose_cells_have_types(tmp_path: Path) -> None:
    results = run(write_spec(tmp_path), policies=["ecmp"], seeds=2, fabric="fluid", results=tmp_path / "results")
    assert len(repr(results)) < 500  # a notebook shows it when it ends a cell
    assert results.folder == tmp_path / "results" / "small"
    (policy,) = results.summary["policies"]
    ended = {row["seed"]: row["completion_s"] for row in results.tables["flows"]}
    assert list(ended) == [1, 2]
    assert max(policy["completions_s"]) >= max(ended.values()) > 0  # type: ignore[type-var, operator]
    (matched,) = {row["matched"] for row in results.tables["predictions"]}
    assert matched == "not observed"
    assert read(results.folder) == results


def test_names_of_digits_stay_names(tmp_path: Path) -> None:
    spec = yaml.safe_load(write_spec(tmp_path).read_text())
    spec["policies"] = [{"name": "8", "policy": "ecmp"}, {"name": "inf", "policy": "ecmp"}]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    results = run(tmp_path / "spec.yaml", seeds=1, fabric="fluid", results=tmp_path / "results")
    assert {row["policy"] for row in results.tables["flows"]} == {"8", "inf"}


def test_wrong_bytes_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyResult, "verified", False)
    with pytest.raises(TestbedError, match=r"hosts received wrong bytes: .*summary\.json has the policies"):
        run(write_spec(tmp_path), policies=["ecmp"], seeds=1, fabric="fluid", results=tmp_path / "results")


def test_a_wrong_request_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no_such_policy"):
        run(write_spec(tmp_path), policies=["no_such_policy"], fabric="fluid", results=tmp_path)
    for wrong, said in (
        ({"policies": "ecmp"}, r"as a list, such as \["),
        ({"seeds": 0}, "seeds is 0, but has to be from 1 to "),
        ({"fabric": "nonsense"}, "there is no fabric nonsense: mininet, "),
    ):
        with pytest.raises(InputError, match=said):
            run(write_spec(tmp_path), **{"fabric": "fluid", "results": tmp_path, **wrong})
    with pytest.raises(InputError, match=r"nowhere/summary\.json cannot be used: No such file"):
        read(tmp_path / "nowhere")


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("agg")
    folder = tmp_path / "experiments"
    folder.mkdir()
    for name in ("notebook.ipynb", "demo.yaml"):
        shutil.copy(EXPERIMENTS / name, folder)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for cell in json.loads(Path("notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "its outputs are those of a machine"
            exec("".join(cell["source"]), names)
    assert min(names["times"].values()) >= 1
    assert len(names["slowest"]) == 2 * len(names["times"])
    assert Path("../results/notebook/latest/report.html").is_file()
