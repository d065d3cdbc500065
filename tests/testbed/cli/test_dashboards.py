# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard and Prometheus' alert rules use metrics that exist, and the rules fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostlib.stats import Process
from testbed.cli.stat_prometheus import exposition
from tests.testbed.cli.test_stat import PATH_CLIENT
from tests.testbed.live.snapshots import device, lane

FOLDER = Path(__file__).parents[3] / "dashboards"
PROMTOOL = shutil.which("promtool")


def exported() -> dict[str, set[str]]:
    """The labels of every exported metric, with those that Prometheus adds."""
    one = device(lane(0), path_client=PATH_CLIENT, line_rate_bps=10**9)
    labels: dict[str, set[str]] = {}
    for line in exposition([Process(42, "train", (one,))]).splitlines():
        if not line.startswith("#"):
            name, inside = re.fullmatch(r"(\w+)\{(.*)\} \S+", line).groups()  # type: ignore[union-attr]
            labels[name] = {*re.findall(r'(\w+)="', inside), "instance", "job"}
    return labels


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads((FOLDER / "paralet.json").read_text())
    rules = yaml.safe_load((FOLDER / "paralet.rules.yml").read_text())
    queries = [
        variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"
    ]
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*queries, *panels, *(rule["expr"] for group in rules["groups"] for rule in group["rules"])]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_exists(expression: str) -> None:
    labels = exported()
    metrics = set(re.findall(r"\bparalet_\w+", expression))
    assert metrics
    assert metrics <= labels.keys()
    grouped = {name for names in re.findall(r"by \(([^)]*)\)", expression) for name in names.split(", ")}
    selected = set(re.findall(r'(\w+)=~?"', expression))
    assert all(grouped | selected <= labels[metric] for metric in metrics)


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = json.loads((FOLDER / "paralet.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(covered)) == len(covered)
    assert max(x for x, _ in covered) == 23  # Grafana's grid has 24 columns


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool is installed (Debian's package prometheus has it)")
def test_rules_fire_when_they_should() -> None:
    subprocess.run([str(PROMTOOL), "test", "rules", "paralet.rules.test.yml"], cwd=FOLDER, check=True, timeout=100)
