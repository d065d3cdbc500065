# SPDX-License-Identifier: Apache-2.0
"""Programs under `paralet pin`, with the agent and its ports as they ship, over loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.ports import free_ports

PROGRAM = Path(__file__).with_name("program.py")
SERVER = "127.0.0.2"
PORTS_OF_KERNEL = range(32768, 61000)
LINUX = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
needs_list_of_bound_sockets = pytest.mark.skipif(
    LINUX < (6, 8), reason="before Linux 6.8 the kernel does not list sockets that are bound and not connected"
)


@dataclass
class Scene:
    """Servers for connections and datagrams at one port, and the ports that are planned towards them."""

    port: int
    planned: list[int]
    environment: dict[str, str]

    def start(self, *words: str, options: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "testbed", "pin", "--networks", "127.0.0.0/8", *options, "--", *words]
        return subprocess.Popen(
            command,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*words, **variables)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def said(self, what: str, *arguments: str, **variables: str) -> object:
        """What the program prints, which succeeds without a word on standard error."""
        words = [sys.executable, str(PROGRAM), what, SERVER, str(self.port), *arguments]
        status, out, err = self.run(*words, **variables)
        assert (status, err) == (0, "")
        return json.loads(out)

    @property
    def folders(self) -> list[str]:
        return os.listdir(self.environment["TMPDIR"])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """The agent takes its ports from PARALET_PORTS."""
    with socket.socket() as server, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        server.bind((SERVER, 0))
        server.listen(128)
        port = server.getsockname()[1]
        datagrams.bind((SERVER, port))
        planned = free_ports(6)
        folder = Path("/tmp") / f"pin-{os.getpid()}-{port}"  # the path of a socket is short
        folder.mkdir()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PARALET_", "SLURM_"))},
            "PARALET_ADDRESSES": "127.0.0.1",
            "PARALET_PORTS": f"{SERVER}=" + ",".join(map(str, planned)),
            "TMPDIR": str(folder),
            "XDG_RUNTIME_DIR": "",
            "PYTHONPATH": str(PROGRAM.parents[2]),
        }
        yield Scene(port, planned, environment)
        deadline = time.monotonic() + 30
        while os.listdir(folder) and time.monotonic() < deadline:
            time.sleep(0.01)
        folder.rmdir()  # fails if an agent has outlived its program


def test_connections_get_planned_ports_in_turn_and_the_kernels_beyond_them(scene: Scene) -> None:
    ports = scene.said("several", "8")
    assert isinstance(ports, list)
    assert ports[:6] == scene.planned
    assert not {*ports[6:]} & {*scene.planned}


def test_threads(scene: Scene) -> None:
    assert scene.said("threads", "6") == sorted(scene.planned)


def test_forked_children_and_programs_that_they_start(scene: Scene) -> None:
    assert scene.said("family") == scene.planned[:3]


def test_a_program_may_close_all_descriptors(scene: Scene) -> None:
    assert scene.said("closes_all") == scene.planned[:2]


def test_a_program_finds_no_child_no_thread_and_no_descriptor_of_ours(scene: Scene) -> None:
    assert scene.said("own_children") == [0, 0, [0, 1, 2, 3]]  # 3 reads the folder


def test_datagrams_unconnected_and_connected(scene: Scene) -> None:
    assert scene.said("datagrams") == scene.planned[:3]


def test_a_refused_connection_gives_its_port_to_the_next_one(scene: Scene) -> None:
    assert scene.said("refused") == [scene.planned[0], scene.planned[0]]


def test_refused_connections_of_other_threads_do_not_keep_the_planned_ports(scene: Scene) -> None:
    assert scene.said("refused_threads", str(len(scene.planned))) in scene.planned


def test_the_port_of_a_refused_connection_is_free_at_once_for_another_thread(scene: Scene) -> None:
    assert scene.said("refused_by_another_thread") == scene.planned[0]


@needs_list_of_bound_sockets
def test_a_refused_socket_keeps_its_port_and_may_try_again(scene: Scene) -> None:
    assert scene.said("retries") == scene.planned[:2]


@needs_list_of_bound_sockets
@pytest.mark.parametrize("refused_before", ["yes", "no"])
def test_a_socket_that_is_refused_late_keeps_its_port_and_may_try_again(scene: Scene, refused_before: str) -> None:
    assert scene.said("retries_late", refused_before) == scene.planned[:2]


def test_the_port_of_a_refused_connection_is_free_beside_one_in_time_wait(scene: Scene) -> None:
    assert scene.said("refused_beside_time_wait", str(scene.planned[0])) == scene.planned[0]


@pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler is missing: apt install gcc")
def test_a_handler_of_a_signal_that_connects_takes_no_port_of_the_connection_that_it_interrupts(
    scene: Scene, tmp_path: Path
) -> None:
    library = tmp_path / "interrupts.so"
    source = PROGRAM.with_name("interrupts.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    interrupted, _, later = scene.planned[:3]
    assert scene.said("several", "2", LD_PRELOAD=str(library)) == [interrupted, later]


def test_a_port_that_no_program_takes_is_given_to_the_next_one(scene: Scene) -> None:
    assert scene.said("unread") == scene.planned[:2]


def test_what_a_program_binds(scene: Scene) -> None:
    ports = scene.said("binds")
    assert isinstance(ports, dict)
    first, second = scene.planned[:2]
    assert ports["without"] == [first, second, first]  # datagrams have ports of their own
    assert ports["before"] == ports["asks"] != 0


def test_other_descriptors_and_programs_see_the_port_of_a_socket_that_was_bound_without_one(scene: Scene) -> None:
    ports = scene.said("shares")
    assert isinstance(ports, list)
    assert len(ports) == 8
    assert all(other == own != 0 for other, own in ports), ports


def test_a_program_that_asks_the_kernel_for_a_late_port_sees_none_before_it_connects(scene: Scene) -> None:
    assert scene.said("leaves_out") == [0, 0, scene.planned[0]]


def test_a_server_that_binds_its_address_alone(scene: Scene) -> None:
    assert scene.said("listens") is True


def test_check_says_which_connections_have_planned_ports_and_why_others_have_none(scene: Scene) -> None:
    checked = scene.said("checked", PARALET_JOB="bert")
    assert isinstance(checked, dict)
    said = checked["said"]
    assert (said["job"], said["asked"], said["given"]) == ("bert", 2, 2)
    assert said["pid_namespace"] == os.stat("/proc/self/ns/pid").st_ino
    assert [flow["port"] for flow in said["pinned"]] == checked["ports"] == scene.planned[:2]
    assert {(flow["remote"], flow["remote_port"]) for flow in said["pinned"]} == {(SERVER, scene.port)}
    (other,) = said["not_pinned"]
    assert other["why"] == "the program has bound its source port"


def test_check_tells_connections_that_hang_until_they_are_refused(scene: Scene) -> None:
    checked = scene.said("hangs")
    assert isinstance(checked, dict)
    answered, silent = checked["before"][1:]
    assert all(f" from port {port}: " in line for port, line in zip(checked["ports"], [answered, silent], strict=True))
    assert re.search(r", hangs: no answer to \d+ retransmissions$", silent)
    assert "hangs" not in answered
    assert "hangs" not in "".join(checked["after"])


def test_a_thousand_sockets(scene: Scene) -> None:
    assert scene.said("many", "1024") == [1024, sorted(scene.planned)]


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt install valgrind")
@pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler is missing: apt install gcc")
def test_a_checker_of_memory_finds_nothing(scene: Scene, tmp_path: Path) -> None:
    """In a program with threads, a forked child that starts another program, `close_range` and 1,024 sockets."""
    program = tmp_path / "clean"
    subprocess.run(["cc", "-O1", "-g", "-pthread", "-o", program, PROGRAM.with_name("clean.c")], check=True)
    checker = ["prlimit", "--nofile=4096:", "valgrind", "--quiet", "--leak-check=full", "--error-exitcode=9"]
    expected = (0, f"{scene.planned[0]}\n", "")
    assert scene.run(*checker, str(program), SERVER, str(scene.port)) == expected


def test_status_output_and_signals_are_the_programs(scene: Scene) -> None:
    assert scene.run("sh", "-c", "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")
    process = scene.start("sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert len(scene.folders) == 1
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def asks(scene: Scene, server: socket.socket) -> dict[str, str]:
    """The settings that have an agent ask a path service at the address of a socket, in place of ports by hand."""
    token = Path(scene.environment["TMPDIR"]) / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    return {
        "PARALET_PORTS": "",
        "PARALET_PATH_SERVICE": f"127.0.0.1:{server.getsockname()[1]}",
        "PARALET_PATH_SERVICE_TOKEN_FILE": str(token),
    }


def test_without_a_path_service_one_sentence_and_the_kernels_ports(scene: Scene) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        service = asks(scene, nobody)
        words = [sys.executable, str(PROGRAM), "several", SERVER, str(scene.port)]
        status, out, err = scene.run(*words, **service)
        Path(service["PARALET_PATH_SERVICE_TOKEN_FILE"]).unlink()
    assert status == 0
    assert all(port in PORTS_OF_KERNEL for port in json.loads(out))
    assert (
        err == "paralet pin: the path service does not answer, so connections keep the ports that the kernel chooses\n"
    )


def silent_service(listener: socket.socket) -> None:
    """A path service that welcomes a host and gives it no port."""
    with listener.accept()[0] as host, host.makefile("rw") as lines:
        hello = json.loads(lines.readline())
        lines.write(json.dumps({"type": "welcome", "version": hello["version"], "session": "0"}) + "\n")
        lines.flush()
        for line in lines:
            if json.loads(line)["type"] == "ping":
                lines.write(json.dumps({"type": "pong", "nonce": 0}) + "\n")
                lines.flush()


def test_the_agent_tells_connections_that_wait_for_their_ports_and_how_long_others_have_waited(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=silent_service, args=(listener,))
        serving.start()
        service = asks(scene, listener) | {"PARALET_PIN_WAIT_US": "3000000"}
        try:
            said = scene.said("waits", **service)
        finally:
            Path(service["PARALET_PATH_SERVICE_TOKEN_FILE"]).unlink()
        serving.join()
    assert isinstance(said, list)
    meanwhile, after = said
    (waiting,), (none,) = meanwhile["waiting"], after["not_pinned"]
    assert (waiting["remote"], waiting["remote_port"]) == (SERVER, scene.port)
    assert 0 <= waiting["waited_s"] < 3.0 <= after["longest_wait_s"]
    assert after["waiting"] == []
    assert re.fullmatch(r"its port was not known within \d+\.\d s", none["why"])


def rank_told(listener: socket.socket, told: list[dict[str, Any]]) -> None:
    """A path service that answers nobody, until a host has told a rank."""
    listener.settimeout(60)
    with ExitStack() as kept:
        while not any("rank" in hello for hello in told):
            host = kept.enter_context(listener.accept()[0])
            told.append(json.loads(kept.enter_context(host.makefile()).readline()))


def test_the_path_service_is_told_the_rank_of_a_program_that_a_launcher_has_started(scene: Scene) -> None:
    """As torchrun starts its workers: `paralet pin` itself does not have their variables."""
    told: list[dict[str, Any]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=rank_told, args=(listener, told))
        serving.start()
        service = asks(scene, listener)
        words = ["env", "RANK=3", "WORLD_SIZE=8", sys.executable, str(PROGRAM), "several", SERVER, str(scene.port)]
        status, _, _ = scene.run(*words, **service, PARALET_JOB="bert")
        serving.join()
        Path(service["PARALET_PATH_SERVICE_TOKEN_FILE"]).unlink()
    assert status == 0
    (hello,) = [hello for hello in told if "rank" in hello]
    assert (hello["job"], hello["rank"], hello["ranks"], hello["fixed"]) == ("bert", 3, 8, True)


def test_files_of_tls_that_cannot_be_used_are_named_before_the_program_starts(scene: Scene, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    host = Authority(tmp_path / "ca").issue("host", "127.0.0.1")
    host.key.chmod(0o644)
    service = {
        "PARALET_PORTS": "",
        "PARALET_PATH_SERVICE": "127.0.0.1:1",
        "PARALET_PATH_SERVICE_TOKEN_FILE": str(token),
        "PARALET_PATH_SERVICE_CA": str(host.ca),
        "PARALET_PATH_SERVICE_CERTIFICATE": str(host.certificate),
        "PARALET_PATH_SERVICE_KEY": str(host.key),
    }
    status, out, err = scene.run("echo", "started", **service)
    assert (status, out) == (1, "")
    assert f"the key file {host.key} is open to others: make it your own with chmod 600" in err


def test_without_its_agent_a_program_runs_and_says_so_once(scene: Scene) -> None:
    words = [sys.executable, str(PROGRAM), "several", SERVER, str(scene.port)]
    status, out, err = scene.run("env", "PARALET_PIN_AGENT=/nowhere/agent", *words)
    assert status == 0
    assert all(port in PORTS_OF_KERNEL for port in json.loads(out))
    assert err == "paralet pin: the agent does not answer, so connections keep the ports that the kernel chooses\n"


@pytest.mark.parametrize("reply", [b"", b"\1\0\0\0".ljust(32, b"\0")], ids=["none", "other"])
def test_an_agent_of_another_version_is_told_once(scene: Scene, reply: bytes) -> None:
    path = Path(scene.environment["TMPDIR"]) / "other"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)

        def answer() -> None:
            for _ in range(2):
                with listener.accept()[0] as program:
                    program.recv(1 << 12)
                    program.sendall(reply)

        answering = threading.Thread(target=answer)
        answering.start()
        words = [sys.executable, str(PROGRAM), "several", SERVER, str(scene.port), "2"]
        status, out, err = scene.run("env", f"PARALET_PIN_AGENT={path}", *words)
        answering.join()
    path.unlink()
    assert status == 0
    assert all(port in PORTS_OF_KERNEL for port in json.loads(out))
    assert err == (
        "paralet pin: the agent gives no reply that this version of paralet knows, so connections keep the ports that "
        "the kernel chooses\n"
    )


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["no-such-program"], {}, "there is no program no-such-program"),
        (["true"], {"PARALET_PORTS": ""}, "PARALET_PATH_SERVICE"),
        (["true"], {"PARALET_POLICY": "ecmp"}, "PARALET_POLICY has to be controller or pinned"),
        (["true"], {"PARALET_PORTS": "x"}, "PARALET_PORTS"),
    ],
)
def test_what_cannot_be_started(scene: Scene, words: list[str], variables: dict[str, str], said: str) -> None:
    status, out, err = scene.run(*words, **variables)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_variables_for_a_process_that_has_ended(scene: Scene) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    command = [sys.executable, "-m", "testbed", "pin", "--variables", str(ended.pid)]
    ran = subprocess.run(command, env=scene.environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"there is no process {ended.pid}" in ran.stderr
    assert scene.folders == []


def test_check_of_a_process_that_is_not_ours(scene: Scene) -> None:
    command = [sys.executable, "-m", "testbed", "pin", "--check", str(os.getpid())]
    ran = subprocess.run(command, env=scene.environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert f"process {os.getpid()} was not started by `paralet pin`" in ran.stderr
