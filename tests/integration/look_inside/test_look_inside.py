# SPDX-License-Identifier: Apache-2.0
"""`paralet shell` and the commands from other terminals, on a fabric of switches and one of routers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.live.run_processes import RunProcesses
from tests.docs.markdown import blocks, shows

ROOT = Path(__file__).parents[3]
PARALET = [sys.executable, "-c", "from testbed.cli import main; main()"]
TIMEOUT_S = 120.0

pytestmark = pytest.mark.long

SPEC = """
name: {name}
topology:
  leaf_spine: {{leaves: 2, spines: 2, hosts_per_leaf: 1, host_rate: 20 Mbit/s}}
workload: {{kind: ring_allreduce, bytes: 2 MiB}}
policies: [{{name: ecmp, policy: ecmp}}]
"""


def paralet(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    argv = [*PARALET, *words]
    return subprocess.run(argv, cwd=ROOT, input=given, capture_output=True, text=True, timeout=TIMEOUT_S)


def named(kind: str) -> str:
    """A name that no other test's fabric has."""
    return f"{kind}-{os.getpid()}"


def spec(folder: Path, name: str) -> Path:
    file = folder / "spec.yaml"
    file.write_text(SPEC.format(name=name))
    return file


def until_up(name: str, process: subprocess.Popen[str]) -> None:
    """Wait until a fabric takes commands."""
    deadline = time.monotonic() + TIMEOUT_S
    while not any(fabric["name"] == name for fabric in json.loads(paralet("inspect", "--json").stdout)["fabrics"]):
        assert process.poll() is None
        assert time.monotonic() < deadline


@pytest.fixture(scope="module", params=["mininet", "routed"])
def fabric(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a fabric that a shell holds."""
    name = named(request.param)
    file = spec(tmp_path_factory.mktemp("shell"), name)
    argv = [*PARALET, "shell", str(file), "--fabric", request.param]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, text=True) as shell:
        assert shell.stdin is not None
        try:
            until_up(name, shell)
            yield name
            shell.stdin.write("h1 false\n")
            shell.stdin.close()
            assert shell.wait(TIMEOUT_S) == 1  # a command failed
        finally:
            shell.kill()


def test_programs_run_on_hosts_which_have_names(fabric: str) -> None:
    pinged = paralet("exec", "--on", fabric, "h1", "--", "ping", "-c", "1", "-W", "5", "h2")
    assert pinged.returncode == 0, pinged.stderr
    assert "1 received" in pinged.stdout
    echoed = paralet("exec", "--on", fabric, "h2", "--", "sh", "-c", "cat; exit 5", given="given")
    assert (echoed.returncode, echoed.stdout) == (5, "given")


def test_a_link_that_is_cut_is_down_and_packets_go_around_it(fabric: str) -> None:
    assert paralet("link", "--on", fabric, "leaf1", "spine1", "down").returncode == 0
    assert re.search(r"^leaf1:2 spine1:1 +down", paralet("inspect", "--on", fabric, "links").stdout, re.MULTILINE)
    assert paralet("exec", "--on", fabric, "h1", "--", "ping", "-c", "1", "-W", "5", "h2").returncode == 0
    assert paralet("link", "--on", fabric, "leaf1", "spine1", "up").returncode == 0
    assert re.search(r"^leaf1:2 spine1:1 +up", paralet("inspect", "--on", fabric, "links").stdout, re.MULTILINE)


def test_a_port_loses_what_it_is_told_to(fabric: str) -> None:
    assert paralet("link", "--on", fabric, "h1:1", "loss", "100 %").returncode == 0
    assert "h1:1 loss 100 %" in paralet("inspect", "--on", fabric, "links").stdout
    assert paralet("exec", "--on", fabric, "h1", "--", "ping", "-c", "1", "-W", "1", "h2").returncode == 1
    assert paralet("link", "--on", fabric, "h1:1", "clear").returncode == 0
    assert paralet("exec", "--on", fabric, "h1", "--", "ping", "-c", "1", "-W", "5", "h2").returncode == 0


def test_a_capture_has_the_packets_of_the_port(fabric: str, tmp_path: Path) -> None:
    file = tmp_path / "leaf1-1.pcap"
    argv = [*PARALET, "capture", "--on", fabric, "leaf1:1", "-c", "1", "-w", str(file), "icmp"]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as capture:
        assert capture.stderr is not None
        assert any("listening on leaf1-eth1" in line for line in capture.stderr)
        paralet("exec", "--on", fabric, "h1", "--", "ping", "-c", "1", "h2")
        assert capture.wait(TIMEOUT_S) == 0
    listed = subprocess.run(["tcpdump", "-nr", str(file)], capture_output=True, text=True, check=True).stdout
    assert re.search(r"^\S+ IP 10\.0\.0\.1 > 10\.0\.1\.1: ICMP echo request.*\n\Z", listed)


def test_rules_are_those_that_the_switch_forwards_by(fabric: str) -> None:
    shown = paralet("inspect", "--on", fabric, "rules", "leaf1").stdout
    assert ("group_id=" if fabric.startswith("mininet") else "10.0.1.1 ") in shown
    assert ("nw_dst=10.0.1.1" if fabric.startswith("mininet") else "BGP router identifier") in shown


def test_nodes_have_processes_of_this_machine(fabric: str) -> None:
    (found,) = json.loads(paralet("inspect", "--on", fabric, "--json").stdout)["fabrics"]
    assert (found["name"], found["command"]) == (fabric, "shell")
    spaces = {node["name"]: os.readlink(f"/proc/{node['pid']}/ns/net") for node in found["nodes"]}
    assert list(spaces) == ["h1", "h2", "leaf1", "leaf2", "spine1", "spine2"]
    apart = len(set(spaces.values()))
    assert apart == (3 if fabric.startswith("mininet") else 6)  # Open vSwitch's bridges share one
    assert os.readlink("/proc/self/ns/net") not in spaces.values()
    assert len(found["links"]) == 6


def test_the_sessions_of_the_page_are_as_shown() -> None:
    page = ROOT / "docs" / "look-inside.md"
    lines = [line for block in blocks("text") if block.page == page for line in block.text.splitlines()]
    begin = "demo> "
    given = [line.removeprefix(begin) for line in lines if line.startswith(begin)]
    shown = [line for line in lines if not line.startswith((begin, "Fabric demo is up"))]
    assert len(given) > 5
    done = paralet("shell", "experiments/demo.yaml", given="\n".join(given))
    assert done.returncode == 0, done.stderr
    assert shows("\n".join(shown) + "\n", done.stdout), done.stdout


def test_a_shell_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    name = named("ended")
    argv = [*PARALET, "shell", str(spec(tmp_path, name))]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shell:
        until_up(name, shell)
        (found,) = json.loads(paralet("inspect", "--on", name, "--json").stdout)["fabrics"]
        shell.send_signal(signal.SIGINT)
        assert shell.wait(TIMEOUT_S) == 130
        assert shell.stderr is not None
        assert shell.stderr.read() == "paralet: interrupted\n"
    assert not Path("/proc", str(found["number"])).exists()
    assert not Path(found["logs"]).exists()
    assert paralet("exec", "--on", name, "h1", "true").returncode == 2


def test_a_running_experiment_takes_commands_and_says_what_they_changed(tmp_path: Path) -> None:
    name = named("experiment")
    argv = [*PARALET, "run", str(spec(tmp_path, name)), "--results", str(tmp_path), "--seeds", "2"]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        until_up(name, run)
        assert paralet("link", "--on", name, "leaf1", "spine1", "down").returncode == 0
        assert paralet("exec", "--on", name, "h1", "--", "ping", "-c", "1", "-W", "5", "h2").returncode == 0
        (inspected,) = json.loads(paralet("inspect", "--on", name, "--json").stdout)["fabrics"]
        shown = RunProcesses(tmp_path / name / "logs" / "journal.jsonl").take()
        assert {node["pid"] for node in inspected["nodes"]} <= {*shown}
        _, errors = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, errors
    assert "paralet: by hand: cut leaf1:2\n" in errors
