# SPDX-License-Identifier: Apache-2.0
"""What an agent says of the connections of its programs, and the agent of a process."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from pathlib import Path

import msgspec

from paralet_pin.launch import AGENT

_CHECK = 6  # RequestKind::kCheck of native/src/agent_protocol.hpp
_MAGIC = 0x70696E03
_REQUEST_BYTES = 184
_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 26
_ENVIRON_BYTES = 1 << 21
_NS_GET_PARENT = 0xB702  # linux/nsfs.h
_HANGS = 2  # timeouts in a row; the loss of a last packet costs one


class CheckError(Exception):
    """There is no answer. The message is one sentence."""


class Course(msgspec.Struct, kw_only=True):
    """Between which sockets a flow goes, but for its source port."""

    pid: int
    what: str
    protocol: str
    local: str
    remote: str
    remote_port: int


class Pinned(Course, kw_only=True):
    """A flow that has a planned port. Bytes are those that the receiver has acknowledged."""

    port: int
    planned_port: int
    """Of the plan as it is now. A socket keeps the port that it has."""
    path: list[str] = []
    """The ports by which its packets leave hosts and switches, as the path service told last. Empty: it did not."""
    probed_s: float | None = None
    """For how many seconds at least nobody has probed the path: routers may have changed it since. None: it follows the
    routes, or nobody has told it."""
    bytes: int
    timeouts: int
    """Retransmissions of TCP in a row to which nobody has answered in time."""
    elephant: bool
    """Whether it has carried 1 MiB, and not rested for 60 s since."""

    @property
    def hangs(self) -> bool:
        """Whether its path or its peer is dead, as far as TCP knows."""
        return self.timeouts >= _HANGS


class NotPinned(Course, kw_only=True):
    """A flow with a port of the kernel's or of the program's, and why."""

    why: str


class Waiting(Course, kw_only=True):
    """A flow whose program waits for its port, and has waited for so many seconds."""

    waited_s: float


class Report(msgspec.Struct, kw_only=True):
    """All flows of an agent's programs."""

    format: str
    job: str
    path_service: bool
    clients: int
    connected: int
    asked: int
    given: int
    pid_namespace: int = 0
    """Of the agent, in whose ids all `pid` are: the inode of its /proc/self/ns/pid. 0: that of whoever reads this."""
    pinned: list[Pinned]
    not_pinned: list[NotPinned]
    waiting: list[Waiting] = []
    longest_wait_s: float = 0.0
    """The longest time that a program has waited for a port, or for the answer that there is none."""

    def of(self, pids: set[int]) -> Report:
        """The flows of these processes, whose ids are those of this process's namespace."""
        pids = {own for pid in pids if (own := _id_in(self.pid_namespace, pid)) is not None}
        return msgspec.structs.replace(
            self,
            pinned=[flow for flow in self.pinned if flow.pid in pids],
            not_pinned=[flow for flow in self.not_pinned if flow.pid in pids],
            waiting=[flow for flow in self.waiting if flow.pid in pids],
        )


def _id_in(namespace: int, pid: int) -> int | None:
    """The id of a process in its own namespace or one around it (pid_namespaces(7)). None: it cannot be known."""
    if not namespace:
        return pid
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        ids = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
        at = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for number in reversed(ids):
                if os.fstat(at).st_ino == namespace:
                    return int(number)
                parent = fcntl.ioctl(at, _NS_GET_PARENT)
                os.close(at)
                at = parent
        finally:
            os.close(at)
    except OSError:  # the process has ended, or no namespace around it is the agent's
        pass
    return None


def agent_of(pid: int) -> Path:
    """The socket of a process's agent, as its environment names it. Raises CheckError."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read(_ENVIRON_BYTES).split(b"\0")
    except FileNotFoundError:
        raise CheckError(f"there is no process {pid}") from None
    except OSError as error:
        raise CheckError(f"the environment of process {pid} cannot be read: {error.strerror}") from None
    prefix = f"{AGENT}=".encode()
    found = next((entry.removeprefix(prefix) for entry in variables if entry.startswith(prefix)), b"")
    if not found:
        raise CheckError(f"process {pid} was not started by `paralet pin`")
    return Path(os.fsdecode(found))


def ask(agent: Path, owner: int | None = None, timeout_s: float = _TIMEOUT_S, most_bytes: int = _MOST_BYTES) -> Report:
    """What the agent at this socket says, as long as it runs as user `owner`, if that is given. Raises CheckError."""
    request = (_MAGIC.to_bytes(4, "little") + bytes([_CHECK])).ljust(_REQUEST_BYTES, b"\0")
    answer = bytearray()
    deadline_s = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(timeout_s)
            asking.connect(str(agent))
            if owner is not None and _user_of(asking) != owner:
                raise CheckError(f"the agent at {agent} is another user's")
            asking.sendall(request)
            while (more := asking.recv(1 << 16)) and len(answer) < most_bytes:
                answer += more
                asking.settimeout(max(0.001, deadline_s - time.monotonic()))
    except OSError as error:
        raise CheckError(f"the agent at {agent} does not answer: {error.strerror or error}") from None
    try:
        return msgspec.json.decode(answer, type=Report)
    except msgspec.MsgspecError:
        raise CheckError(f"the agent at {agent} is of another version of paralet") from None


def _user_of(connected: socket.socket) -> int:
    """Who listens at the other end of a Unix socket."""
    who = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", who)[1])


def children_of(pid: int) -> set[int]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    parents[int(entry.name)] = int(file.read(4096).rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found, size = {pid}, 0
    while len(found) > size:
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found
