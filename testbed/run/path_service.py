# SPDX-License-Identifier: Apache-2.0
"""The path service of a run: starts and kills it, and reports dead links, or what routers have chosen, to it."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from emul.management import MANAGEMENT_ADDRESS
from emul.sandbox import SCRATCH_DIR
from netmodel import Link
from netmodel import Path as LinkPath
from netmodel.printable import printable
from sdn.path_service.admin import AdminError, LinkChange, NextHopsRead, Pin, Request, Status, admin_socket, ask
from sdn.path_service.next_hops import NextHops, listed
from sdn.path_service.token import TokenError, read_token
from testbed.errors import TestbedError
from testbed.spec import Experiment, Policy

SERVICE_PORT = 4792
"""TCP port of the service. It is free because the sandbox has a network namespace of its own."""

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
_PROGRAM = (sys.executable, "-m", "testbed.run.path_service_program")


class PathServiceProcess:
    """The process of one path service. A context manager: it answers when entered, and has ended when left.

    `argv` is the command with all options except --listen and --token-file. Without `reads_routers` it is told nothing
    that is read from routers: its hosts find out.
    """

    def __init__(
        self,
        argv: Sequence[str],
        log_file: Path,
        scratch_dir: Path,
        address: str = f"{MANAGEMENT_ADDRESS}:{SERVICE_PORT}",
        *,
        reads_routers: bool = True,
    ) -> None:
        self._reads_routers = reads_routers
        self.address = address
        self.token_file = scratch_dir / "token"
        self._admin = admin_socket(self.token_file)
        self._argv = argv
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # one thread starts and kills it, another one reports links
        self._dead: frozenset[Link] = frozenset()
        self._groups: NextHops | None = None
        self._kept: Mapping[tuple[str, str], LinkPath] = {}
        self.reported_s: float | None = None
        """When it had last sent hosts new paths after a link change, in seconds of the monotonic clock."""

    def __enter__(self) -> "PathServiceProcess":
        self.token_file.parent.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def start(self) -> None:
        """Start it unless it runs; returns when it answers. Raises TestbedError when it does not answer."""
        with self._lock:
            if self._process is not None:
                return
            with self._log_file.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._argv, "--listen", self.address, "--token-file", str(self.token_file)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._await_answer(self._process)
            self._tell(self._dead, up=False)
            self._tell_groups()
            self._tell_kept()

    def kill(self) -> None:
        """Kill it without notice to hosts."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None

    def status(self) -> dict[str, Any]:
        """Its status, as `paralet path-service status --json` prints it; empty when it does not run."""
        with self._lock, suppress(AdminError):
            if self._process is not None:
                return ask(self._admin, Status(read_token(self.token_file)))
        return {}

    def dead_links(self, dead: Sequence[Link]) -> None:
        """Report the links that are dead now. When it does not run, they are reported when it is started again."""
        with self._lock:
            fresh = frozenset(dead)
            gone, back = fresh - self._dead, self._dead - fresh
            self._dead = fresh
            if self._process is not None:
                self._tell(gone, up=False)
                self._tell(back, up=True)

    def follow(self, groups: NextHops) -> None:
        """Report the groups of switches that were read; again whenever it starts."""
        if not self._reads_routers:
            return
        with self._lock:
            self._groups = groups
            if self._process is not None:
                self._tell_groups()

    def keep_to(self, paths: Mapping[tuple[str, str], LinkPath]) -> None:
        """Have it keep to these paths between two addresses, also when it is started again. Raises TestbedError."""
        with self._lock:
            self._kept = paths
            if self._process is not None:
                self._tell_kept()

    def _tell_kept(self) -> None:
        for (src, dst), path in self._kept.items():
            between = tuple(str(port) for port in path[1:-1])
            try:
                ask(self._admin, Pin(read_token(self.token_file), src, dst, between))
            except AdminError as error:
                raise TestbedError(f"the path service cannot keep to a path from {src} to {dst}: {error}") from error

    def _tell_groups(self) -> None:
        if self._groups is not None:
            self._report(lambda token: NextHopsRead(token, listed(self._groups or {})), "the routers' next hops")

    def _tell(self, links: frozenset[Link], *, up: bool) -> None:
        for link in sorted(links, key=lambda link: link.a):
            self._report(partial(_link_change, link, up), f"the change of link {link.a} to {link.b}")

    def _report(self, request: Callable[[str], Request], what: str) -> None:
        try:
            ask(self._admin, request(read_token(self.token_file)))
            self.reported_s = time.monotonic()
        except AdminError as error:
            with self._log_file.open("a") as log:
                print(printable(f"the runner could not report {what}: {error}"), file=log)

    def _await_answer(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            if process.poll() is not None:
                raise TestbedError(f"the path service ended with status {process.returncode}; see {self._log_file}")
            try:
                ask(self._admin, Status(read_token(self.token_file)))
                return
            except (AdminError, TokenError):  # it is still starting
                if time.monotonic() > deadline:
                    process.kill()
                    raise TestbedError(f"the path service does not answer; see {self._log_file}") from None
                time.sleep(0.02)


def _link_change(link: Link, up: bool, token: str) -> LinkChange:
    return LinkChange(token, str(link.a), up)


Services: TypeAlias = Callable[[Policy, str], AbstractContextManager[PathServiceProcess | None]]
"""Runs the path service for a policy; None for a policy that needs none. The string is part of its logs' names."""


def no_services(policy: Policy, name: str) -> AbstractContextManager[None]:
    """For fabrics without a path service."""
    return nullcontext()


class PathServices:
    """Runs the path services of an experiment one after the other and reports dead links to each."""

    def __init__(self, experiment: Experiment, log_dir: Path) -> None:
        self._experiment = experiment
        self._log_dir = log_dir
        self._current: PathServiceProcess | None = None
        self._dead: Sequence[Link] = ()

    def dead_links(self, dead: Sequence[Link]) -> None:
        """Set the links that are dead now. Thread-safe."""
        self._dead = dead
        if (service := self._current) is not None:
            service.dead_links(dead)

    @contextmanager
    def serving(self, policy: Policy, name: str) -> Iterator[PathServiceProcess | None]:
        """Runs the path service for `policy` inside the context."""
        if not policy.needs_service:
            yield None
            return
        argv = [*_PROGRAM, "--topology", str(self._log_dir / "topology.yaml")]
        argv += ["--planner", policy.planner_name]
        argv += ["--rates"] if policy.rates else []
        argv += ["--rules"] if self._experiment.spec.pinning == "rules" else []
        routers = self._experiment.spec.routers
        measured = self._experiment.spec.measures
        if measured:
            argv += ["--measured", "loopbacks" if routers.unnumbered else "links"]
        elif self._experiment.spec.fabric_kind.routers:
            argv += ["--routers", routers.hash]
            argv += [f"--hash-offset={role}={bits}" for role, bits in routers.hash_offset.items()]
        argv += ["--event-log", str(self._log_dir / f"path-service-{name}.jsonl")]
        log_file = self._log_dir / f"path-service-{name}.log"
        with PathServiceProcess(argv, log_file, SCRATCH_DIR / "paths", reads_routers=not measured) as service:
            service.dead_links(self._dead)
            self._current = service
            try:
                yield service
            finally:
                self._current = None
