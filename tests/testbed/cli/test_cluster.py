# SPDX-License-Identifier: Apache-2.0
"""`paralet cluster`: its output, its files, and its errors."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from netmodel import SpecError, load_yaml
from sim.cluster import Cause, Job, Scenario, simulate
from testbed.cli import main
from testbed.spec.cluster import ClusterSpec, load_cluster

ROOT = Path(__file__).parents[3]
SMALL: dict[str, Any] = {
    "name": "small",
    "cluster": {"leaves": 4, "spines": 4, "servers_per_leaf": 2, "gpus_per_server": 2},
    "trace": {"jobs": 40, "mean_gap_s": 300, "largest": 16},
    "strategies": [
        {"name": "ecmp", "placement": "scattered", "network": "ecmp"},
        {"name": "vclos", "placement": "vclos", "network": "reserved", "queue": "backfill"},
    ],
}
PODS: dict[str, Any] = {
    "clos": {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2},
    "servers_per_leaf": 1,
    "gpus_per_server": 2,
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}, sort_keys=False))
    return path


def cluster(spec: Path, *arguments: str) -> Result:
    results = str(spec.parent / "results")
    return CliRunner().invoke(main, ["cluster", str(spec), "--results", results, "--jobs", "1", *arguments])


def test_tables_and_files_show_every_strategy(tmp_path: Path) -> None:
    done = cluster(write(tmp_path), "--seeds", "2")
    assert done.exit_code == 0, done.output
    assert "16 GPUs, 40 jobs, one every 300 s, fifo, 2 seeds" in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith((" ecmp", " vclos"))]
    assert rows == ["ecmp", "vclos", "ecmp", "vclos"]
    folder = tmp_path / "results" / "small-cluster"
    pngs = {path.name for path in folder.glob("*.png")}
    names = ("completion", "distribution", "busy", "failures", "worst_link", "jobs")
    assert pngs == {f"{name}.png" for name in names}
    page = (folder / "report.html").read_text()
    assert page.count("<img ") == len(names)
    assert "16 GPUs, 40 jobs, one every 300 s, fifo, 2 seeds" in page
    assert page.count('<td class="name">vclos</td>') == 2
    with (folder / "jobs.csv").open() as file:
        jobs = list(csv.DictReader(file))
    assert len(jobs) == 2 * 2 * 40
    assert {job["strategy"] for job in jobs} == {"ecmp", "vclos"}
    assert all(float(job["end_s"]) > float(job["start_s"]) >= float(job["arrival_s"]) for job in jobs)


def test_what_did_not_happen_has_no_column_and_no_plot(tmp_path: Path) -> None:
    """Jobs of one server at a time: no placement fails, and no flow leaves a server."""
    alone = {"jobs": 8, "mean_gap_s": 1_000_000, "largest": 2}
    spec = write(tmp_path, trace=alone, strategies=[{"name": "ecmp", "placement": "packed", "network": "ecmp"}])
    folder = tmp_path / "results" / "small-cluster"
    folder.mkdir(parents=True)
    (folder / "failures.png").write_text("of an earlier run")
    done = cluster(spec)
    assert done.exit_code == 0, done.output
    heading = next(line for line in done.stdout.splitlines() if "not ended" in line)
    assert heading.rstrip().endswith("not ended")
    assert {path.stem for path in folder.glob("*.png")} == {"completion", "distribution", "busy"}
    assert (folder / "report.html").read_text().count("<img ") == 3


@pytest.mark.usefixtures("no_plots")
def test_a_failure_in_one_of_three_seeds_is_not_shown_as_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_once(jobs: list[Job], scenario: Scenario) -> Any:
        failures = Counter[Cause]({"locality": 1} if scenario.seed == 1 else {})
        return dataclasses.replace(simulate(jobs, scenario), failures=failures, paths_set=0, paths_moved=0)

    monkeypatch.setattr("testbed.simulate.clusters.simulate", failing_once)
    strategies = [{"name": "ecmp", "placement": "packed", "network": "ecmp"}]
    done = cluster(write(tmp_path, trace={**SMALL["trace"], "jobs": 4}, strategies=strategies), "--seeds", "3")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(" ecmp")]
    assert rows[1][-1] == "0.3"
    page = (tmp_path / "results" / "small-cluster" / "report.html").read_text()
    assert page.count(">0.3<") == 1


@pytest.mark.usefixtures("no_plots")
def test_json_is_one_object_that_agrees_with_the_jobs(tmp_path: Path) -> None:
    done = cluster(write(tmp_path), "--json")
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "results" / "small-cluster" / "summary.json").read_text())
    assert (summary["gpus"], summary["fidelity"], summary["seeds"]) == (16, "average", 1)
    assert [(strategy["name"], strategy["queue"]) for strategy in summary["strategies"]] == [
        ("ecmp", "fifo"),
        ("vclos", "backfill"),
    ]
    with (tmp_path / "results" / "small-cluster" / "jobs.csv").open() as file:
        jobs = list(csv.DictReader(file))
    for strategy in summary["strategies"]:
        own = [job for job in jobs if job["strategy"] == strategy["name"]]
        assert strategy["jobs"] == {"ended": 40}
        mean = sum(float(job["end_s"]) - float(job["arrival_s"]) for job in own) / 40
        assert strategy["completion_s"]["mean"] == pytest.approx(mean, abs=0.01)
        assert strategy["completion_s"]["mean"] == pytest.approx(
            strategy["running_s"]["mean"] + strategy["waiting_s"]["mean"]
        )
    ecmp, vclos = summary["strategies"]
    assert ecmp["stretch"] > vclos["stretch"] == pytest.approx(1.0)
    assert ecmp["instability"] > vclos["instability"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.usefixtures("no_plots")
def test_an_interrupted_command_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished simulations are read, damaged ones and new seeds are computed."""
    from testbed.simulate import clusters

    calls: list[int] = []
    simulate = clusters.simulate

    def counted(jobs: list[Job], scenario: Scenario) -> Any:
        calls.append(scenario.seed)
        return simulate(jobs, scenario)

    monkeypatch.setattr(clusters, "simulate", counted)
    spec = write(tmp_path)
    first = cluster(spec, "--json")
    assert calls == [1, 1]
    assert cluster(spec, "--json").stdout == first.stdout
    assert calls == [1, 1]
    damaged, _ = sorted((tmp_path / "results" / "small-cluster" / "runs").iterdir())
    damaged.write_text(damaged.read_text()[:100])
    assert cluster(spec, "--json").stdout == first.stdout
    assert calls == [1, 1, 1]
    cluster(spec, "--seeds", "2")
    assert calls == [1, 1, 1, 2, 2]
    cluster(write(tmp_path, queue="edf"))
    assert calls == [1, 1, 1, 2, 2, 1]  # one strategy has a queue of its own


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("cluster_of", [PODS, {"fat_tree": {"k": 4}, "gpus_per_server": 1, "planes": 2}])
def test_three_tiers_and_planes_are_simulated(tmp_path: Path, cluster_of: dict[str, Any]) -> None:
    strategies = [
        {"name": "ecmp", "placement": "packed", "network": "ecmp"},
        {"name": "source-routing", "placement": "packed", "network": "source_routing"},
        {"name": "vclos", "placement": "vclos", "network": "reserved"},
    ]
    done = cluster(write(tmp_path, cluster=cluster_of, strategies=strategies), "--json")
    assert done.exit_code == 0, done.output
    found = {strategy["name"]: strategy["stretch"] for strategy in json.loads(done.stdout)["strategies"]}
    assert found["ecmp"] > found["source-routing"] >= found["vclos"] == pytest.approx(1.0)


@pytest.mark.usefixtures("no_plots")
def test_preempted_jobs_are_counted_and_read_again(tmp_path: Path) -> None:
    las = {"name": "las", "placement": "packed", "network": "ecmp", "queue": "las"}
    spec = write(tmp_path, strategies=[las], las={"service_gpu_s": 2000.0, "checkpoint_s": 5.0})
    first = cluster(spec, "--json")
    assert cluster(spec, "--json").stdout == first.stdout
    (found,) = json.loads(first.stdout)["strategies"]
    with (tmp_path / "results" / "small-cluster" / "jobs.csv").open() as file:
        jobs = list(csv.DictReader(file))
    assert found["preemptions"] == sum(int(job["preemptions"]) for job in jobs) > 0
    assert all((float(job["paused_s"]) > 0) == (job["preemptions"] != "0") for job in jobs)


TRACE = """JobID|Submit|ElapsedRaw|AllocTRES
1|2024-01-01T00:00:00|3600|gres/gpu=8
2|2024-01-01T00:10:00|60|gres/gpu=16
"""


def from_file(folder: Path, text: str) -> Result:
    (folder / "jobs.txt").write_text(text)
    return cluster(write(folder, trace=None, trace_file={"file": "jobs.txt", "format": "sacct"}), "--json")


@pytest.mark.usefixtures("no_plots")
def test_a_trace_file_lies_beside_the_spec(tmp_path: Path) -> None:
    done = from_file(tmp_path, TRACE)
    assert done.exit_code == 0, done.output
    assert [strategy["jobs"] for strategy in json.loads(done.stdout)["strategies"]] == [{"ended": 2}, {"ended": 2}]


def test_a_trace_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    done = from_file(tmp_path, TRACE.replace("|60|", "|long|"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "jobs.txt:3: ElapsedRaw must be a number, 0 or more, not 'long'" in done.stderr
    (tmp_path / "jobs.txt").unlink()
    done = cluster(tmp_path / "spec.yaml")
    assert done.exit_code == 2
    assert "jobs.txt cannot be used: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"queue": "lifo"}, "spec.yaml:"),
        ({"trace": None}, "give either trace, to generate one, or trace_file, to read one"),
        ({"sedes": 3}, "sedes: unknown key; did you mean 'seeds'"),
        (
            {"strategies": [{"name": "a", "placement": "packed", "network": "reserved"}]},
            "strategies[0].network: network reserved needs a placement that reserves links",
        ),
        (
            {"strategies": [{"name": "a", "placement": "ocs_vclos", "network": "ecmp"}]},
            "strategies[0].network: ocs_vclos joins leaves by circuits of each job",
        ),
        (
            {"strategies": [SMALL["strategies"][0], SMALL["strategies"][0]]},
            "strategies[1].name: another strategy has the name 'ecmp'",
        ),
        (
            {"trace": {"jobs": 4, "mean_gap_s": 1.0, "shortest_s": 9.0, "longest_s": 8.0}},
            "trace.longest_s: no duration is at least 9 and at most 8 s",
        ),
        (
            {
                "cluster": {"leaves": 4, "spines": 2, "servers_per_leaf": 2, "gpus_per_server": 2},
                "strategies": [{"name": "a", "placement": "packed", "network": "source_routing"}],
            },
            "4 GPUs of a leaf need as many spines",
        ),
        (
            {
                "cluster": PODS | {"clos": {"pods": 2, "leaves": 4, "aggs": 2, "cores_per_agg": 2}},
                "strategies": [{"name": "a", "placement": "packed", "network": "source_routing"}],
            },
            "strategies[0].network: source routing gives every GPU of a leaf a spine of its own: 4 leaves of a pod",
        ),
        (
            {"cluster": PODS | {"spines": 2}},
            "cluster.spines: clos determines them; leave it out",
        ),
        ({"cluster": {"leaves": 4, "gpus_per_server": 2}}, "cluster: a leaf-spine needs the key spines"),
        ({"cluster": {"fat_tree": {"k": 6}, "gpus_per_server": 2}}, "a leaf has 3 ports for GPUs, which servers of 2"),
        ({"cluster": {"fat_tree": {"k": 4}, "gpus_per_server": 2, "clos": PODS["clos"]}}, "either clos or fat_tree"),
        (
            {"cluster": PODS | {"clos": {"pods": 4096, "leaves": 1, "aggs": 4096, "cores_per_agg": 4}}},
            "cluster: it has 167,772,160 links, and the simulation takes 100,000,000 at most",
        ),
        (
            {"cluster": PODS, "strategies": [{"name": "a", "placement": "ocs_vclos", "network": "reserved"}]},
            "strategies[0].network: ocs_vclos joins leaves and spines by circuits, which pods do not have; take vclos",
        ),
    ],
)
def test_a_wrong_spec_is_refused_with_its_place(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    done = cluster(write(tmp_path, **changes))
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.startswith("paralet: ")
    with pytest.raises(SpecError):
        load_yaml(write(tmp_path, **changes), ClusterSpec)


@pytest.mark.parametrize("spec", sorted((ROOT / "experiments" / "clusters").glob("*.yaml")), ids=lambda path: path.name)
def test_experiments_of_the_project_are_valid(spec: Path) -> None:
    assert load_cluster(spec).name == spec.stem
