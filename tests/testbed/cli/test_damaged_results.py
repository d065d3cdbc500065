# SPDX-License-Identifier: Apache-2.0
"""`paralet report` on damaged observations: one sentence with file and place, and exit status 2, or a report."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import testbed.report
from testbed import spec
from testbed.cli import main
from testbed.progress import Silent
from testbed.simulate import fluid
from testbed.spec import Experiment
from tests.testbed.experiments import experiment
from tests.testbed.run.fake_fabric import made_up

MUTATIONS = 150
"""Of each of two recorded runs."""

WRONG: dict[type, list[Any]] = {
    bool: [None, "x"],
    int: [-1, 0, 1000, 2**62, 2**70, -(2**31), 1.5, None, "1"],
    float: [-1.0, 0.0, 1e300, float("nan"), float("inf"), None],
    str: ["", "x", "leaf9:1", "leaf1:99", "h1:1", ":", "ecmp\n", "10.0.0.300", "::1", None, 3],
    list: [[], None, {}, [[]]],
    dict: [{}, None, [], {"x": 1}],
    type(None): [True, 1, "x", []],
}


def report(folder: Path) -> Result:
    return CliRunner().invoke(main, ["report", str(folder), "--json"])


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*at, key)
        yield from places(inner, (*at, key))


def by_kind(document: Any) -> list[list[tuple[str | int, ...]]]:
    """The places of all values; those that differ only in numbers of entries are together."""
    kinds = defaultdict(list)
    for place in places(document):
        kinds[tuple("*" if isinstance(step, int) else step for step in place)].append(place)
    return list(kinds.values())


def damage(document: Any, kinds: list[list[tuple[str | int, ...]]], random_: random.Random) -> None:
    """Leave out, double or replace one value of the document, of a kind that is drawn first."""
    *way, last = random_.choice(random_.choice(kinds))
    inside: Any = document
    for step in way:
        inside = inside[step]
    match random_.randrange(4):
        case 0:
            del inside[last]
        case 1 if isinstance(inside, list):
            inside.append(inside[last])
        case 2 if isinstance(inside[last], list):
            inside[last] = random_.choice([inside[last][1:], inside[last][::-1], 2 * inside[last]])
        case _:
            inside[last] = random_.choice(WRONG[type(inside[last])])


def recorded(folder: Path, fabric: str) -> tuple[Experiment, str]:
    """A run's result folder, and its observations."""
    made = experiment(folder, fabric=fabric, seeds=2, jobs=2)
    observations = made_up(made) if fabric == "mininet" else fluid.observe(made, Silent())
    (folder / "spec.yaml").write_text(spec.dump(made.spec))
    observations.save(folder / "observations.json")
    return made, observations.model_dump_json()


def assert_told(done: Result, file: Path) -> None:
    """Asserts one sentence about the file, or a report."""
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    if done.exit_code == 0:
        json.loads(done.stdout)
        return
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"paralet: {file} is damaged, or is of another spec or version of paralet, at ")
    assert done.stderr.count("\n") == 1


def statuses_of_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fabric: str, seeds: Iterable[int], most_places: int = 1
) -> Counter[int]:
    """How often `report` ended with each status, by mutations of the observations of one run.

    Each seed damages one to `most_places` places. Asserts that each is told in one sentence, or gives a report.
    """
    made, text = recorded(folder, fabric)
    monkeypatch.setattr(spec, "load", lambda _: made)  # reading the spec and drawing figures take longest
    monkeypatch.setattr(testbed.report, "write", lambda folder, *_: folder / "report.html")
    kinds, file = by_kind(json.loads(text)), folder / "observations.json"
    statuses: Counter[int] = Counter()
    for seed in seeds:
        document, random_ = json.loads(text), random.Random(seed)
        for _ in range(1 + seed % most_places):
            with suppress(LookupError, TypeError):  # the place is gone
                damage(document, kinds, random_)
        file.write_text(json.dumps(document))
        done = report(folder)
        assert_told(done, file)
        statuses[done.exit_code] += 1
    return statuses


@pytest.mark.parametrize("fabric", ["mininet", "fluid"])
def test_damaged_observations_are_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fabric: str
) -> None:
    assert set(statuses_of_damaged(tmp_path, monkeypatch, fabric, range(MUTATIONS))) == {0, 2}


@pytest.mark.parametrize("content", [b"", b"\0\xff", b'{"runs": []}', b'{"runs": [', b"[" * 100_000])
def test_other_files_are_told_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    recorded(tmp_path, "fluid")
    (tmp_path / "observations.json").write_bytes(content)
    done = report(tmp_path)
    assert_told(done, tmp_path / "observations.json")
    assert done.exit_code == 2


def test_observations_of_another_spec_are_told(tmp_path: Path) -> None:
    recorded(tmp_path, "fluid")
    (tmp_path / "spec.yaml").write_text(spec.dump(experiment(tmp_path, fabric="fluid", seeds=3, jobs=2).spec))
    assert "at runs: policy 'ecmp' has no run of seed 3" in report(tmp_path).stderr
