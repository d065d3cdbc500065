# SPDX-License-Identifier: Apache-2.0
"""A workload in a Python file beside its spec: on models, with real ranks, and only for `paralet run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from netmodel import SpecError
from testbed.cli import main
from testbed.progress import Steps
from testbed.spec import Spec, dump, load
from tests.testbed.experiments import on_loopback, write_spec
from tests.testbed.run.fake_fabric import TCP_AGENT, runner_on

EXAMPLE = Path(__file__).parents[3] / "experiments" / "own_workload" / "chain_broadcast.yaml"


@pytest.mark.usefixtures("no_plots")
def test_the_example_runs_on_a_model_and_its_spec_again_from_the_results(tmp_path: Path) -> None:
    words = ["run", "--fabric", "fluid", "--seeds", "1", "--results", str(tmp_path), "--json"]
    done = CliRunner().invoke(main, [*words, str(EXAMPLE)])
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)
    assert [policy["completions_s"][0] > 0.6 for policy in first["policies"]] == [True, True]  # 12.8 Mbit at 20 Mbit/s
    again = tmp_path / "again.yaml"
    again.write_text((tmp_path / "chain_broadcast" / "spec.yaml").read_text())
    second = json.loads(CliRunner().invoke(main, [*words, str(again)]).stdout)
    assert second | {"provenance": first["provenance"]} == first


def test_real_ranks_get_the_bytes_that_the_file_expects(tmp_path: Path) -> None:
    made = on_loopback(load(EXAMPLE, policies=["ecmp"], seeds=1, run_code=True))
    with Steps(1) as steps:
        (record,) = runner_on(made, tmp_path / "logs", TCP_AGENT).runs(steps)
    assert record.wrong_bytes == 0
    assert [(flow.src, flow.dst, flow.bytes) for flow in record.flows] == [(n, n + 1, 1_600_000) for n in range(3)]


def test_a_spec_from_elsewhere_runs_no_code(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w')")
    spec = write_spec(tmp_path, workload={"file": "own.py", "bytes": 800})
    with pytest.raises(SpecError, match=r"workload\.file: it names Python code, which only paralet run carries out"):
        load(spec)
    (tmp_path / "observations.json").write_text("{}")
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert "it names Python code" in done.stderr
    with pytest.raises(ValueError, match="it names Python code"):
        Spec.model_validate_json(json.dumps({"workload": {"file": str(tmp_path / "own.py"), "bytes": 800}}))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, r"workload\.file: there is no file .*own\.py$"),
        ("1 / 0", r"workload\.file: .*own\.py cannot be imported: ZeroDivisionError: division by zero$"),
        ("def", r"workload\.file: .*own\.py cannot be imported: SyntaxError"),
        (
            "from testbed.workloads import VerifiedWorkload",
            r"workload\.file: .*own\.py has 0 workloads; let it have one",
        ),
    ],
)
def test_a_file_without_a_workload_is_a_mistake_of_one_sentence(tmp_path: Path, source: str | None, said: str) -> None:
    if source is not None:
        (tmp_path / "own.py").write_text(source)
    with pytest.raises(SpecError, match=said) as refusal:
        load(write_spec(tmp_path, workload={"file": "own.py", "bytes": 800}), run_code=True)
    assert str(refusal.value).count("\n") == 0


def test_its_own_keys_are_checked_like_those_of_other_kinds(tmp_path: Path) -> None:
    file = str(EXAMPLE.with_suffix(".py"))
    made = load(EXAMPLE, run_code=True)
    assert made.spec.workload.kind == "chain_broadcast"
    assert f"file: {file}" in dump(made.spec)
    with pytest.raises(SpecError, match=r"workload\.sices: unknown key"):
        load(write_spec(tmp_path, workload={"file": file, "bytes": 800, "sices": 2}), run_code=True)
