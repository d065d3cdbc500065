# SPDX-License-Identifier: Apache-2.0
"""Result folders: the promised shape of the summary, tables, the report."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from emul.shaping import burst_bytes
from sim.paths import hashed_paths
from testbed import report
from testbed.allocation.demands import ideal_s
from testbed.analysis import flows, metrics, results
from testbed.analysis.flows import RunFlows, check_flows, flows_of
from testbed.analysis.jobs import fairness
from testbed.analysis.observations import HappenedEvent, Observations
from testbed.progress import Silent
from testbed.provenance import Provenance
from testbed.simulate import fluid
from testbed.spec import Experiment
from tests.testbed.experiments import experiment, first_of
from tests.testbed.run.fake_fabric import made_up

PROVENANCE = Provenance("1.0", "abc", "2026-11-26T21:00:00+00:00", "paralet run <b>.yaml", "CPU", 2, "Linux 6.1", 0.5)


def judged(made: Experiment, seen: Observations, folder: Path) -> dict[str, object]:
    runs = flows_of(made, seen)
    policies, checks = metrics.by_policy(made, runs), check_flows(made, runs)
    summary = results.summary(made, policies, checks, PROVENANCE)
    results.write_tables(folder, made, policies, checks)
    results.write_summary(folder, summary)
    report.write(folder, made, policies, checks, summary["ideal_s"], PROVENANCE)
    return summary


@pytest.mark.usefixtures("no_plots")
def test_summary_has_exactly_the_promised_shape(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    judged(made, made_up(made), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    first = ["spec", "provenance", "fabric", "placement", "seeds", "ideal_s", "policies"]
    assert list(summary) == [*first, "too_busy", "predictions"]
    assert summary["spec"]["name"] == "small"
    assert summary["provenance"] == asdict(PROVENANCE)
    assert summary["fabric"] == "mininet"
    assert summary["placement"] == ["h1", "h3", "h2", "h4"]
    assert summary["seeds"] == [1, 2]
    assert summary["ideal_s"] == pytest.approx((2 * 3 / 4 * 80_000 - burst_bytes(100_000_000, 9000)) * 8 / 100e6)
    assert summary["predictions"] == {"checked": 16, "matched": 16}
    assert [policy["name"] for policy in summary["policies"]] == ["ecmp", "pinned"]
    assert summary["policies"][0] == {
        "name": "ecmp",
        "m": 1,
        "completions_s": [pytest.approx(1.1), pytest.approx(1.2)],
        "mean_s": pytest.approx(1.15),
        "worst_s": pytest.approx(1.2),
        "verified": True,
        "retransmits": 8,
        "wait_s": [None, None],
    }


@pytest.mark.usefixtures("no_plots")
def test_a_busy_machine_is_told_by_summary_and_report(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    seen = made_up(made)
    judged(made, seen, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "too busy" not in page
    busy = [run.model_copy(update={"wait_s": 0.0019 + 0.0002 * number}) for number, run in enumerate(seen.runs[:2])]
    summary = judged(made, Observations(runs=[*busy, *seen.runs[2:]]), tmp_path)
    assert summary["too_busy"] is True
    said = "The machine was too busy in 1 of 4 runs: do not trust their times."
    assert said in (tmp_path / "report.html").read_text()


def test_the_cost_of_a_report_does_not_grow_with_runs_times_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every ideal is computed once per seed, and all paths of a run at once and once."""
    made = experiment(tmp_path, fabric="fluid", jobs=2)
    seen = fluid.observe(made, Silent())
    computed, hashed = [], []

    def counted(*arguments: Any) -> float:
        computed.append(arguments)
        return ideal_s(*arguments)

    def counted_paths(*arguments: Any) -> Any:
        hashed.append(arguments)
        return hashed_paths(*arguments)

    def refused(*_: object, **__: object) -> None:
        pytest.fail("a path is predicted by itself")

    monkeypatch.setattr("testbed.spec.instance.ideal_s", counted)
    monkeypatch.setattr(flows, "hashed_paths", counted_paths)
    monkeypatch.setattr(flows, "path_of", refused)
    judged(made, seen, tmp_path)
    assert len(hashed) == len(seen.runs)
    assert len(computed) == len(made.seeds) * (1 + len(made.jobs))


def test_wrong_bytes_are_not_verified(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    summary = results.summary(made, metrics.by_policy(made, flows_of(made, made_up(made, wrong_bytes=3))), [], None)
    assert [policy["verified"] for policy in summary["policies"]] == [False, False]


@pytest.mark.usefixtures("no_plots")
def test_tables_are_complete(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    judged(made, made_up(made), tmp_path)
    rows = {}
    for path in tmp_path.glob("*.csv"):
        with path.open(newline="") as file:
            rows[path.name] = list(csv.DictReader(file))
    assert {name: len(table) for name, table in rows.items()} == {
        "steps.csv": 4 * 6,
        "jobs.csv": 4,
        "flows.csv": 4 * 4,
        "lanes.csv": 4 * 4,
        "links.csv": 4 * 16,  # eight links, both ends
        "throughput.csv": 4 * 3,
        "predictions.csv": 4 * 4,
    }
    uplinks = [row for row in rows["links.csv"] if row["uplink_to"]]
    assert all(int(row["tx_bytes"]) >= int(row["predicted_payload_bytes"]) for row in uplinks)
    assert {row["matched"] for row in rows["predictions.csv"]} == {"True"}


class _References(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.mark.parametrize("policies", [1, 2, 5])
def test_report_is_self_contained_and_has_every_plot(tmp_path: Path, policies: int) -> None:
    made = experiment(tmp_path, policies=[{"name": f"p{n}", "policy": "ecmp", "m": n + 1} for n in range(policies)])
    judged(made, made_up(made), tmp_path)
    page = (tmp_path / "report.html").read_text()
    references = _References()
    references.feed(page)
    contents = [reference for reference in references.found if reference.startswith("#")]
    assert contents == [f"#{place}" for place in re.findall(r'<h2 id="(.*?)">', page)]
    pictures = [reference for reference in references.found if reference not in contents]
    assert len(pictures) == len(list(tmp_path.glob("*.png"))) == 8
    assert all(reference.startswith("data:image/svg+xml;base64,") for reference in pictures)
    text = re.sub(r"<[^>]+>", " ", page)
    for expected in ("cross_leaf", "rank k is on leaf k mod 2", "all verified", "p0", "7.44 ms"):
        assert expected in text


def test_jobs_events_and_path_clients_appear_in_the_results(tmp_path: Path) -> None:
    policies = [{"name": "optimal", "policy": "controller"}, {"name": "ecmp", "policy": "ecmp"}]
    made = experiment(tmp_path, policies=policies, jobs=2, events=[{"at_s": 0.5, "cut": "leaf1:3"}], seeds=1)
    first, second = made_up(made).runs
    cut = HappenedEvent(what="cut leaf1:3", at_s=0.5, done_s=0.52, sent_s=0.507, concerned=["leaf1:1"])
    forecast = {"hits": 3, "misses": 1, "unforeseen": 4, "rate": 0.75}
    first = first.model_copy(
        update={
            "events": [cut],
            "path_clients": {"announced": 4321, "assigned": 4, "ecmp_starts": 3, "assigns": 5, "reverted": 6},
            "service": {"forecast": forecast, "counts": {"prepared plans used": 1}},
        }
    )
    second = second.model_copy(update={"events": [cut.model_copy(update={"sent_s": None})]})
    summary = judged(made, Observations(runs=[first, second]), tmp_path)
    planned, ecmp = summary["policies"]  # type: ignore[misc]
    assert planned["jobs"] == {
        job.name: [record.completion_s] for job, record in zip(made.jobs, first.jobs, strict=True)
    }
    assert planned["fairness"] == [pytest.approx(fairness(RunFlows(first_of(made), first)))]
    assert planned["events"] == [[cut.model_dump()]]
    assert planned["forecasts"] == [forecast]
    assert planned["service"] == [{"prepared plans used": 1}]
    assert planned["clients"] == [first.path_clients]
    assert not {"forecasts", "service", "clients"} & ecmp.keys()
    assert summary["predictions"] == {"checked": 0, "matched": 0}  # flows went round the cut link
    text = re.sub(r"<[^>]+>", " ", (tmp_path / "report.html").read_text())
    for expected in (
        "Fairness between jobs",
        "Events and recovery",
        "What the path service did",
        "4321",
        "75%",
        "cut leaf1:3",
    ):
        assert expected in text


@pytest.mark.usefixtures("no_plots")
def test_report_tells_wrong_bytes_and_wrong_predictions(tmp_path: Path) -> None:
    made = experiment(tmp_path, seeds=1)
    first, *others = made_up(made, wrong_bytes=8).runs
    moved = first.seen[0].model_copy(update={"ports": ["leaf2:4"]})
    judged(made, Observations(runs=[first.model_copy(update={"seen": [moved, *first.seen[1:]]}), *others]), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "WRONG" in page
    assert "observed leaf2:4" in page


def test_report_of_a_run_without_uplinks(tmp_path: Path) -> None:
    """All hosts on one leaf: nothing to balance, and nothing to predict."""
    topology = {"leaf_spine": {"leaves": 1, "spines": 1, "hosts_per_leaf": 3, "host_rate": "10M"}}
    made = experiment(tmp_path, topology=topology, placement={"rule": "packed"}, seeds=1)
    summary = judged(made, made_up(made), tmp_path)
    assert summary["predictions"] == {"checked": 0, "matched": 0}


def test_observations_survive_their_file(tmp_path: Path) -> None:
    seen = made_up(experiment(tmp_path))
    seen.save(tmp_path / "observations.json")
    assert Observations.load(tmp_path / "observations.json") == seen


def test_an_old_result_does_not_outlive_a_new_run(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    (folder / "logs" / "pcap").mkdir(parents=True)
    for name in ("summary.json", "report.html", "links.csv", "completion.png", "logs/agent-h1.log", "notes.txt"):
        (folder / name).write_text("old")
    results.prepare(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "notes.txt"]  # only what a run had made goes
    assert [path.name for path in (folder / "logs").iterdir()] == ["pcap"]


def test_latest_points_at_the_newest(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        results.point_latest(tmp_path / name)
        assert (tmp_path / "latest").resolve() == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "latest"]
