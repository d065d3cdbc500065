# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboards and Prometheus' alert rules use metrics that exist, and the rules fire when they should."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from hostlib import Device
from sdn.path_service.availability.state import State
from testbed.cli.path_service_metrics import PathServiceCollector
from testbed.cli.stat_prometheus import exposition
from tests.testbed.cli.test_path_service_metrics import FIGURES
from tests.testbed.cli.test_stat import PATH_CLIENT
from tests.testbed.live.snapshots import device, lane, survey

FOLDER = Path(__file__).parents[3] / "dashboards"
DASHBOARDS = sorted(FOLDER.glob("*.json"))
RULES = sorted(FOLDER.glob("*.rules.yml"))
FETCHED = Path(__file__).parents[3] / "build" / "prometheus"
PROMTOOL = shutil.which("promtool", path=f"{FETCHED}:{os.environ['PATH']}")
PROMETHEUS = shutil.which("prometheus", path=f"{FETCHED}:{os.environ['PATH']}")


def exported() -> dict[str, set[str]]:
    """The labels of every exported metric, with those that Prometheus adds."""
    snapshot = device(lane(0), path_client=PATH_CLIENT, line_rate_bps=10**9)
    labels: dict[str, set[str]] = {}
    registry = CollectorRegistry()
    figures = replace(FIGURES, availability=State("leading", 8, "10.0.0.2:4792", True, 0.25, 1, 3, 0))
    registry.register(PathServiceCollector(lambda: figures, "1.2.3", "abc"))
    for line in (exposition(survey(snapshot), "lane") + generate_latest(registry).decode()).splitlines():
        if not line.startswith("#"):
            name, inside = re.fullmatch(r"(\w+)(?:\{(.*)\})? \S+", line).groups("")  # type: ignore[union-attr]
            labels[name] = {*re.findall(r'(\w+)="', inside), "instance", "job"}
    return labels


def expressions() -> list[str]:
    found: list[str] = []
    for file in DASHBOARDS:
        dashboard: dict[str, Any] = json.loads(file.read_text())
        variables = (variable for variable in dashboard["templating"]["list"] if variable["type"] == "query")
        found += [variable["query"]["query"] for variable in variables]
        found += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for file in RULES:
        found += [rule["expr"] for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    return found


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_exists(expression: str) -> None:
    labels = exported()
    metrics = set(re.findall(r"\bparalet_\w+", expression))
    assert metrics
    assert metrics <= labels.keys()
    grouped = {name for names in re.findall(r"by \(([^)]*)\)", expression) for name in names.split(", ")}
    selected = set(re.findall(r'(\w+)=~?"', expression))
    assert all(grouped | selected <= labels[metric] for metric in metrics)


def test_each_figure_of_services_that_share_hosts_has_a_panel() -> None:
    shown = " ".join(expressions())
    figures = "leads", "generation", "followed", "lag_seconds", "lag_changes", "takeovers_total"
    assert [name for name in figures if f"paralet_path_service_{name}{{" not in shown] == []


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_have_numbers_and_places_of_their_own(file: Path) -> None:
    panels = json.loads(file.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(covered)) == len(covered)
    assert max(x for x, _ in covered) == 23  # Grafana's grid has 24 columns


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool is here: `make prometheus` fetches it")
@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_rules_fire_when_they_should(file: Path) -> None:
    tests = file.with_suffix(".test.yml").name
    subprocess.run([str(PROMTOOL), "test", "rules", tests], cwd=FOLDER, check=True, timeout=100)
    named = {
        case["alertname"]
        for test in yaml.safe_load((FOLDER / tests).read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert named == {rule["alert"] for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]}


def get(url: str) -> Any:
    """The JSON at an address of this machine, also that of a refusal."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def ready(address: str) -> bool:
    """Whether a Prometheus at this address answers queries."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:  # nobody listens, or it is still starting
        return False


def for_prometheus(expression: str) -> str:
    """An expression of the dashboard or of the rules, with what Grafana puts in place of its variables."""
    variables = {"$__rate_interval": "1m", "$__range": "1h", "$__interval": "30s"}
    for name, value in variables.items():
        expression = expression.replace(name, value)
    query = re.fullmatch(r"label_values\((.*), ?\w+\)", expression)  # Grafana's own function
    return re.sub(r"\$\w+", ".*", query[1] if query else expression)


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus is here: `make prometheus` fetches it")
def test_a_real_prometheus_scrapes_the_exporter_and_takes_every_expression(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "testbed", "stat", "--listen", "127.0.0.1:0", str(os.getpid())]
    with (
        Device("127.0.0.1") as sender,
        Device("127.0.0.2") as receiver,
        subprocess.Popen(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True) as exporter,
    ):
        try:
            assert exporter.stdout is not None
            scraped = re.search(r"127\.0\.0\.1:\d+", exporter.stdout.readline())
            assert scraped is not None
            listener = receiver.listen()
            with (
                sender.connect(listener.handle, 60),
                listener.accept(60),
                prometheus(tmp_path, scraped[0]) as api,
            ):
                query = f"{api}/query?query=paralet_device_tx_packets_total"
                while not (metrics := get(query))["data"]["result"]:
                    time.sleep(0.2)  # the test's time limit ends it
                (series,) = {series["metric"]["instance"] for series in metrics["data"]["result"]}
                assert series == scraped[0]
                rules = [rule for group in get(f"{api}/rules")["data"]["groups"] for rule in group["rules"]]
                assert {rule["name"] for rule in rules} >= {"ParaletHotPath", "ParaletPathServiceSlow"}
                for expression in expressions():
                    asked = urllib.parse.urlencode({"query": for_prometheus(expression)})
                    answer = get(f"{api}/query?{asked}")
                    assert answer["status"] == "success", (expression, answer)
        finally:
            exporter.kill()


@contextmanager
def prometheus(folder: Path, scraped: str) -> Iterator[str]:
    """The address of the interface of a Prometheus that scrapes an exporter and has our rules."""
    configuration = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "1s"},  # also the time that a scrape may take
        "rule_files": [str(file) for file in RULES],
        "scrape_configs": [{"job_name": "paralet", "static_configs": [{"targets": [scraped]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = [str(PROMETHEUS), *options, f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=folder, stderr=log) as server:
        try:
            while not ready(address):
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.1)
            yield f"http://{address}/api/v1"
        finally:
            server.kill()
