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
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from hostlib import Device, stats
from hostlib.stats import LaneSnapshot, Member, PathClient, Survey
from testbed.cli import main
from testbed.cli.stat_prometheus import exposition
from testbed.cli.stat_tables import Picture
from tests.testbed.live.snapshots import device, lane
from tests.testbed.live.snapshots import survey as look

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 120.0


PATH_CLIENT = PathClient(True, 97.5, *range(2, 15))


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


def test_the_exposition_has_every_counter_of_every_lane() -> None:
    busy = lane(3, 2**40 + 1, rtt_s=0.25, moves=7)
    survey = look(
        device(lane(0), busy, line_rate_bps=25 * 10**9),
        device(lane(0), replace(lane(0), qpn=7), address="10.0.0.1", udp_port=40_000, guid="b"),
    )
    text = exposition(survey)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert max(Counter((sample.name, *sorted(sample.labels.items())) for sample in samples).values()) == 1
    labels = {
        "uid": "1000",
        "pid": "42",
        "device": "10.0.0.1:4791",
        "peer": "10.0.0.2",
        "lane": "3",
        "qpn": "103",
        "port": "50003",
        "method": "socket",
    }
    values = {sample.name: sample.value for sample in samples if sample.labels == labels}
    counts = {name for name in LaneSnapshot.__slots__ if isinstance(getattr(busy, name), int)}
    counts -= {"lane", "member", "qpn", "port", "unfinished", "outstanding_bytes", "waiting_since_s"}
    assert {f"paralet_lane_{name}_total" for name in counts - {"min_rtt_s"}} <= values.keys()
    assert values["paralet_lane_tx_bytes_total"] == 2**40 + 1
    assert values["paralet_lane_moves_total"] == 7
    assert values["paralet_lane_rtt_seconds"] == 0.25
    assert values["paralet_lane_window_packets"] == 2.5
    of_device = [sample for sample in samples if sample.labels.get("device") == "10.0.0.1:4791"]
    assert {s.labels["reason"]: s.value for s in of_device if s.name == "paralet_device_discards_total"} == asdict(
        device().discards
    )
    assert [s.value for s in of_device if s.name == "paralet_device_line_rate_bps"] == [25e9]
    assert [s.value for s in of_device if s.name == "paralet_messages_send_bytes_total"] == [2]


def test_no_two_time_series_have_the_same_labels() -> None:
    twin = device(lane(0), lane(0, 7), lane(0))
    members = (Member("eth0", "10.0.0.1", 4791), Member("eth0", "10.0.0.1", 4791))
    survey = look(twin, twin, replace(twin, guid="another", members=members), replace(twin, interface="eth1"))
    survey = replace(survey, processes=survey.processes * 2, left_out=("a sentence",))
    text = exposition(survey)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert max(Counter((sample.name, *sorted(sample.labels.items())) for sample in samples).values()) == 1
    seen = {sample.labels["device"] for sample in samples if sample.name == "paralet_device_info"}
    assert seen == {"10.0.0.1:4791#10.0.0.1", "10.0.0.1:4791#another"}
    assert [sample.value for sample in samples if sample.name == "paralet_stat_left_out"] == [1]


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
        assert (sample.labels["device"], sample.value) == ("10.0.0.1:4791", getattr(PATH_CLIENT, field))
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
    assert sample.labels["pid"] == str(own_device)
    assert sample.labels["interface"] == "lo"


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
                pids = {sample.labels["pid"] for sample in families["paralet_device_info"].samples}
                assert pids == {str(own_device)}
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
