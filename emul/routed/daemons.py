# SPDX-License-Identifier: Apache-2.0
"""FRR's daemons of one router: zebra, which installs routes in the kernel, and bgpd."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from emul.commands import FabricError, run
from emul.routed.requirements import program

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01

# Sessions with timers of seconds must live on a machine whose processors are busy with packets.
_NICENESS = -10


class RoutingDaemons:
    """zebra and bgpd in a router's namespaces, which have a `/run/frr` of their own.

    configuration: the text of each daemon's configuration. enter: argv prefix that enters the namespaces. folder: for
    the configurations and logs. pid: the id of a process in the namespaces.
    """

    def __init__(
        self, router: str, configuration: dict[str, str], enter: Sequence[str], folder: Path, pid: int
    ) -> None:
        self._router = router
        self._configuration = configuration
        self._enter = enter
        self._folder = folder
        self._run_dir = Path(f"/proc/{pid}/root/run/frr")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start_zebra(self) -> None:
        """Start zebra. It reads its configuration meanwhile."""
        self._start("zebra")

    def start_bgpd(self) -> None:
        """Start bgpd as soon as zebra listens, or bgpd would look for it again only 10 s later. Raises FabricError."""
        self._wait_for("zserv.api")
        self._start("bgpd")

    def command(self, *lines: str) -> str:
        """Output of commands to bgpd, in the language of its terminal. Raises FabricError."""
        self._wait_for("bgpd.vty")
        arguments = [word for line in lines for word in ("-c", line)]
        return run([*self._enter, "vtysh", "-d", "bgpd", *arguments])

    def kill(self) -> None:
        """Kill the daemons, as a crash of the router would. The kernel's routes stay."""
        for process in self._processes:
            process.kill()
        self._reap()

    def stop(self) -> None:
        """Stop the daemons."""
        for process in self._processes:
            process.terminate()
        self._reap()

    def _reap(self) -> None:
        for process in self._processes:
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _start(self, name: str) -> None:
        path = program(name)
        assert path is not None  # see `emul.routed.requirements`
        for left in (f"{name}.pid", f"{name}.vty", "zserv.api" if name == "zebra" else ""):
            if left:
                (self._run_dir / left).unlink(missing_ok=True)
        (self._folder / f"{name}.conf").write_text(self._configuration[name])
        # The daemon reads it as user frr, who may not see the folder.
        (self._run_dir / f"{name}.conf").write_text(self._configuration[name])
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    # -P 0: no terminal over TCP
                    [*self._enter, path, "-f", f"/run/frr/{name}.conf", "-P", "0", "--log", "stdout"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,  # Ctrl-C must reach only the run
                )
            )
        with suppress(PermissionError):  # a container without CAP_SYS_NICE forbids it
            os.setpriority(os.PRIO_PROCESS, self._processes[-1].pid, _NICENESS)

    def _wait_for(self, socket: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (self._run_dir / socket).exists():
            if self._processes and self._processes[-1].poll() is not None:
                raise FabricError(f"a daemon of router {self._router} ended; see {self._folder}")
            if time.monotonic() > deadline:
                raise FabricError(f"{socket} of router {self._router} was not there in {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
