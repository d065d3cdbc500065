# SPDX-License-Identifier: Apache-2.0
"""An arrangement that paralet does not know: planning, runs, results and the report ask it all the same."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netmodel import Link, PortRef
from testbed.arrangements import Arrangement, Arranger, FibreState, JobHosts, RunTraffic, Section, Table
from testbed.cli.outcome import evaluate
from testbed.errors import TestbedError
from testbed.progress import Steps
from testbed.spec import Experiment
from tests.testbed.experiments import experiment, first_of, on_loopback
from tests.testbed.run.fake_fabric import TCP_AGENT, FakeFabric, made_up, outlast_events, runner_on


class Watched(Arranger):
    """Writes down its calls, between what happens to the fabric."""

    def __init__(self, fabric: FakeFabric) -> None:
        self._calls = fabric.link_changes

    def prepare(self, dying: Collection[str]) -> None:
        self._calls.append(("prepare", tuple(dying)))

    def before_run(self, hosts: JobHosts, undo: ExitStack) -> None:
        self._calls.append(("before", tuple(hosts)))
        undo.callback(self._calls.append, "after")

    def fibres_changed(self, state: FibreState) -> None:
        self._calls.append(("fibres", tuple(state.dead), state.swapped))

    def receivers(self, cable: Link) -> Collection[PortRef]:
        return [PortRef("h2", 1)] if cable.a == PortRef("leaf1", 3) else []

    def killed(self, dead: Collection[str], undo: ExitStack) -> None:
        self._calls.append(("killed", tuple(dead)))
        undo.callback(self._calls.append, "revived")


class Own(Arrangement):
    def on(self, fabric: FakeFabric) -> Arranger:  # type: ignore[override]
        return Watched(fabric)

    def dead_links(self, cables: frozenset[Link]) -> frozenset[Link]:
        return frozenset()

    def sections(self, runs: Iterable[RunTraffic]) -> Sequence[Section]:
        rows = [(run.policy, f"{sum(run.sent.values()):,}", ["one", "<two>"]) for run in runs]
        return [Section("links", "My own <part>", [Table(["policy", "sent\nbytes", "more"], rows)], note="So it is.")]

    def summary(self, runs: Iterable[RunTraffic]) -> dict[str, Any]:
        return {"own": [sum(run.counted.values()) for run in runs]}

    def outcome(self, policies: Sequence[Mapping[str, Any]]) -> str:
        return f"Own: {sum(len(policy['own']) for policy in policies)} runs."


class OtherNics(Own):
    def nics(self, source: str, destination: str, route: int = 0) -> tuple[int, int] | None:
        return (7, 8) if (source, destination) == ("h1", "h2") else None


def with_own(folder: Path, **changes: Any) -> Experiment:
    return replace(on_loopback(experiment(folder, **changes)), arrangements=(Own(),))


def test_planning_asks_it_and_has_an_answer_where_it_has_none(tmp_path: Path) -> None:
    made = replace(experiment(tmp_path, placement={"hosts": ["h1", "h2", "h3"]}), arrangements=(OtherNics(),))
    first = first_of(made)
    assert [first.nics_between(0, 1), first.nics_between(1, 0)] == [(7, 8), (0, 0)]
    assert first.shares(0, 1) == (1.0,)
    assert made.dead_links(frozenset(made.topology.links)) == frozenset()
    plain = replace(made, arrangements=(Arrangement(),))
    links = frozenset(plain.topology.links)
    first = first_of(plain)
    assert (first.nics_between(0, 1), plain.several_nics, plain.dead_links(links)) == ((0, 0), False, links)
    assert (first.decided_paths, first.carried(first.transfers), dict(first.detours(["leaf1"]).ways)) == (
        None,
        [],
        {},
    )


def killing(folder: Path) -> Experiment:
    """Two runs in which leaf1 is killed; the check that has no way around it is left out."""
    made = with_own(folder, seeds=1, events=[{"at_s": 0.0, "cut": "leaf1:3"}])
    event = made.spec.events[0].model_copy(update={"cut": None, "kill": "leaf1"})
    return replace(made, spec=made.spec.model_copy(update={"events": [event]}))


def test_a_run_tells_it_what_happens_and_undoes_it_in_reverse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outlast_events(monkeypatch)
    made = killing(tmp_path)
    fabric = FakeFabric(made)
    with Steps(2) as steps:
        list(runner_on(made, tmp_path / "logs", TCP_AGENT, fabric).runs(steps))
    dead = [link for link in made.topology.links if "leaf1" in (link.a.node, link.b.node)]
    one_run = [
        ("before", ("job1",)),
        *((link, False) for link in dead),
        ("killed", ("leaf1",)),
        "revived",
        *((link, True) for link in reversed(dead)),
        "after",
    ]
    assert fabric.link_changes == [("prepare", ("leaf1",)), *one_run, *one_run]


def test_a_run_tells_it_which_cables_are_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outlast_events(monkeypatch)
    events = [{"at_s": 0.0, "cut": "leaf1:3"}, {"at_s": 0.01, "cut": "leaf1:4"}, {"at_s": 0.02, "mend": "leaf1:3"}]
    made = with_own(tmp_path, seeds=1, policies=[{"name": "ecmp", "policy": "ecmp"}], events=events)
    # The check refuses a swap where no optical switch is.
    swap = made.spec.events[2].model_copy(update={"at_s": 0.03, "mend": None, "swap": "ocs1:3"})
    made = replace(made, spec=made.spec.model_copy(update={"events": [*made.spec.events, swap]}))
    fabric = FakeFabric(made)
    with Steps(1) as steps:
        (record,) = runner_on(made, tmp_path / "logs", TCP_AGENT, fabric).runs(steps)
    first, second = (made.cable(port) for port in ("leaf1:3", "leaf1:4"))
    told = [set(entry[1]) for entry in fabric.link_changes if entry[0] == "fibres"]
    assert told == [{first}, {first, second}, {second}, {second}]
    swaps = [entry[2] for entry in fabric.link_changes if entry[0] == "fibres"]
    assert swaps[2:] == [(), ((PortRef("ocs1", 3), frozenset({second})),)]
    assert "leaf1:2" in record.events[0].concerned
    assert record.events[3].what == "swap ocs1:3"


def test_a_run_that_fails_is_undone_and_keeps_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outlast_events(monkeypatch)
    made = killing(tmp_path)

    class Stuck(FakeFabric):
        def set_link(self, link: Link, up: bool) -> None:
            super().set_link(link, up)
            if PortRef("leaf1", 4) in (link.a, link.b):
                raise TestbedError(f"{link.a} does not come {'up' if up else 'down'}")

    fabric = Stuck(made)
    with Steps(1) as steps, pytest.raises(TestbedError, match="does not come down"):
        list(runner_on(made, tmp_path / "logs", TCP_AGENT, fabric).runs(steps))
    changed = [entry for entry in fabric.link_changes if isinstance(entry[0], Link)]
    assert [link for link, up in changed if up] == [link for link, up in changed if not up][::-1]
    assert fabric.link_changes[-1] == "after"


def test_the_report_and_the_summary_have_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = replace(experiment(tmp_path), arrangements=(Own(),))
    outcome = evaluate(made, made_up(made), tmp_path)
    page = outcome.page.read_text()
    assert ">My own &lt;part&gt;</h2>" in page
    assert "<th>sent<br>bytes</th>" in page
    assert "<td>pinned</td><td>40,000</td><td>one<br>&lt;two&gt;</td>" in page
    assert page.index("My own") < page.index("Placement of ranks")
    for policy in json.loads((tmp_path / "summary.json").read_text())["policies"]:
        assert len(policy["own"]) == 2
        assert min(policy["own"]) > 0
    outcome.show(as_json=False)
    assert "Own: 4 runs." in capsys.readouterr().out
