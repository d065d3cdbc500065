# SPDX-License-Identifier: Apache-2.0
"""Sweeps: their points, resumption, and results that do not depend on the workers."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from testbed.cli import main
from testbed.errors import InputError, TestbedError
from testbed.simulate import spread, sweep
from testbed.spec import Experiment, Spec, check
from tests.testbed.simulate.small import document

SMALL = document(
    "fluid",
    policies=[{"name": "pinned", "policy": "pinned"}, {"name": "lanes", "policy": "ecmp", "m": 2}],
    seeds=2,
)


def made(**changes: Any) -> Experiment:
    return check(Spec.model_validate(SMALL | changes))


def test_points_are_all_combinations_with_all_seeds() -> None:
    asked = sweep.points(made(), {"workload.bytes": [4096, 8192], "policies.lanes.m": [1, 2, 4]})
    assert [(p.parameters["workload.bytes"], p.parameters["policies.lanes.m"], p.seed) for p in asked] == [
        (size, m, seed) for size in (4096, 8192) for m in (1, 2, 4) for seed in (1, 2)
    ]
    assert len({point.name for point in asked}) == len(asked)
    assert asked[0].document["policies"][1]["m"] == 1
    assert asked[0].document["workload"]["bytes"] == 4096


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("workload.slics", 3, "workload.slics=3: .*slics"),
        ("policies.none.m", 3, "policies.none.m: the spec has no 'none' there; it has pinned, lanes"),
        ("policies.lanes.m", 0, "policies.lanes.m=0: policies.1.m: Input should be greater than or equal to 1"),
        ("seeds.m", 3, "seeds.m: seeds is not a section with keys"),
        ("workload.bytes", 12, "workload.bytes=12: workload.permutation: 12 bytes are not"),
    ],
)
def test_a_wrong_value_is_reported_before_anything_runs(key: str, value: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        sweep.points(made(), {key: [value]})


def test_finished_points_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = sweep.points(made(), {"policies.lanes.m": [1, 2]})
    first = sweep.sweep(asked[:3], tmp_path, jobs=1)
    assert {path.name for path in tmp_path.iterdir()} == {point.name for point in asked[:3]}
    (tmp_path / asked[0].name).write_text("half a fi")  # as a machine that lost power leaves it
    done: list[sweep.Point] = []
    measure = sweep.measure
    monkeypatch.setattr(sweep, "measure", lambda point: (done.append(point), measure(point))[1])
    again = sweep.sweep(asked, tmp_path, jobs=1)
    assert done == [asked[0], asked[3]]
    assert again[:3] == first
    assert [result["seed"] for result in again] == [1, 2, 1, 2]


def test_a_sweep_may_vary_the_fabric(tmp_path: Path) -> None:
    asked = sweep.points(made(seeds=1), {"fabric": ["fluid", "packet"]})
    fluid, packet = (result["policies"][0]["completion_s"] for result in sweep.sweep(asked, tmp_path, jobs=1))
    assert fluid == pytest.approx(packet, rel=0.1)
    assert fluid != packet


def test_one_process_and_two_give_the_same_results(tmp_path: Path) -> None:
    asked = sweep.points(made(), {"policies.lanes.m": [1, 2]})
    assert sweep.sweep(asked, tmp_path / "1", jobs=1) == sweep.sweep(asked, tmp_path / "2", jobs=2)


def test_a_point_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    asked = sweep.points(made(seeds=1), {"events": [[], [{"at_s": 0.1, "cut": "leaf1:1"}]]})
    with pytest.raises(TestbedError, match=r"events=\[\{.*seed 1: policy pinned: .*h1:1 is dead"):
        sweep.sweep(asked, tmp_path, jobs=1)
    assert [path.name for path in tmp_path.iterdir()] == [asked[0].name]


def test_the_command_writes_a_table(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    arguments = [
        "sweep",
        str(file),
        "--set",
        "policies.lanes.m=1,4",
        "--results",
        str(tmp_path),
        "--jobs",
        "1",
        "--json",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    listed = json.loads(result.stdout)
    assert listed["points"] == 4
    assert [(row["policy"], row["m"], row["seeds"]) for row in listed["rows"]] == [
        ("pinned", 1, 2),
        ("lanes", 1, 2),
        ("pinned", 1, 2),
        ("lanes", 4, 2),
    ]
    with (tmp_path / "small-sweep/sweep.csv").open() as lines:
        table = list(csv.DictReader(lines))
    assert len(table) == 4 * 2
    assert all(float(line["completion_s"]) >= float(line["ideal_s"]) for line in table)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "policies.lanes.m"], "write it like"),
        (["--set", "policies.lanes.m="], "write it like"),
        (["--set", "workload.bytes=1,]"], "the values are not YAML"),
        (["--set", "workload.bytes=2024-99-99"], "the values are not YAML"),
        (["--set", "workload.bytes=2024-01-01"], "the values are not YAML"),
        (["--set", f"workload.bytes=0x{'f' * 5000}"], "the values are not YAML"),
        (["--set", "workload.bytes=&a [*a]"], "the values are not YAML"),
        (["--set", "workload.bytes=80", "--set", "workload.bytes=160"], "workload.bytes already has values"),
        (["--set", "workload.byte=80"], "byte: unknown key"),
        (["--scheduler", "tcp://127.0.0.1:1", "--jobs", "2"], "not both"),
    ],
)
def test_a_wrong_request_gives_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    result = CliRunner().invoke(main, ["sweep", str(file), "--results", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_emulated_fabric_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL | {"fabric": "mininet"}))
    result = CliRunner().invoke(main, ["sweep", str(file), "--results", str(tmp_path)])
    assert result.exit_code == 2
    assert "a sweep runs on a model, not on mininet" in result.stderr


def test_a_scheduler_without_dask_gives_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="needs the package distributed, which is not installed"):
        sweep.sweep(sweep.points(made(), {}), tmp_path, scheduler="tcp://127.0.0.1:1")


@contextmanager
def cluster(workers: int) -> Iterator[str]:
    """The address of a Dask scheduler whose workers, of one thread each, are processes of this machine."""
    distributed = pytest.importorskip(
        "distributed", reason="the optional package distributed is not installed; pip install -e '.[dask]' brings it"
    )
    with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local:
        yield local.scheduler_address


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dask_cluster_gives_the_same_results(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = sweep.points(made(), {"policies.lanes.m": [1, 2]})
    here = sweep.sweep(asked, tmp_path / "here", jobs=1)
    monkeypatch.setattr(sweep, "measure", lambda point: pytest.fail(f"{point} is not for this process"))
    with cluster(workers) as address:
        assert sweep.sweep(asked, tmp_path / "dask", scheduler=address) == here


def test_a_point_that_fails_on_a_dask_cluster_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    asked = sweep.points(made(seeds=1), {"events": [[], [{"at_s": 0.1, "cut": "leaf1:1"}]]})
    with (
        cluster(1) as address,
        pytest.raises(TestbedError, match=r"events=\[\{.*seed 1: policy pinned: .*h1:1 is dead"),
    ):
        sweep.sweep(asked, tmp_path, scheduler=address)
    assert [path.name for path in tmp_path.iterdir()] == [asked[0].name]


def test_a_dask_scheduler_without_workers_gives_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_CONNECT_TIMEOUT_S", 1)
    with cluster(0) as address, pytest.raises(InputError, match="has no workers; start some: dask worker tcp://"):
        sweep.sweep(sweep.points(made(), {}), tmp_path, scheduler=address)
