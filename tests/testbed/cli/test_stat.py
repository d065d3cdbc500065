# SPDX-License-Identifier: Apache-2.0
"""`paralet stat`: live counters as tables, JSON and Prometheus text, and the end of the command."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace as replace_flow
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from hostlib import Device, stats
from hostlib.stats import Member, PathClient, Survey
from testbed.cli import main
from testbed.cli.stat_prometheus import HostCollector, exposition
from testbed.cli.stat_tables import Picture
from testbed.live.pinned import PinnedMoments
from testbed.live.totals import Detail
from testbed.provenance import commit, installed_version
from tests.testbed.live.pinned_flows import FLOW, OTHER, report
from tests.testbed.live.snapshots import device, lane
from tests.testbed.live.snapshots import survey as look

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 120.0


PATH_CLIENT = PathClient(True, 97.5, *range(2, 20))


def drawn(*looks: tuple[Survey, float], width: int = 200, height: int | None = None) -> list[str]:
    """The lines drawn after these (survey, time) pairs."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=height is not None, color_system=None)
    picture = Picture(console)
    for survey, now_s in looks:
        picture.take(survey, now_s)
    console.print(picture.draw())
    return out.getvalue().splitlines()


def rows(lines: list[str], heading: str) -> list[dict[str, str]]:
    """The rows of the table with this column, each as {column: cell}."""
    tables = [[cell for cell in re.split(r"\s{2,}", line.strip()) if cell] for line in lines]
    start = next(index for index, cells in enumerate(tables) if heading in cells)
    end = tables.index([], start)
    return [dict(zip(tables[start], cells, strict=True)) for cells in tables[start + 2 : end]]


# -- tables --------------------------------------------------------------------------------------------------------


def test_rates_are_averages_between_two_surveys() -> None:
    before = look(device(lane(0, 1_000), lane(1, 500), time_s=10.0))
    after = look(device(lane(0, 1_000 + 250_000_000), lane(1, 500), lane(2, 125_000_000), time_s=12.0))
    shown = rows(drawn((before, 0.0), (after, 2.0)), "set by")
    assert [row["tx Gbit/s"] for row in shown] == ["1.000", "0.000", "0.500"]  # lane 2 is new
    assert {row["rx Gbit/s"] for row in shown} == {"0.000"}
    assert [row["port"] for row in shown] == ["50000", "50001", "50002"]
    assert {row["RTT us"] for row in shown} == {"123"}
    (total,) = rows(drawn((before, 0.0), (after, 2.0)), "policy")
    assert total["tx Gbit/s"] == "1.500"
    assert total["process"] == "python train.py"


def test_rates_after_an_idle_time_do_not_average_over_it() -> None:
    before, after = look(device(lane(0), time_s=10.0)), look(device(lane(0, 137_500_000), time_s=5000.0))
    (shown,) = rows(drawn((before, 0.0), (after, 1.0)), "set by")
    assert shown["tx Gbit/s"] == "1.000"


def test_the_rate_is_unknown_in_the_first_survey_and_zero_when_idle() -> None:
    idle = look(device(lane(0, 5_000), time_s=10.0))
    assert rows(drawn((idle, 0.0)), "set by")[0]["tx Gbit/s"] == "-"
    assert rows(drawn((idle, 0.0), (idle, 1.0)), "set by")[0]["tx Gbit/s"] == "0.000"


def test_pinned_connections_are_shown_beside_the_lanes_and_without_any() -> None:
    moments = PinnedMoments()
    moments.take([report(FLOW)], 10.0)
    pinned = moments.take([report(replace_flow(FLOW, bytes=1_000_001_000, timeouts=3), others=(OTHER,))], 12.0)
    for survey in (look(), look(device(lane(1)))):
        out = io.StringIO()
        picture = Picture(Console(file=out, width=200, color_system=None))
        picture.take(survey, 12.0, pinned=pinned)
        picture._console.print(picture.draw())
        lines = out.getvalue().splitlines()
        assert "1 pinned connection" in lines[0]
        (row,) = rows(lines, "pinned")
        assert row == {
            "pid": "7",
            "pinned": "socket 3, tcp",
            "to": "10.0.0.2:5",
            "port": "50001",
            "tx Gbit/s": "4.000",
            "bytes": "1,000,001,000",
            "state": "hangs",
        }
        assert "1 connection without a planned port: paralet pin --check PID tells why" in lines


def test_pinned_connections_that_hang_and_the_busiest_ones_are_shown_when_not_all_fit() -> None:
    moments = PinnedMoments()
    flows = [replace_flow(FLOW, port=50000 + number, bytes=number) for number in range(40)]
    moments.take([], 0.0)
    pinned = moments.take([report(*flows[:-1], replace_flow(flows[-1], bytes=0, timeouts=9))], 1.0)
    out = io.StringIO()
    picture = Picture(Console(file=out, width=120, height=24, force_terminal=True, color_system=None))
    picture.take(look(), 1.0, pinned=pinned)
    picture._console.print(picture.draw())
    lines = out.getvalue().splitlines()
    shown = [row["port"] for row in rows(lines, "pinned")]
    assert shown[-1] == "50039"
    assert shown[:-1] == [str(50038 - number) for number in range(len(shown) - 1)][::-1]
    assert f"and {40 - len(shown)} quieter pinned connections" in out.getvalue()
    assert len(lines) <= 24


def test_the_members_of_a_fused_device_are_named() -> None:
    fused = replace(device(lane(0)), members=(Member("eth0", "10.0.0.1", 4791), Member("eth1", "10.1.0.1", 40_000)))
    (row,) = rows(drawn((look(fused), 0.0)), "policy")
    assert row["device"] == "eth0 10.0.0.1 + eth1 10.1.0.1:40000"


def test_devices_and_lanes_are_sorted() -> None:
    lanes = [lane(1, peer="10.0.0.10"), lane(0, peer="10.0.0.10"), lane(1, peer="10.0.0.9"), lane(0, peer="10.0.0.9")]
    lines = drawn((look(device(*lanes), device(lane(0), address="10.0.0.3", udp_port=40_000)), 0.0))
    shown = rows(lines, "set by")
    assert [(row["#"], row["peer"], row["lane"]) for row in shown] == [
        ("1", "10.0.0.9", "0"),
        ("1", "10.0.0.9", "1"),
        ("1", "10.0.0.10", "0"),
        ("1", "10.0.0.10", "1"),
        ("2", "10.0.0.2", "0"),
    ]
    assert [row["device"] for row in rows(lines, "policy")] == ["eth0 10.0.0.1", "eth0 10.0.0.3:40000"]


def test_devices_with_policy_controller_show_their_path_client() -> None:
    away = replace(PATH_CLIENT, connected=False, since_s=99.0, connections=0)
    plain, one, other = (
        device(lane(0), address=f"10.0.0.{number}", path_client=path_client)
        for number, path_client in ((1, None), (2, PATH_CLIENT), (3, away))
    )
    shown = rows(drawn((look(plain, one, other), 100.0)), "path service")
    assert [(row["#"], row["path service"], row["for"], row["reconnects"]) for row in shown] == [
        ("2", "connected", "2.5 s", "1"),
        ("3", "away", "1.0 s", "0"),
    ]
    counted = ("elephants", "assigned", "on ECMP first", "over", "pushes", "stale", "refused", "reverted")
    assert [shown[0][column] for column in counted] == ["3", "4", "5", "6", "9", "10", "11", "13"]
    assert [shown[0][column] for column in ("probes", "answered", "limited", "moved")] == ["15", "16", "17", "19"]
    assert "path service" not in "\n".join(drawn((look(plain), 100.0)))


@pytest.mark.parametrize("path_client", [None, PATH_CLIENT])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 18), (120, 60), (250, 19)])
def test_tables_fit_the_terminal_and_keep_the_busiest_lanes(
    width: int, height: int, path_client: PathClient | None
) -> None:
    def at(turn: int) -> Survey:
        lanes = [lane(number, turn * number * 1_000_000) for number in range(64)]
        snapshot = device(*lanes, time_s=turn, path_client=path_client)
        return look(snapshot, device(lane(0), address="10.0.0.7", time_s=turn))

    lines = drawn((at(0), 0.0), (at(1), 1.0), width=width, height=height)
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
    shown = rows(lines, "set by")
    assert int(shown[-1]["lane"]) == 63
    assert [int(row["lane"]) for row in shown] == sorted(int(row["lane"]) for row in shown)
    assert {"RTT us", "resent", "port"} <= shown[0].keys()
    assert f"and {65 - len(shown)} quieter lanes" in lines[-1]


# -- Prometheus ----------------------------------------------------------------------------------------------------


def series(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of an exposition by metric, and by the values of their labels: user, NIC, peer, lane, others."""
    order = ("uid", "device", "peer", "lane")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            names = [*(name for name in order if name in sample.labels), *sorted(sample.labels.keys() - set(order))]
            labels = tuple(sample.labels[name] for name in names)
            assert labels not in values, "no two time series have the same labels"
            assert "pid" not in names
            values[labels] = sample.value
    return found


NIC = ("1000", "10.0.0.1")


def test_counters_of_lanes_are_added_up_by_nic() -> None:
    """Devices of one NIC are one: those of another port, and of other processes."""
    busy = lane(3, 2**40, rtt_s=0.25, min_rtt_s=0.1, moves=7)
    survey = look(
        device(lane(0, 1), busy, line_rate_bps=25 * 10**9),
        device(lane(0, 2, peer="10.0.0.3", rtt_s=0.5, min_rtt_s=0.2), udp_port=40_000, guid="b"),
    )
    second = look(device(lane(0, 4), time_s=1.0), pid=43)
    values = series(exposition(replace(survey, processes=(*survey.processes, *second.processes))))
    assert values["paralet_device_tx_bytes_total"] == {NIC: 2**40 + 7}
    assert values["paralet_device_moves_total"] == {NIC: 7}
    assert {f"paralet_device_{name}_total" for name in stats.COUNTERS["lane"]} <= values.keys()
    assert values["paralet_messages_send_bytes_total"] == {NIC: 3 * device().messages.send_bytes}
    assert values["paralet_device_discards_total"] == {
        (*NIC, reason): 3 * number for reason, number in asdict(device().discards).items()
    }
    assert values["paralet_device_line_rate_bps"] == {NIC: 25e9}
    assert (values["paralet_device_connections"], values["paralet_device_lanes"]) == ({NIC: 9}, {NIC: 4})
    assert values["paralet_device_rtt_seconds"] == {NIC: 0.5}
    (ratio,) = values["paralet_device_rtt_ratio"].values()
    assert ratio == pytest.approx(0.25 / 123e-6), "of lanes to one peer"
    assert not [name for name in values if name.startswith(("paralet_lane_", "paralet_peer_"))]


def test_a_nic_without_lanes_has_sums_of_zero() -> None:
    """Prometheus misses what a series begins with."""
    values = series(exposition(look(device())))
    assert {values[f"paralet_device_{name}_total"][NIC] for name in stats.COUNTERS["lane"]} == {0}


def test_peers_and_lanes_are_shown_on_request() -> None:
    busy = lane(3, 2**40, rtt_s=0.25, moves=7)
    survey = look(device(lane(0, 1), busy, lane(0, 2, peer="10.0.0.3")))
    by_peer = series(exposition(survey, "peer"))
    assert by_peer["paralet_device_tx_bytes_total"] == {NIC: 2**40 + 3}
    assert by_peer["paralet_peer_tx_bytes_total"] == {(*NIC, "10.0.0.2"): 2**40 + 1, (*NIC, "10.0.0.3"): 2}
    assert by_peer["paralet_peer_rtt_seconds"][*NIC, "10.0.0.2"] == 0.25
    assert not [name for name in by_peer if name.startswith("paralet_lane_")]
    by_lane = series(exposition(survey, "lane"))
    assert by_peer.keys() <= by_lane.keys()
    own = (*NIC, "10.0.0.2", "3")
    assert {f"paralet_lane_{name}_total" for name in stats.COUNTERS["lane"]} <= by_lane.keys()
    assert (by_lane["paralet_lane_tx_bytes_total"][own], by_lane["paralet_lane_moves_total"][own]) == (2**40, 7)
    assert (by_lane["paralet_lane_rtt_seconds"][own], by_lane["paralet_lane_window_packets"][own]) == (0.25, 2.5)
    assert by_lane["paralet_lane_port"][own] == 50_003


def test_the_number_of_series_depends_on_nics_alone() -> None:
    def number(peers: int, lanes: int, nics: int, detail: Detail = "device") -> int:
        many = [
            device(
                *(lane(n, peer=f"10.1.0.{peer}") for peer in range(peers) for n in range(lanes)),
                address=f"10.0.0.{nic}",
            )
            for nic in range(nics)
        ]
        return sum(map(len, series(exposition(look(*many), detail)).values()))

    few = number(1, 1, 1)
    assert few == number(100, 8, 1)
    assert (one := number(2, 2, 2) - few) < 60, "of each NIC"
    assert number(2, 2, 8) - few == 7 * one
    assert number(100, 8, 1, "peer") - few < 100 * 25
    assert number(100, 8, 1, "lane") - few < 100 * 25 + 800 * 25


def test_sums_never_decrease_while_the_nic_is_used() -> None:
    """Prometheus would take a decrease for a restart, and count what is left once more."""
    looks = iter([
        look(device(lane(0, 10), lane(1, 5))),
        look(device(lane(0, 11))),  # a lane has gone
        look(device(lane(0, 3), lane(1, 1))),  # and others have come in their places
        look(device(lane(0, 4), guid="another"), pid=43),  # of another process
        look(),
        look(device(lane(0, 2))),
    ])  # fmt: skip
    registry = CollectorRegistry()
    registry.register(HostCollector(lambda: next(looks), "peer"))
    sums = []
    for _ in range(6):
        values = series(generate_latest(registry).decode())
        sums.append(values.get("paralet_device_tx_bytes_total", {}).get(NIC))
        assert values.get("paralet_peer_tx_bytes_total", {}).get((*NIC, "10.0.0.2")) == sums[-1]
    assert sums == [15, 16, 20, 24, None, 2]


def test_info_names_version_back_end_job_and_rank() -> None:
    survey = look(device(lane(0), version="1.2.3", back_end="verbs"))
    ranks = [replace(process, job="bert", rank=rank) for process in survey.processes for rank in ("0", "1")]
    text = exposition(replace(survey, processes=tuple(ranks)))
    (info,) = (family for family in text_string_to_metric_families(text) if family.name == "paralet_device_info")
    for number, sample in enumerate(info.samples):
        assert (
            sample.labels.items()
            >= {
                "version": "1.2.3",
                "back_end": "verbs",
                "job": "bert",
                "rank": str(number),
                "interface": "eth0",
                "policy": "ecmp",
            }.items()
        )
    assert len(info.samples) == 2
    (exporter,) = series(text)["paralet_exporter_info"]
    assert set(exporter) == {installed_version(), commit()}


def test_no_two_time_series_have_the_same_labels() -> None:
    """Whatever processes publish: Prometheus would refuse all of them."""
    twin = device(lane(0), lane(0, 7), lane(0))
    members = (Member("eth0", "10.0.0.1", 4791), Member("eth0", "10.0.0.1", 4791))
    survey = look(twin, twin, replace(twin, guid="another", members=members), replace(twin, interface="eth1"))
    survey = replace(survey, processes=survey.processes * 2, left_out=("a sentence",))
    values = series(exposition(survey, "lane"))
    assert len(values["paralet_device_info"]) == 2
    assert values["paralet_stat_left_out"] == {(): 1}


def test_other_users_devices_name_their_user() -> None:
    survey = look(device(lane(0)))
    (row,) = rows(drawn((survey, 0.0)), "policy")
    assert row["uid"] == "1000"
    own = replace(survey, processes=tuple(replace(process, uid=os.getuid()) for process in survey.processes))
    (row,) = rows(drawn((own, 0.0)), "policy")
    assert "uid" not in row


def test_the_exposition_has_every_counter_of_the_path_client() -> None:
    text = exposition(look(device(path_client=PATH_CLIENT), device(address="10.0.0.2")))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for field in PathClient.__slots__[2:]:
        (sample,) = families[f"paralet_path_client_{field}"].samples
        assert (sample.labels["device"], sample.value) == ("10.0.0.1", getattr(PATH_CLIENT, field))
    assert [sample.value for sample in families["paralet_path_client_connected"].samples] == [1]
    (age,) = families["paralet_path_client_state_age_seconds"].samples
    assert 0 <= age.value <= time.monotonic()


def test_every_metric_family_has_a_description() -> None:
    text = exposition(look(device(lane(0), path_client=PATH_CLIENT)))
    comments = Counter(tuple(line.split()[1:3]) for line in text.splitlines() if line.startswith("#"))
    names = {re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    assert names
    for name in names:
        assert comments["HELP", name] == comments["TYPE", name] == 1
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert all(kind == ("counter" if name.endswith("_total") else "gauge") for name, kind in types.items())


# -- the command ---------------------------------------------------------------------------------------------------


def paralet(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["stat", *(str(argument) for argument in arguments)])


@pytest.fixture
def own_device() -> Iterator[int]:
    """The pid of this process, which has one open device with published counters."""
    with Device("127.0.0.1", lanes=3):
        deadline = time.monotonic() + TIMEOUT_S
        while not stats.survey([os.getpid()]).processes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield os.getpid()


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> list[Survey]:
    """The list of surveys that are returned one after another. The last one repeats."""
    surveys: list[Survey] = []
    monkeypatch.setattr(stats, "survey", lambda pids: surveys.pop(0) if len(surveys) > 1 else surveys[0])
    return surveys


NOTHING = Survey((), (), (), ())


def test_json_is_one_object(own_device: int) -> None:
    done = paralet(own_device, "--json")
    assert done.exit_code == 0, done.output
    (process,) = json.loads(done.stdout)["processes"]
    assert process["pid"] == own_device
    (seen,) = stats.survey([own_device]).processes
    assert process["devices"] == json.loads(json.dumps([asdict(device) for device in seen.devices]))
    assert process["devices"][0]["m"] == 3


def test_json_with_an_interval_is_one_line_per_survey(own_device: int) -> None:
    done = paralet(own_device, "--json", "--interval", 0.1, "--count", 3)
    times = [json.loads(line)["time"] for line in done.stdout.splitlines()]
    assert len(times) == 3
    assert times == sorted(times)


def test_prometheus_text_parses(own_device: int) -> None:
    done = paralet(own_device, "--prometheus")
    assert done.exit_code == 0, done.output
    families = {family.name: family for family in text_string_to_metric_families(done.stdout)}
    (sample,) = families["paralet_device_info"].samples
    assert sample.labels["interface"] == "lo"
    assert (sample.labels["version"], sample.labels["back_end"]) == (installed_version(), "soft")


def test_prometheus_is_served_until_interrupted(own_device: int) -> None:
    """Only the test's own device: those of tests beside it may have thousands of lanes."""
    command = [sys.executable, "-m", "testbed", "stat", "--listen", "127.0.0.1:0", str(own_device)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.fullmatch(
                r"Serving (http://127\.0\.0\.1:\d+/metrics) until Ctrl-C\.\n", server.stdout.readline()
            )
            assert address is not None
            for host in ("evil.example", "evil.example:9464"):  # a name that somebody's DNS points here
                request = urllib.request.Request(address[1], headers={"Host": host})
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    urllib.request.urlopen(request, timeout=TIMEOUT_S)
            for _ in range(2):  # a survey for each request
                with urllib.request.urlopen(address[1], timeout=TIMEOUT_S) as page:
                    families = {family.name: family for family in text_string_to_metric_families(page.read().decode())}
                (sample,) = families["paralet_device_info"].samples
                assert sample.labels["device"] == "127.0.0.1"
        finally:
            server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=TIMEOUT_S)
        assert (server.returncode, said.strip()) == (130, "paralet: interrupted")


def test_an_address_in_use_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = paralet("--listen", f"127.0.0.1:{port}")
    assert done.exit_code == 1
    assert done.stderr == f"paralet: --listen 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("count", [None, 1, 3])
def test_without_a_terminal_tables_are_printed_one_after_another(own_device: int, count: int | None) -> None:
    done = paralet(own_device, "--interval", 0.1, *(() if count is None else ("--count", count)))
    assert done.exit_code == 0, done.output
    assert done.stdout.count("1 device, 0 lanes") == (count or 1)


def test_it_ends_when_all_processes_have_ended(shows: list[Survey]) -> None:
    shows += [look(device(lane(0))), look(device(lane(0))), NOTHING]
    done = paralet("--json", "--interval", 0.1)
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 2
    shows[:] = [look(device(lane(0))), NOTHING]
    done = paralet("--interval", 0.1)
    assert done.exit_code == 0
    assert "1 device, 1 lane," in done.stdout


@pytest.mark.parametrize(
    ("arguments", "found", "sentence"),
    [
        ((), NOTHING, "runs paralet: start a program that opens a hostlib.Device"),
        ((), replace(NOTHING, unreadable=("process 7: the snapshot has version 2",)), "has version 2"),
        ((7,), NOTHING, "process 7 has no paralet device open"),
        ((7,), replace(NOTHING, missing=(7,)), "process 7 does not exist"),
        ((7,), replace(NOTHING, forbidden=(7,)), "sudo paralet stat 7"),
        ((42, 7), replace(look(device()), missing=(7,)), "process 7 does not exist"),
    ],
)
def test_nothing_to_show_is_a_one_line_error(
    shows: list[Survey], arguments: tuple[int, ...], found: Survey, sentence: str
) -> None:
    shows.append(found)
    done = paralet(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--json", "--prometheus"), "either --json or --prometheus"),
        (("--by", "peer"), "--by needs --prometheus or --listen"),
        (("--prometheus", "--interval", 1), "--prometheus prints once"),
        (("--listen", "127.0.0.1:9464", "--json"), "--listen serves until Ctrl-C"),
        (("--listen", "9464"), "--listen 9464: write an IPv4 address and a port, as 127.0.0.1:9464"),
        (("--interval", 0), "Invalid value for '--interval'"),
        (("--count", 0), "Invalid value for '--count'"),
        (("someone",), "someone is not a process id; dumps are for --why"),
    ],
)
def test_usage_errors(arguments: tuple[object, ...], sentence: str) -> None:
    done = paralet(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


ARGV = (sys.executable, "-c", "from testbed.cli import main; main()", "stat")


def test_a_terminal_is_updated_until_ctrl_c(own_device: int) -> None:
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        [*ARGV, str(own_device), "--interval", "0.1"],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(theirs)
        output = b""
        while output.count(b"1 device, 0 lanes") < 4:
            output += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    output += drain(terminal)
    assert process.returncode == 130
    assert errors.strip() == b"paralet: interrupted"
    assert output.count(b"\x1b[?1049h") == output.count(b"\x1b[?1049l") == 1  # its own screen, and back
    assert b"1 device, 0 lanes" in output.rpartition(b"\x1b[?1049l")[2]  # the last picture stays


def drain(terminal: int) -> bytes:
    output = b""
    try:
        while chunk := os.read(terminal, 65536):
            output += chunk
    except OSError:  # what a pseudoterminal says at its end
        pass
    os.close(terminal)
    return output


def test_a_closed_pipe_ends_the_command_silently(own_device: int) -> None:
    with subprocess.Popen(
        [*ARGV, str(own_device), "--json", "--interval", "0.1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["processes"]
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr.read() == b""
