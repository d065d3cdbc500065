# SPDX-License-Identifier: Apache-2.0
"""The command line: its output, and its errors for invalid requests."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import pytest
from click.testing import CliRunner, Result

import emul
import nccl_net_plugin
from emul import Finding, guest, rxe, sandbox
from emul.routed import requirements
from netmodel.printable import printable
from testbed import bench
from testbed.bench import transport
from testbed.bench.frame import Measurement, result
from testbed.cli import extras, main
from testbed.errors import TestbedError
from testbed.research.papers import PAPERS
from testbed.research.papers.findings import Findings
from tests.testbed.experiments import experiment, write_spec
from tests.testbed.run.fake_fabric import made_up

ROOT = Path(__file__).parents[3]
READY = [Finding("root", True, "running as root", ""), Finding("Open vSwitch", True, "3.1", "")]


def paralet(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assert_refused(done: Result, sentence: str, status: int = 2) -> None:
    """Asserts that standard output is empty and standard error has one line with `sentence`."""
    assert done.exit_code == status, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("paralet: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr


@pytest.fixture
def ready_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emul, "probe", lambda: READY)


@pytest.fixture
def sandboxed(monkeypatch: pytest.MonkeyPatch, ready_machine: None) -> list[int]:
    """Replaces the runner: it writes made-up observations and exits with the status in the returned list."""
    ends = [0]

    def run(argv: Sequence[str], *, stdin: IO[bytes], **_: Any) -> int:
        options = dict(zip(argv[3::2], argv[4::2], strict=True))
        from testbed.spec import load

        assert options["--spec"] == "/dev/stdin"
        made_up(load(Path(f"/proc/self/fd/{stdin.fileno()}"))).save(Path(options["--out"]))
        return ends[0]

    monkeypatch.setattr(sandbox, "run", run)
    return ends


def commands(group: click.Command = main) -> list[list[str]]:
    assert isinstance(group, click.Group)
    return [[], *([name] for name in group.list_commands(click.Context(group)))]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words) or "paralet")
def test_help_ends_with_an_example(words: list[str]) -> None:
    done = paralet(*words, "--help")
    assert done.exit_code == 0
    assert "Example" in done.stdout.strip().rpartition("\n\n")[2]


def test_without_arguments_help_is_printed() -> None:
    assert "Commands:" in paralet().stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fly"], "No such command 'fly'"),
        (["run"], "Missing argument 'SPEC'"),
        (["run", "x.yaml", "--sead", 3], "No such option '--sead'"),
        (["run", "x.yaml", "--seeds", 0], "Invalid value for '--seeds'"),
        (["run", "none.yaml"], "none.yaml: cannot be read"),
        (["predict", "h1"], "Missing argument 'DST'"),
        (["predict", "h1", "h5", 70000, "--topology", "x"], "Invalid value for '[PORT]'"),
        (["stat", "--interval", "nan"], "--interval nan is not a number of seconds"),
        (["run", "x.yaml", "--seeds", 10**12], "Invalid value for '--seeds'"),
        (["bench", "everything"], "Invalid value for 'NAME'"),
    ],
)
def test_usage_errors_give_one_sentence(arguments: list[object], sentence: str) -> None:
    assert_refused(paralet(*arguments), sentence)


# run


def test_run_writes_results_and_prints_a_table(tmp_path: Path, sandboxed: list[int]) -> None:
    spec = write_spec(tmp_path)
    done = paralet("run", spec, "--results", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "ecmp" in done.stdout
    assert "16 of 16 flows went as predicted" in done.stdout
    folder = tmp_path / "out" / "latest"
    assert {"summary.json", "report.html", "spec.yaml", "links.csv", "completion.png", "logs"} <= {
        path.name for path in folder.iterdir()
    }


@pytest.mark.usefixtures("no_plots")
def test_a_folder_of_the_users_with_the_name_of_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    done = paralet("run", write_spec(tmp_path), "--fabric", "fluid", "--seeds", 1, "--results", tmp_path)
    assert done.exit_code == 0, done.output
    assert f"paralet: {tmp_path}/latest is no link, so it stays as it is" in done.stderr
    assert not list((tmp_path / "latest").iterdir())
    assert not list(tmp_path.glob(".latest-*"))


@pytest.mark.usefixtures("no_plots")
def test_run_uses_only_the_selected_policies_and_seeds(tmp_path: Path, sandboxed: list[int]) -> None:
    spec = write_spec(tmp_path)
    done = paralet("run", spec, "--results", tmp_path, "--policy", "pinned", "--seeds", 3, "--json")
    summary = json.loads(done.stdout)
    assert [(policy["name"], len(policy["completions_s"])) for policy in summary["policies"]] == [("pinned", 3)]
    assert summary == json.loads((tmp_path / "latest" / "summary.json").read_text())


def test_run_checks_the_spec_before_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emul, "probe", lambda: pytest.fail("nothing may be tried for a wrong spec"))
    assert_refused(paralet("run", write_spec(tmp_path, sedes=3), "--results", tmp_path / "out"), "did you mean 'seeds'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("finding", "sentence"),
    [
        (Finding("root", False, "not running as root", "sudo"), "root: not running as root; try: sudo"),
        (
            Finding("Open vSwitch", False, "missing: ovs-vsctl", "apt install openvswitch-switch"),
            "Open vSwitch: missing: ovs-vsctl; try: apt install openvswitch-switch",
        ),
    ],
)
def test_run_refuses_a_machine_without_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finding: Finding, sentence: str
) -> None:
    monkeypatch.setattr(emul, "probe", lambda: [READY[0], finding])
    assert_refused(paralet("run", write_spec(tmp_path), "--results", tmp_path / "out"), sentence)
    assert not (tmp_path / "out").exists()


def test_run_refuses_an_unprivileged_user(tmp_path: Path) -> None:
    """As a real process: without root, the command must not create anything."""
    spec = write_spec(tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
        if folder.name.startswith("pytest-of"):
            break
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*as_nobody, sys.executable, "-B", "-c", "from testbed.cli import main; main()", "run", spec],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HOME": "/dev/null"},
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("paralet: root: not running as root")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("name", ["[run1]", "[/foo]", "a\x1b[2Jb", "a\nb", ":smile:"])
def test_a_result_folder_of_any_name_is_named_right(tmp_path: Path, name: str) -> None:
    done = paralet("run", write_spec(tmp_path), "--fabric", "fluid", "--seeds", 1, "--results", tmp_path / name)
    page = tmp_path / name / "small" / "report.html"
    assert page.is_file(), done.output
    assert f"Report: {printable(page)}\n" in done.stdout
    again = paralet("report", page.parent)
    assert f"Report: {printable(page)}\n" in again.stdout, again.output
    missing = paralet("report", tmp_path / "none" / name)
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    assert "\x1b" not in missing.stderr + done.stdout + again.stdout


def test_run_refuses_a_results_folder_that_cannot_be_created(tmp_path: Path, ready_machine: None) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(paralet("run", write_spec(tmp_path), "--results", tmp_path / "file" / "x"), "cannot write results")


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("taken", ["small/spec.yaml", "small/summary.json"])
def test_a_folder_at_the_path_of_a_result_file_is_a_one_line_error(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).mkdir(parents=True)
    done = paralet("run", write_spec(tmp_path), "--fabric", "fluid", "--results", tmp_path, "--overwrite")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"paralet: {tmp_path / taken} cannot be used: Is a directory"


@pytest.mark.parametrize("command", ["graph", "report"])
def test_a_file_that_may_not_be_written_is_a_wrong_request(
    tmp_path: Path, command: str, no_plots: None, ready_machine: None
) -> None:
    """Nobody, root neither, may make a file in /sys, which containers often mount read-only."""
    spec = write_spec(tmp_path)
    inputs: list[object] = [spec]
    if command == "report":
        for name in ("one", "two"):
            run = paralet("run", spec, "--fabric", "fluid", "--seeds", 1, "--results", tmp_path / name)
            assert run.exit_code == 0, run.output
        inputs = [tmp_path / name / "small" for name in ("one", "two")]
    done = paralet(command, *inputs, "--out", "/sys/out")
    reason = "Read-only file system" if os.statvfs("/sys").f_flag & os.ST_RDONLY else "Permission denied"
    assert_refused(done, f"/sys/out cannot be used: {reason}")


@pytest.mark.usefixtures("no_plots", "ready_machine")
def test_times_are_printed_in_the_unit_that_fits_them(tmp_path: Path) -> None:
    """Those of the small spec are some 10 ms. A model without packets sends none of them again."""
    spec = write_spec(tmp_path)
    run = paralet("run", spec, "--fabric", "fluid", "--results", tmp_path)
    sweep = paralet("sweep", spec, "--fabric", "fluid", "--results", tmp_path, "--jobs", 1)
    assert run.exit_code == sweep.exit_code == 0, run.output + sweep.output
    assert re.search(r"; ideal 9\.600 ms *$", run.stdout, re.MULTILINE), run.stdout
    # After the name and m, and in the sweep after the seeds: mean, worst, times the ideal.
    time = r" +\d{1,2}\.\d{2,3}"
    assert " mean ms  worst ms  x ideal  sent again " in run.stdout
    assert re.search(rf"^ ecmp +1{time}{time} +\d\.\d\d +- ", run.stdout, re.MULTILINE), run.stdout
    assert " mean ms  worst ms  x ideal " in sweep.stdout
    assert re.search(rf"^ +ecmp +1 +2{time}{time} +\d\.\d\d ", sweep.stdout, re.MULTILINE), sweep.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("graph", "SPEC", "--out"),
        ("report", "one", "two", "--out"),
        ("papers", "003", "--page"),
        ("probe", "127.0.0.1", "--write"),
        ("top", "--picture"),
    ],
    ids=lambda command: command[0],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = tmp_path / "missing" / "out"
    given = [write_spec(tmp_path) if word == "SPEC" else word for word in command]
    assert_refused(paralet(*given, missing), f"{missing} cannot be used: No such file or directory")
    # Nothing is left where nothing was done.
    assert not missing.parent.exists()


@pytest.mark.parametrize(
    ("name", "inside", "reason"),
    [
        ("page.md", "missing/page.md", "No such file or directory"),  # a link to a file in a folder that is missing
        ("page.md", "page.md", "Too many levels of symbolic links"),
        ("page.csv", "missing/page.csv", "No such file or directory"),
        ("images", None, "Not a directory"),
    ],
)
def test_links_and_files_beside_a_page_are_tried_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, inside: str | None, reason: str
) -> None:
    if inside is None:
        (tmp_path / name).touch()
    else:
        (tmp_path / name).symlink_to(tmp_path / inside)

    def computed(quick: bool) -> Findings:
        pytest.fail("the paper is computed before its files are tried")

    monkeypatch.setitem(PAPERS, "003", dataclasses.replace(PAPERS["003"], find=computed))
    done = paralet("papers", "003", "--page", tmp_path / "page.md")
    assert_refused(done, f"{tmp_path / name} cannot be used: {reason}")


def test_the_standard_file_of_a_comparison_is_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before results are read: these are damaged."""
    for name in ("one", "two", "comparison.html"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert_refused(paralet("report", "one", "two"), "comparison.html cannot be used: Is a directory")


def test_a_run_that_cannot_end_in_time_is_refused_before_it_starts(tmp_path: Path, ready_machine: None) -> None:
    """The ideal of the small spec is 0.00744 s."""
    spec = write_spec(tmp_path, timeouts={"run_s": 0.007})
    times = "a run takes 0.00744 s at least, and timeouts.run_s allows 0.007 s"
    sentence = f"{spec}: {times}: raise it, or send fewer bytes"
    assert_refused(paralet("run", spec, "--results", tmp_path), sentence)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize(("status", "expected"), [(1, 1), (2, 2)])
def test_errors_that_the_runner_printed_are_not_repeated(
    tmp_path: Path, sandboxed: list[int], status: int, expected: int
) -> None:
    sandboxed[0] = status
    done = paralet("run", write_spec(tmp_path), "--results", tmp_path / "out")
    assert (done.exit_code, done.output) == (expected, "")
    assert not (tmp_path / "out" / "latest").exists()


def test_a_crashed_runner_is_reported_with_the_path_of_its_logs(tmp_path: Path, sandboxed: list[int]) -> None:
    sandboxed[0] = 137
    done = paralet("run", write_spec(tmp_path), "--results", tmp_path / "out")
    assert_refused(done, f"status 137; its logs are in {tmp_path}/out/small/logs", status=1)


def test_ctrl_c_exits_with_130_and_one_line(tmp_path: Path, sandboxed: list[int]) -> None:
    sandboxed[0] = 130
    done = paralet("run", write_spec(tmp_path), "--results", tmp_path / "out")
    assert_refused(done, "paralet: interrupted", status=130)


@pytest.mark.usefixtures("no_plots")
def test_wrong_bytes_fail_the_run(tmp_path: Path, ready_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(tmp_path)

    def run(argv: Sequence[str], **_: Any) -> int:
        made_up(made, wrong_bytes=1).save(Path(argv[argv.index("--out") + 1]))
        return 0

    monkeypatch.setattr(sandbox, "run", run)
    done = paralet("run", tmp_path / "spec.yaml", "--results", tmp_path / "out")
    assert done.exit_code == 1
    assert "WRONG" in done.stdout


@pytest.mark.usefixtures("no_plots")
def test_fabric_softroce_runs_in_a_guest_without_kernel_support(
    tmp_path: Path, ready_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted: list[tuple[Path, guest.GuestOptions]] = []

    def run(argv: Sequence[str], *, log: Path, options: guest.GuestOptions, **_: Any) -> int:
        from testbed.spec import load

        words = dict(zip(argv[3::2], argv[4::2], strict=True))
        made_up(load(Path(words["--spec"]))).save(Path(words["--out"]))
        booted.append((log, options))
        return 0

    monkeypatch.setattr(rxe, "per_namespace", lambda: False)
    monkeypatch.setattr(guest, "run", run)
    done = paralet(
        *("run", write_spec(tmp_path), "--results", tmp_path / "out", "--fabric", "softroce"),
        *("--time-limit", 77, "--json"),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["fabric"] == "softroce"
    ((log, options),) = booted
    folder = tmp_path / "out" / "small"
    assert (log, options.writable, options.time_limit_s) == (folder / "logs" / "guest.log", [folder], 77)


def test_routers_are_not_started_on_a_machine_that_lacks_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emul, "probe", list)
    monkeypatch.setattr(requirements, "lack", lambda: requirements.Lack("FRR's zebra is missing", "apt install frr"))
    done = paralet("run", write_spec(tmp_path, fabric="routed"), "--results", tmp_path / "out")
    assert (done.exit_code, list(tmp_path.glob("out/*"))) == (2, [])
    assert "fabric routed: FRR's zebra is missing; apt install frr" in done.stderr


@pytest.mark.usefixtures("no_plots")
def test_fabric_softroce_needs_no_guest_with_rxe_in_namespaces(
    tmp_path: Path, sandboxed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rxe, "per_namespace", lambda: True)
    monkeypatch.setattr(guest, "run", lambda *_, **__: pytest.fail("no guest is needed"))
    done = paralet("run", write_spec(tmp_path), "--results", tmp_path / "out", "--fabric", "softroce")
    assert done.exit_code == 0, done.output


def test_a_guest_that_cannot_start_is_a_one_line_error(
    tmp_path: Path, ready_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> int:
        raise guest.GuestError("the guest needs qemu-system-x86_64 (qemu-system-x86, from Debian); install it")

    monkeypatch.setattr(rxe, "per_namespace", lambda: False)
    monkeypatch.setattr(guest, "run", run)
    done = paralet("run", write_spec(tmp_path, fabric="softroce"), "--results", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("paralet: the guest needs qemu-system-x86_64")


# doctor


def test_doctor_lists_what_is_missing_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one use lacks does not keep the machine from the others."""
    missing = Finding("Open vSwitch", False, "missing: ovs-vsctl", "apt install openvswitch-switch")
    monkeypatch.setattr(emul, "probe", lambda: [READY[0], missing])
    done = paralet("doctor")
    assert done.exit_code == 0, done.output
    assert "apt install openvswitch-switch" in done.stdout
    lines = done.stdout.splitlines()
    assert lines[-4:] == [
        "ready for plugin",
        "ready for models",
        "ready for service",
        "not ready for fabric: see Open vSwitch",
    ]
    answer = json.loads(paralet("doctor", "--json").stdout)
    assert (answer["ready"], answer["uses"]) == (
        True,
        {"plugin": True, "models": True, "service": True, "fabric": False},
    )
    found = {finding["name"]: finding for finding in answer["findings"]}
    assert found["Open vSwitch"] == {
        "name": "Open vSwitch",
        "ok": False,
        "detail": "missing: ovs-vsctl",
        "remedy": "apt install openvswitch-switch",
        "uses": ["fabric"],
    }
    assert found["native engine"]["uses"] == ["plugin", "fabric"]
    assert found["native models"]["uses"] == ["models", "service"]


@pytest.mark.parametrize("use", ["plugin", "models", "service", "fabric"])
def test_doctor_ends_with_1_only_for_what_the_asked_use_needs(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = importlib.import_module("testbed.cli.doctor")  # the package has the command by that name
    lacking: set[str] = set()

    def plugin() -> Path:
        if "plugin" in lacking:
            raise FileNotFoundError("libnccl-net-paralet.so is missing")
        return Path("/lib/libnccl-net-paralet.so")

    monkeypatch.setattr(nccl_net_plugin, "path", plugin)
    monkeypatch.setattr(extras, "missing", lambda extra: ["numpy"] if extra in lacking - {"fabric"} else [])
    monkeypatch.setattr(emul, "probe", lambda: [Finding("Open vSwitch", "fabric" not in lacking, "", "")])
    others = {"plugin", "models", "service", "fabric"} - {use}
    lacking |= others
    done = paralet("doctor", "--for", use)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"ready for {use}")
    lacking ^= {use, *others}
    done = paralet("doctor", "--for", use)
    assert (done.exit_code, done.stdout.splitlines()[-1].startswith(f"not ready for {use}: see ")) == (1, True)
    assert paralet("doctor").exit_code == (1 if use == "plugin" else 0)
    monkeypatch.setattr(doctor, "_engine", lambda: Finding("native engine", False, "", "make setup"))
    lacking.clear()
    assert paralet("doctor", "--for", use).exit_code == (use in ("plugin", "fabric"))
    monkeypatch.setattr(doctor, "_engine", lambda: Finding("native engine", True, "", ""))
    monkeypatch.setattr(doctor, "_models", lambda: Finding("native models", False, "", "make setup"))
    assert paralet("doctor", "--for", use).exit_code == (use in ("models", "service"))


# bench


def test_bench_prints_medians_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [Measurement("throughput", "1 MiB", "Gbit/s", ours, 10.0, "tcp") for ours in (9.0, 1.0, 8.0)]
    monkeypatch.setattr(transport, "measure", lambda: result("transport", rounds))
    answer = json.loads(paralet("bench", "transport", "--json").stdout)
    assert list(answer) == ["bench", "when", "machine", "rows"]
    assert answer["bench"] == "transport"
    assert answer["rows"] == [
        {
            "metric": "throughput",
            "case": "1 MiB",
            "unit": "Gbit/s",
            "ours": 8.0,
            "peer": 10.0,
            "peer_name": "tcp",
            "ratio": 0.8,
        }
    ]
    assert "0.80" in paralet("bench", "transport").stdout


def test_a_failing_bench_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bench.Result:
        raise TestbedError("the program ended with status 3")

    monkeypatch.setattr(transport, "measure", fail)
    assert_refused(paralet("bench", "transport"), "ended with status 3", status=1)
