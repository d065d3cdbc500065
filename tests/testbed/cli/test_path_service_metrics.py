# SPDX-License-Identifier: Apache-2.0
"""`paralet path-service run --metrics`: what is exported, in both formats, from a service that runs."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from sdn.path_service.availability.state import State
from sdn.path_service.observation import Figures, WorstLinks
from testbed.cli import main
from testbed.cli.path_service_metrics import PathServiceCollector

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 60
TOPOLOGY = "leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}\n"
FIGURES = Figures(
    topology="small",
    planner="optimal",
    hosts=2,
    connections=3,
    elephants=5,
    fixed_elephants=8,
    commodities=4,
    dead_links=1,
    drained_links=4,
    pinned_pairs=2,
    counts={"announced": 9, "moved": 6, "released": 4},
    refused={"token": 7},
    latency=((0.001, 2), (float("inf"), 9)),
    latency_sum_s=0.5,
    worst=WorstLinks(2.5, 0.75),
    availability=None,
)


def values(collector: PathServiceCollector) -> dict[str, float]:
    """The value of each series, by its name and labels."""
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def test_every_figure_is_a_metric() -> None:
    found = values(PathServiceCollector(lambda: FIGURES, "1.2.3", "abc"))
    assert found == {
        "paralet_path_service_answers": 1,
        "paralet_path_service_info 1.2.3 abc small optimal": 1,
        "paralet_path_service_hosts": 2,
        "paralet_path_service_connections": 3,
        "paralet_path_service_elephants": 5,
        "paralet_path_service_fixed_elephants": 8,
        "paralet_path_service_commodities": 4,
        "paralet_path_service_dead_links": 1,
        "paralet_path_service_drained_links": 4,
        "paralet_path_service_pinned_pairs": 2,
        "paralet_path_service_worst_link_commodities": 2.5,
        "paralet_path_service_worst_link_measured_ratio": 0.75,
        "paralet_path_service_announcements_total": 9,
        "paralet_path_service_moves_total": 6,
        "paralet_path_service_events_total announced": 9,
        "paralet_path_service_events_total moved": 6,
        "paralet_path_service_events_total released": 4,
        "paralet_path_service_refusals_total token": 7,
        "paralet_path_service_announcement_seconds_bucket 0.001": 2,
        "paralet_path_service_announcement_seconds_bucket +Inf": 9,
        "paralet_path_service_announcement_seconds_count": 9,
        "paralet_path_service_announcement_seconds_sum": 0.5,
    }


def test_one_of_two_services_has_metrics_of_both() -> None:
    state = State("leading", 8, "10.0.0.2:4792", True, 0.25, 1, 3, 0)
    alone = values(PathServiceCollector(lambda: FIGURES, "1.2.3", "abc"))
    found = values(PathServiceCollector(lambda: replace(FIGURES, availability=state), "1.2.3", "abc"))
    assert {name.removeprefix("paralet_path_service_"): found[name] for name in found.keys() - alone.keys()} == {
        "leads": 1, "generation": 8, "followed": 1, "lag_seconds": 0.25, "lag_changes": 1, "takeovers_total": 3,
    }  # fmt: skip


def test_a_service_without_time_says_so() -> None:
    def look() -> Figures:
        raise TimeoutError

    assert values(PathServiceCollector(look, "1.2.3", "abc")) == {"paralet_path_service_answers": 0}


def read(url: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as page:
        text: str = page.read().decode()
    return text


def test_metrics_of_a_service_that_runs(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(TOPOLOGY)
    token = tmp_path / "token"
    argv = [sys.executable, "-m", "testbed", "path-service", "run", "--topology", str(tmp_path / "fabric.yaml")]
    argv += ["--token-file", str(token), "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--json"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            ready = json.loads(service.stdout.readline())
            url, (address, _, port) = ready["metrics"], ready["listen"].partition(":")
            assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/metrics", url)
            (before,) = (f for f in prometheus(read(url)) if f.name == "paralet_path_service_hosts")
            assert before.samples[0].value == 0
            hello = {"version": 1, "token": token.read_text().strip(), "device": "10.0.0.1", "instance": "0" * 16}
            elephant = {"type": "announce", "id": 1, "peer": "10.0.1.1", "bytes": 9}
            with socket.create_connection((address, int(port)), timeout=TIMEOUT_S) as host, host.makefile("rb") as said:
                for message in ({"type": "hello", "lanes": 4, **hello}, elephant):
                    host.sendall(json.dumps(message).encode() + b"\n")
                assert [json.loads(said.readline())["type"] for _ in range(2)] == ["welcome", "assign"]
                text = read(url, "application/openmetrics-text")
            assert text.endswith("# EOF\n")
            families = {family.name: family for family in openmetrics(text)}
            assert families["paralet_path_service_hosts"].samples[0].value == 1
            assert families["paralet_path_service_worst_link_commodities"].samples[0].value == 1
            (count,) = (
                sample.value
                for sample in families["paralet_path_service_announcement_seconds"].samples
                if sample.name.endswith("_count")
            )
            assert count == families["paralet_path_service_announcements"].samples[0].value == 1
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "evil.example"}), timeout=TIMEOUT_S)
        finally:
            service.send_signal(signal.SIGTERM)
        assert service.wait(TIMEOUT_S) == 0


def test_an_address_in_use_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text(TOPOLOGY)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ["--token-file", str(tmp_path / "token"), "--listen", "127.0.0.1:0", "--metrics", at]
        done = CliRunner().invoke(main, ["path-service", "run", "--topology", str(tmp_path / "fabric.yaml"), *options])
    assert (done.exit_code, done.stderr) == (1, f"paralet: --metrics {at}: Address already in use\n")
    assert not (tmp_path / "token.sock").exists()
