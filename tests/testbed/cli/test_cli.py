# SPDX-License-Identifier: Apache-2.0
"""The command line: its output, and its errors for invalid requests."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

import emul
import nccl_net_plugin
from emul import Finding, guest, rxe, sandbox
from emul.routed import requirements
from netmodel import Flow, LinuxL4Hash, dump_topology, fat_tree, forwarding, in_order_of, load_topology, path_of
from netmodel.htsim import write_topo
from netmodel.printable import printable
from testbed import bench
from testbed.bench import transport
from testbed.bench.frame import Measurement, result
from testbed.cli import extras, main
from testbed.errors import TestbedError
from tests.netmodel.test_floodns import SMALL as FLOODNS
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


def test_a_run_that_cannot_end_in_time_is_refused_before_it_starts(tmp_path: Path, ready_machine: None) -> None:
    """The ideal of the small spec is 0.0096 s."""
    spec = write_spec(tmp_path, timeouts={"run_s": 0.009})
    sentence = f"{spec}: a run takes 0.0096 s at least, and timeouts.run_s is 0.009 s: raise it, or send fewer bytes"
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
    assert found["native engine"]["uses"] == ["plugin", "models", "service", "fabric"]


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
    assert paralet("doctor", "--for", use).exit_code == 1, "all uses need the engine"


# predict


@pytest.fixture
def fabric_file(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.yaml"
    path.write_text(dump_topology(experiment(tmp_path).topology))
    return path


@pytest.mark.parametrize("hash_name", ["ovs", "linux", "crc16", "crc32", "xor", "rules"])
def test_predictions_of_flows_and_of_ports_agree(fabric_file: Path, hash_name: str) -> None:
    options = ("--topology", fabric_file, "--hash", hash_name, "--json")
    every = json.loads(paralet("predict", "h1", "h3", *options).stdout)["paths"]
    assert sorted(port for path in every for port in path["ports"]) == list(range(0xC000, 0x10000))
    for path in every:
        if path["ports"]:
            predicted = json.loads(paralet("predict", "h1", "h3", path["ports"][0], *options).stdout)["paths"]
            assert predicted == [{**path, "ports": path["ports"][:1]}]


def test_predict_accepts_a_spec_and_a_switch(tmp_path: Path) -> None:
    done = paralet("predict", "h1", "h3", "--via", "spine2", "--topology", write_spec(tmp_path))
    assert done.exit_code == 0
    assert done.stdout.startswith("h1:1 -> leaf1:4 -> spine2:2 -> leaf2:1 -> h3  ")


CLOS = {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2, "hosts_per_leaf": 1, "host_rate": "1G"}
RAILS = {
    "domains": 4,
    "gpus_per_domain": 2,
    "rail_rate": "1G",
    "hb_rate": "8G",
    "spines": 2,
    "leaves_per_rail": 2,
    "pods": 2,
}
FAT_TREE = "fat_tree: {k: 4, host_rate: 10 Mbit/s}"


@pytest.mark.parametrize(("switch", "paths"), [("leaf8", 4), ("agg7", 2), ("core3", 1)])
def test_predict_lists_paths_through_a_switch_of_any_tier(tmp_path: Path, switch: str, paths: int) -> None:
    (fabric := tmp_path / "fabric.yaml").write_text(FAT_TREE)
    done = paralet("predict", "h1", "h16", "--via", switch, "--topology", fabric, "--json")
    found = json.loads(done.stdout)["paths"]
    assert len(found) == paths
    assert all(switch in path["nodes"] for path in found)


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.topo", write_topo(fat_tree(4, 10**11))),
        (
            "topology.txt",
            "5 2 5\n3 4\n0 3 1Gbps 1us 0\n1 3 1Gbps 1us 0\n2 4 1Gbps 1us 0\n3 4 1Gbps 1us 0\n3 4 1Gbps 1us 0\n",
        ),
        ("topology.properties", FLOODNS),
    ],
)
def test_commands_take_topologies_of_other_programs_by_the_names_of_their_files(
    tmp_path: Path, name: str, text: str
) -> None:
    (fabric := tmp_path / name).write_text(text)
    topology = load_topology(fabric)
    src, dst = topology.hosts[0].name, topology.hosts[-1].name
    answer = json.loads(paralet("predict", src, dst, 50000, "--topology", fabric, "--json").stdout)
    assert (answer["paths"][0]["nodes"][0], answer["paths"][0]["nodes"][-1]) == (src, dst)
    policies = [{"name": "ecmp", "policy": "ecmp"}]
    changes = {"fabric": "fluid", "placement": {"hosts": [src, dst]}, "policies": policies}
    spec = write_spec(tmp_path, topology={"file": name}, **changes)
    done = paralet("run", spec, "--results", tmp_path / "results")
    assert done.exit_code == 0, done.output
    again = paralet("report", tmp_path / "results" / "small")  # its spec has the topology in full
    assert again.exit_code == 0, again.output
    fabric.write_text(text.replace("1", "x", 1))
    assert_refused(paralet("predict", src, dst, 50000, "--topology", fabric), f"{name}:")
    assert_refused(paralet("run", spec), f"{name}:")


def test_predict_says_for_how_long_packets_are_under_way_where_links_have_delays(tmp_path: Path) -> None:
    (fabric := tmp_path / "fabric.yaml").write_text(
        "fat_tree: {k: 4, host_rate: 10 Mbit/s, host_delay: 500 ns, agg_delay: 2 us, core_delay: 10 us}"
    )
    for dst, delay_s, said in (("h16", 25e-6, "25 us"), ("h3", 5e-6, "5 us"), ("h2", 1e-6, "1 us")):
        options = ("predict", "h1", dst, 50000, "--topology", fabric)
        assert json.loads(paralet(*options, "--json").stdout)["paths"][0]["delay_s"] == delay_s
        assert paralet(*options).stdout.endswith(f"port 50000  delay {said}\n")


def test_predict_chooses_in_the_order_of_next_hops_that_routers_had(tmp_path: Path) -> None:
    """Of a run, and of lists that somebody wrote; both name only some of the groups."""
    (fabric := tmp_path / "fabric.yaml").write_text(FAT_TREE)
    topology = load_topology(fabric)
    address = topology.host("h16").nics[0].address
    order = {
        name: {str(address): ports[::-1]}
        for name, groups in forwarding(topology).groups.items()
        if len(ports := groups[address]) > 1
    }
    (by_hand := tmp_path / "hops.json").write_text(json.dumps(order))
    (of_run := tmp_path / "observations.json").write_text(json.dumps({"runs": [{}, {"next_hops": order, "seed": 1}]}))
    flow = Flow(topology.host("h1").nics[0].address, address, 50000)
    routes = in_order_of(order, forwarding(topology))
    expected = [str(port) for port in path_of(topology, flow, LinuxL4Hash(), routes=routes)]
    assert expected != [str(port) for port in path_of(topology, flow, LinuxL4Hash())]
    for file in (by_hand, of_run):
        options = ("--topology", fabric, "--next-hops", file, "--json")
        answer = json.loads(paralet("predict", "h1", "h16", 50000, *options).stdout)
        assert (answer["hash"], answer["paths"][0]["out_ports"]) == ("linux", expected)
        crossing = json.loads(paralet("predict", "h1", "h16", "--via", expected[2].split(":")[0], *options).stdout)
        (mine,) = [path for path in crossing["paths"] if path["out_ports"] == expected]
        assert 50000 in mine["ports"]


@pytest.mark.parametrize(
    ("written", "ends", "nic", "vias"),
    [
        ({"clos": {**CLOS, "planes": 2}}, ("h1", "h4"), "nic1", ("p2leaf1", "p2agg2", "p2core4", "p2agg4", "p2leaf4")),
        ({"clos": CLOS}, ("h1", "h4"), None, ("leaf1", "agg2", "core4", "agg4", "leaf4")),
        ({"rail_optimised": RAILS}, ("d1g1", "d4g2"), None, ("rail1l1", "agg2", "core2", "agg4", "rail2l2")),
        ({"rail_only": RAILS}, ("d1g1", "d4g1"), None, ("rail1l1", "rail1a1", "rail1c1", "rail1l2")),
        ({"rail_optimised": RAILS}, ("d1g1", "d1g2"), "nic1", ("hb1",)),
    ],
    ids=["planes", "one plane", "rails", "separate rails", "an HB domain"],
)
def test_paths_cross_switches_of_every_tier_of_planes_and_rails(
    tmp_path: Path, written: dict[str, Any], ends: tuple[str, str], nic: str | None, vias: tuple[str, ...]
) -> None:
    (file := tmp_path / "fabric.yaml").write_text(yaml.safe_dump(written))
    options = ["--topology", file, "--json", *([] if nic is None else ["--nic", nic])]
    for via in vias:
        crossing = json.loads(paralet("predict", *ends, "--via", via, *options).stdout)["paths"]
        assert all(path["ports"] for path in crossing)
        port = crossing[-1]["ports"][0]
        (path,) = json.loads(paralet("predict", *ends, str(port), *options).stdout)["paths"]
        assert via in path["nodes"]
    assert_refused(
        paralet("predict", *ends, "--topology", file, "--nic", "eth9"), f"--nic eth9: host {ends[0]} has nic0"
    )


def test_a_prediction_is_for_the_nic_of_the_spec(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, topology={"clos": {**CLOS, "planes": 2}}, nic="nic1")
    assert " p2leaf1:" in paralet("predict", "h1", "h4", 50000, "--topology", spec).stdout
    assert " p1leaf1:" in paralet("predict", "h1", "h4", 50000, "--topology", spec, "--nic", "nic0").stdout
    refused = paralet("predict", "h1", "h4", "--via", "p1core1", "--topology", spec)
    assert_refused(refused, "no shortest path crosses p1core1; where hosts have several NICs, --nic names another")


def test_paths_of_routers_with_a_crc_are_predicted_by_its_offsets(tmp_path: Path) -> None:
    """By the spec's own hash, with next hops or without. An offset of the aggs is all that reaches every core."""
    topology = {"clos": CLOS}
    (hops := tmp_path / "hops.json").write_text('{"leaf1": {"10.0.3.1": [3, 2]}}')
    reached = []
    for offset in ({}, {"agg": 8}):
        routers = {"hash": "crc32", "hash_offset": offset}
        spec = write_spec(tmp_path, topology=topology, fabric="routed", routers=routers)
        for options in ((), ("--next-hops", hops), ("--hash", "linux-crc32")):
            answer = json.loads(paralet("predict", "h1", "h4", "--topology", spec, "--json", *options).stdout)
            assert answer["hash"] == "linux-crc32"
            reached.append(sum(bool(path["ports"]) for path in answer["paths"]))
    assert reached == [2, 2, 2, 4, 4, 4]


def test_offsets_that_seeds_cannot_have_are_refused_on_other_fabrics_too(tmp_path: Path) -> None:
    """Only fabric routed uses them, but a prediction by next hops is one of routers."""
    switches = [{"name": name, "role": role, "hash_seed": 7} for name, role in (("leaf1", "leaf"), ("spine1", "spine"))]
    topology = {
        "name": "pair",
        "hosts": [{"name": f"h{n}", "nics": [{"address": f"10.0.0.{n}"}]} for n in (1, 2)],
        "switches": switches,
        "links": [
            *({"a": f"h{n}:1", "b": f"leaf1:{n}", "rate": "1G"} for n in (1, 2)),
            {"a": "leaf1:3", "b": "spine1:1", "rate": "1G"},
        ],
    }
    routers = {"hash": "crc32", "hash_offset": {"spine": 8}}
    changes = {"placement": None, "policies": [{"name": "ecmp", "policy": "ecmp"}]}
    spec = write_spec(tmp_path, topology=topology, routers=routers, **changes)
    (hops := tmp_path / "hops.json").write_text('{"leaf1": {"10.0.0.1": [1]}}')
    assert paralet("predict", "h1", "h2", 50000, "--topology", spec).exit_code == 0
    refused = paralet("predict", "h1", "h2", 50000, "--topology", spec, "--next-hops", hops)
    assert_refused(refused, "routers.hash_offset: hash seed 7 of switch 'spine1' is also that of a switch with another")


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("[]", "is neither observations.json of a run nor next hops by switch: Input should be an object"),
        ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        ('{"runs": [{}]}', "has no next hops; take the observations of a run on fabric routed"),
        ('{"leaf9": {}}', "topology fat-tree-4 has no switch 'leaf9'"),
        ('{"leaf1": {"10.9.9.9": [3]}}', "leaf1 has next hops to '10.9.9.9', which is no host's address"),
        ('{"leaf1": {"h16": [3]}}', "leaf1 has next hops to 'h16', which is no host's address"),
        ('{"leaf1": {"10.0.7.2": [3, 3]}}', "must be different ports of links: [3, 3]"),
        ('{"leaf1": {"10.0.7.2": []}}', "must be different ports of links: []"),
        ('{"leaf1": {"10.0.7.2": [9]}}', "must be different ports of links: [9]"),
        ('{"leaf1": {"10.0.7.2": [1]}}', "the routes to 10.0.7.2 end at host 'h1', which does not own it"),
        ('{"leaf1": {"10.0.7.2": [3]}, "agg1": {"10.0.7.2": [1]}}', "the routes to 10.0.7.2 loop"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_next_hops_that_fit_no_fabric_are_refused(tmp_path: Path, written: str | None, sentence: str) -> None:
    (fabric := tmp_path / "fabric.yaml").write_text(FAT_TREE)
    file = tmp_path / "hops.json"
    if written is not None:
        file.write_text(written)
    assert_refused(paralet("predict", "h1", "h16", 50000, "--topology", fabric, "--next-hops", file), sentence)


def test_predict_uses_source_port_rules_for_a_spec_with_pinning_rules(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, pinning="rules")
    said = [
        json.loads(paralet("predict", "h1", "h3", "--topology", spec, "--json", *options).stdout)
        for options in ((), ("--hash", "rules"), ("--hash", "ovs"))
    ]
    assert said[0] == said[1]
    assert said[0]["paths"] != said[2]["paths"]
    assert [answer["hash"] for answer in said] == ["rules", "rules", "ovs"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["h1", "h9", 50000], "has no host 'h9'"),
        (["h9", "h1", 50000], "has no host 'h9'"),
        (["h1", "h1", 50000], "both source and destination"),
        (["h1", "h3", "--via", "spine7"], "has no switch 'spine7'"),
        (["h1", "h2", "--via", "spine1"], "no shortest path crosses spine1"),
        (["h1", "h3", 50000, "--via", "spine1"], "give either PORT or --via"),
    ],
)
def test_predict_refuses_unknown_names(fabric_file: Path, arguments: list[object], sentence: str) -> None:
    assert_refused(paralet("predict", *arguments, "--topology", fabric_file), sentence)


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
