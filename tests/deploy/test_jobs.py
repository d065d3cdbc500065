# SPDX-License-Identifier: Apache-2.0
"""Files for Slurm, Kubernetes and torchrun: scripts run with stand-ins for the programs of clusters.

Kubernetes' own objects, and the pods of Kubeflow's jobs, are checked with the schemas of the package
kubernetes-validate, where that is installed.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import nccl_net_plugin
from tests.deploy.commands import check
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "deploy" / "jobs"
KUBERNETES = "1.29"
RANK = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('NCCL', 'PARALET'))}))"

SERVER = "127.0.0.2"
CONNECTS = f"""\
import os, socket
print(socket.create_connection(("{SERVER}", int(os.environ["PORT"]))).getsockname()[1])
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """An environment whose srun and torchrun note their options and run the program once, and which has paralet."""
    programs = {
        "paralet": f'[[ "$1" != doctor ]] || exit "${{DOCTOR:-0}}"\nexec {sys.executable} -m testbed "$@"',
        "srun": 'while [[ "$1" == --* ]]; do echo "$1" >>"$CALLS"; shift; done\necho "$1" >>"$CALLS"\nexec "$@"',
        "mpirun": 'echo "$*" >>"$CALLS"\nwhile [[ "$1" != paralet ]]; do shift; done\nexec "$@"',
        "torchrun": f'echo "$*" >>"$CALLS"\nexec {sys.executable} "${{@: -2}}"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "77", "IMAGE": "nvcr.io#nvidia/pytorch:25.01-py3"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, **slurm, "PATH": path, "PYTHONPATH": str(ROOT), "CALLS": str(tmp_path / "calls")}


def run(script: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([JOBS / script, *arguments], env=environment, capture_output=True, text=True, cwd=JOBS)


def test_a_job_of_slurm_checks_its_hosts_and_loads_the_plugin(cluster: dict[str, str]) -> None:
    done = run("train.sbatch", cluster, sys.executable, "-c", RANK)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.items() >= {**nccl_net_plugin.environment(), "PARALET_JOB": "train-77"}.items()
    calls = Path(cluster["CALLS"]).read_text().splitlines()
    assert calls == ["--ntasks-per-node=1", "paralet", sys.executable]
    done = run("train.sbatch", {**cluster, "DOCTOR": "1"}, sys.executable, "-c", RANK)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_container_of_pyxis_has_the_plugin_and_its_library(cluster: dict[str, str]) -> None:
    done = run("train-container.sbatch", cluster, sys.executable, "-c", RANK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["NCCL_NET_PLUGIN"] == "/paralet/libnccl-net-paralet.so"
    options = dict(line.split("=", 1) for line in Path(cluster["CALLS"]).read_text().splitlines() if "=" in line)
    assert options["--container-image"] == cluster["IMAGE"]
    mounts = {inside: host for host, inside, _ in (m.split(":") for m in options["--container-mounts"].split(","))}
    assert Path(mounts["/paralet/libnccl-net-paralet.so"]) == nccl_net_plugin.path().resolve()
    assert Path(mounts["/paralet/libisal.so.2"]).is_file()


def test_torchrun_gives_its_ranks_the_plugin(cluster: dict[str, str]) -> None:
    told = {"NNODES": "2", "RENDEZVOUS": "host1:29400", "JOB": "bert"}
    done = run("torchrun.sh", {**cluster, **told}, "-c", RANK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).items() >= {"NCCL_NET": "paralet", "PARALET_JOB": "bert"}.items()
    assert "--nnodes 2" in Path(cluster["CALLS"]).read_text()


def test_the_prolog_has_the_status_of_doctor(cluster: dict[str, str], tmp_path: Path) -> None:
    for status in (0, 1):
        environment = {**cluster, "PARALET": str(tmp_path / "paralet"), "DOCTOR": str(status)}
        assert run("slurm-prolog.sh", environment).returncode == status


@pytest.fixture
def planned(cluster: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a cluster whose ports come from PARALET_PORTS, and of a program that connects to a server."""
    with socket.create_server((SERVER, 0)) as server:
        cluster["PORT"] = str(server.getsockname()[1])
        cluster["TMPDIR"] = tempfile.mkdtemp(prefix="pin-", dir="/tmp")  # the path of a socket is short
        cluster["XDG_RUNTIME_DIR"] = ""
        cluster["HOME"] = str(tmp_path)
        (tmp_path / ".paralet-token").write_text("0123456789abcdef0123456789abcdef")
        (tmp_path / ".paralet-token").chmod(0o600)
        ports = {"PARALET_PORTS": f"{SERVER}={free_ports(1)[0]}", "PARALET_ADDRESSES": "127.0.0.1"}
        yield {**cluster, **ports, "PARALET_PIN_NETWORKS": "127.0.0.0/8"}
        until = time.monotonic() + 30
        while os.listdir(cluster["TMPDIR"]) and time.monotonic() < until:
            time.sleep(0.01)
        os.rmdir(cluster["TMPDIR"])  # fails if an agent has outlived its program


def given(planned: dict[str, str]) -> str:
    """What the program prints: its port is the planned one."""
    return planned["PARALET_PORTS"].removeprefix(f"{SERVER}=") + "\n"


SERVICE = {"PARALET_PATH_SERVICE": "10.0.0.1:4792"}
PINNED = {
    "pin.sbatch": (SERVICE, [sys.executable, "-c", CONNECTS], ["paralet"]),
    "pin-torchrun.sh": (
        {**SERVICE, "NNODES": "2", "RENDEZVOUS": "host1:29400", "JOB": "bert"},
        ["-c", CONNECTS],
        ["--nnodes 2"],
    ),
    "pin-mpirun.sh": (
        {**SERVICE, "HOSTS": "hosts.txt", "INTERFACES": "lo"},
        [sys.executable, "-c", CONNECTS],
        ["--mca btl_tcp_if_include lo", "-x PARALET_PATH_SERVICE -x PARALET_PATH_SERVICE_TOKEN_FILE -x PARALET_IFNAME"],
    ),
}


@pytest.mark.parametrize("script", PINNED)
def test_programs_keep_their_transport_and_get_planned_ports(planned: dict[str, str], script: str) -> None:
    told, program, options = PINNED[script]
    done = run(script, {**planned, **told}, *program)
    assert (done.returncode, done.stdout) == (0, given(planned)), done.stderr
    called = Path(planned["CALLS"]).read_text()
    assert all(option in called for option in options)


@pytest.mark.parametrize("script", PINNED)
def test_without_a_path_service_a_pinned_job_does_not_start(planned: dict[str, str], script: str) -> None:
    told, program, _ = PINNED[script]
    done = run(script, {**planned, **told, "PARALET_PATH_SERVICE": ""}, *program)
    assert (done.returncode, done.stdout) == (1, "")
    assert "PARALET_PATH_SERVICE: set it to the address of the path service" in done.stderr


def test_a_task_prolog_gives_planned_ports_to_tasks_that_ask_for_them(planned: dict[str, str]) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as task:
        environment = {**planned, **SERVICE, "SLURM_TASK_PID": str(task.pid)}
        assert run("pin-task-prolog.sh", environment).stdout == ""
        done = run("pin-task-prolog.sh", {**environment, "PARALET_PIN": "1"})
        exported = [line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines()]
        assert [name for name, _ in exported] == ["LD_PRELOAD", "PARALET_PIN_AGENT"], done.stderr
        said = subprocess.run(
            [sys.executable, "-c", CONNECTS], env={**planned, **dict(exported)}, capture_output=True, text=True
        )
    assert (said.stdout, said.stderr) == (given(planned), "")


def test_a_pod_has_the_agent_beside_its_program(planned: dict[str, str]) -> None:
    pod = next(templates(OBJECTS["pin-pytorchjob-0"]))["spec"]
    (beside,), (container,) = pod["initContainers"], pod["containers"]
    folder = planned["TMPDIR"]
    script = beside["args"][0].replace("/usr/lib/paralet/lib/python3*/site-packages", str(ROOT))
    script = script.replace("/pin/", f"{folder}/")
    names = {each["name"] for each in beside["env"]}
    assert names == {"PARALET_POLICY", *SERVICE, "PARALET_PATH_SERVICE_TOKEN_FILE", "PARALET_JOB"}
    assert beside["startupProbe"]["exec"]["command"] == ["test", "-S", "/pin/agent"]
    variables = {each["name"]: each["value"].replace("/pin/", f"{folder}/") for each in container["env"]}
    with subprocess.Popen(
        [*beside["command"], script], env={**planned, "PARALET_POLICY": "pinned"}, stderr=subprocess.PIPE, text=True
    ) as agent:
        until = time.monotonic() + 30
        while not os.path.exists(f"{folder}/agent"):
            assert agent.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        said = subprocess.run(
            [sys.executable, "-c", CONNECTS], env={**planned, **variables}, capture_output=True, text=True, check=False
        )
        agent.terminate()
    assert (said.stdout, said.stderr) == (given(planned), "")
    os.unlink(f"{folder}/libparalet-pin.so")


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted((JOBS / "kubernetes").glob("*.yaml")):
        for number, each in enumerate(yaml.safe_load_all(file.read_text())):
            yield f"{file.stem}-{number}", each


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """The templates of pods in an object."""
    if isinstance(value, dict):
        for key, inside in value.items():
            if key == "template":
                yield inside
            else:
                yield from templates(inside)


OBJECTS = dict(objects())


@pytest.mark.parametrize("name", OBJECTS)
def test_commands_in_pods_exist(name: str) -> None:
    for template in templates(OBJECTS[name]):
        for container in (*template["spec"].get("initContainers", ()), *template["spec"]["containers"]):
            words = [*container.get("command", ()), *container.get("args", ())]
            if words[:1] == ["paralet"]:
                check(words)
            for line in "\n".join(words).splitlines():
                if line.startswith("paralet "):
                    check(line.split())


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="pip install kubernetes-validate has the schemas")
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_fit_kubernetes_schemas(name: str) -> None:
    validate = importlib.import_module("kubernetes_validate").validate
    each = OBJECTS[name]
    if "kubeflow" not in each["apiVersion"]:
        validate(each, KUBERNETES, strict=True)
    for template in templates(each):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
        validate(pod, KUBERNETES, strict=True)
