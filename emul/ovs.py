# SPDX-License-Identifier: Apache-2.0
"""A private Open vSwitch: its own database and daemon in a directory of the sandbox.

Every OVS tool derives its sockets from OVS_RUNDIR and its database from OVS_DBDIR, also when Mininet calls it. With
these variables set, no command reaches the machine's own OVS, whose sockets are elsewhere.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from emul import unixctl

Datapath = Literal["user", "kernel"]

OPENFLOW = "OpenFlow15"
"""The OpenFlow version that bridges speak to our app and to commands, by OVS's name for it."""

OPENFLOW_VERSIONS = f"OpenFlow13,OpenFlow14,{OPENFLOW}"
"""Those of all bridges. An app takes the latest that it knows."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 120

_NICENESS = -10

# In every iteration of its loop the userspace datapath allocates 32 buffers of MTU size per port, and frees them if
# nothing arrived. By default glibc returns this memory to the kernel and requests it again. Measured with 48 ports of
# MTU 9000: 128 brk(2) calls per iteration, three quarters of the daemon's time.
_ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 26),
}

_NEVER_MS = 3_600_000
"""Idle time in ms after which OVS removes a datapath flow. With the default of 10 s, slow flows need another upcall."""

_SCHEMA_CANDIDATES = (
    "/usr/share/openvswitch/vswitch.ovsschema",
    "/usr/local/share/openvswitch/vswitch.ovsschema",
)


class OvsError(Exception):
    """OVS is missing, does not start, or rejects a command. The text is one sentence for the user."""


def find_schema() -> Path:
    """The database schema file of the installed OVS. Raises OvsError."""
    places = [os.environ["OVS_PKGDATADIR"] + "/vswitch.ovsschema"] if "OVS_PKGDATADIR" in os.environ else []
    for place in (*places, *_SCHEMA_CANDIDATES):
        if Path(place).is_file():
            return Path(place)
    raise OvsError("the Open vSwitch schema is missing; install it with `apt install openvswitch-switch`")


def kernel_datapath_present() -> bool:
    """Whether the openvswitch kernel module is loaded or built in."""
    return Path("/sys/module/openvswitch").is_dir()


def load_kernel_datapath() -> None:
    """Load the openvswitch kernel module if it is not loaded. Raises OvsError."""
    if kernel_datapath_present():
        return
    try:
        subprocess.run(["modprobe", "-q", "openvswitch"], check=True, capture_output=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise OvsError(
            "the kernel datapath needs the openvswitch module; load it with `modprobe openvswitch`, "
            'or use datapath "user"'
        ) from error


class PrivateOvs:
    """ovsdb-server and ovs-vswitchd of one run, as a context manager. While open, this process has the OVS_* variables.

    run_dir: created for sockets, pid files and database, and removed at the end. The path must be short, because UNIX
        socket paths have at most 107 bytes.
    log_dir: directory for the daemons' logs.

    Entering raises OvsError when a program is missing, a daemon does not start, or `run_dir` exists.
    """

    def __init__(self, run_dir: Path, log_dir: Path) -> None:
        self.run_dir = run_dir
        self.log_dir = log_dir
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._previous: dict[str, str | None] = {}
        self._made_run_dir = False

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that direct every OVS tool to this instance."""
        return {
            "OVS_RUNDIR": str(self.run_dir),
            "OVS_DBDIR": str(self.run_dir),
            "OVS_SYSCONFDIR": str(self.run_dir),
            "OVS_LOGDIR": str(self.log_dir),
        }

    @property
    def vswitchd_pid(self) -> int:
        """Process id of the running ovs-vswitchd."""
        return self._daemons[1].pid

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def command(self, *argv: str) -> str:
        """Output of an OVS tool (`ovs-vsctl`, `ovs-appctl`, ...). Raises OvsError with the tool's own message."""
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, env={**os.environ, **self.environment}
            )
        except FileNotFoundError as error:
            raise OvsError(f"{argv[0]} is missing; install it with `apt install openvswitch-switch`") from error
        except subprocess.TimeoutExpired as error:
            raise OvsError(f"{' '.join(argv)} gave no answer in {_COMMAND_TIMEOUT_S} s; see {self.log_dir}") from error
        if done.returncode != 0:
            raise OvsError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def appctl(self, method: str, *params: str) -> str:
        """Output of an `ovs-appctl` command to ovs-vswitchd. Raises OvsError."""
        control = self.run_dir / f"ovs-vswitchd.{self.vswitchd_pid}.ctl"
        try:
            return unixctl.ask(control, method, *params, timeout_s=_COMMAND_TIMEOUT_S)
        except (OSError, ValueError) as error:
            command = " ".join((method, *params))
            raise OvsError(f"ovs-vswitchd did not do '{command}': {error}; see {self.log_dir}") from error

    def _start(self) -> None:
        schema = find_schema()
        try:
            self.run_dir.mkdir(parents=True)
        except FileExistsError as error:
            raise OvsError(f"{self.run_dir} exists: another Open vSwitch of this sandbox uses it") from error
        self._made_run_dir = True
        self.log_dir.mkdir(parents=True, exist_ok=True)
        for name, value in self.environment.items():  # Mininet runs ovs-vsctl with the environment of this process
            self._previous[name] = os.environ.get(name)
            os.environ[name] = value
        database, socket = self.run_dir / "conf.db", self.run_dir / "db.sock"
        self.command("ovsdb-tool", "create", str(database), str(schema))
        self._spawn(["ovsdb-server", str(database), f"--remote=punix:{socket}"])
        self._wait_for(socket)
        self.command("ovs-vsctl", "--no-wait", "init")
        # One handler and one revalidator thread leave the cores to the hosts. The userspace datapath needs no handlers.
        self.command(
            "ovs-vsctl",
            "--no-wait",
            "set",
            "Open_vSwitch",
            ".",
            f"other_config:max-idle={_NEVER_MS}",
            "other_config:flow-limit=1000000",
            "other_config:n-handler-threads=1",
            "other_config:n-revalidator-threads=1",
        )
        self._spawn(["ovs-vswitchd", f"unix:{socket}"])
        self._wait_for(self.run_dir / "ovs-vswitchd.pid")
        # On a busy machine the network gets the CPU first. A container without CAP_SYS_NICE forbids this, and works.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, self.vswitchd_pid, _NICENESS)
        # Without --no-wait, ovs-vsctl returns when ovs-vswitchd has applied the configuration.
        self.command("ovs-vsctl", f"--timeout={int(_START_TIMEOUT_S)}", "show")

    def _spawn(self, argv: Sequence[str]) -> None:
        program = shutil.which(argv[0], path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")
        if program is None:
            raise OvsError(f"{argv[0]} is missing; install it with `apt install openvswitch-switch`")
        options = ["--pidfile", f"--log-file={self.log_dir / (argv[0] + '.log')}", "-vconsole:off", "--no-chdir"]
        self._daemons.append(
            subprocess.Popen(
                [program, *argv[1:], *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C must reach only the run, which then stops the daemons in order
                env={**os.environ, **self.environment, **_ALLOCATOR},
            )
        )

    def _wait_for(self, path: Path) -> None:
        daemon, deadline = self._daemons[-1], time.monotonic() + _START_TIMEOUT_S
        while not path.exists():
            if daemon.poll() is not None:
                raise OvsError(f"{self._name(daemon)} ended with status {daemon.returncode}; see {self.log_dir}")
            if time.monotonic() > deadline:
                raise OvsError(f"{self._name(daemon)} was not ready in {_START_TIMEOUT_S:.0f} s; see {self.log_dir}")
            time.sleep(0.01)

    @staticmethod
    def _name(daemon: "subprocess.Popen[bytes]") -> str:
        arguments = daemon.args
        assert isinstance(arguments, list)
        return Path(str(arguments[0])).name

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        for name, value in self._previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._previous.clear()
        if self._made_run_dir:
            shutil.rmtree(self.run_dir, ignore_errors=True)
            self._made_run_dir = False
