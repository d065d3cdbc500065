# SPDX-License-Identifier: Apache-2.0
"""Run a command in network, mount and PID namespaces of its own, which the kernel removes when the command ends.

Clean-up is not code that may be skipped: the command ends, its parent is killed, the terminal goes away, and in every
case process 1 of the PID namespace dies, with it every process of the sandbox, and with them the namespaces and all
that lived in them (bridges, veths, daemons, mounts). Nothing is looked for by name, so no one else's is ever touched.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from emul import sandbox_init

SCRATCH_DIR = Path(sandbox_init.SCRATCH)
"""Inside a sandbox: a tmpfs of its own, gone with it. Short, for UNIX socket paths have at most 107 bytes."""

GRACE_S = 15.0
"""How long a command that has been told to stop may take, unless `run` is told otherwise."""


class SandboxError(Exception):
    """A sandbox is missing or cannot be made; the text is one sentence for the user."""


def inside() -> bool:
    """Whether this process runs in a sandbox's main network namespace (not in an emulated host's, nor outside)."""
    mark = os.environ.get(sandbox_init.ENVIRONMENT_MARK)
    return mark is not None and mark == os.readlink("/proc/self/ns/net")


def require(what: str) -> None:
    """Raises SandboxError naming `what` unless this process runs in a sandbox."""
    if not inside():
        raise SandboxError(
            f"{what} runs only inside the sandbox, so that nothing of this machine is touched; "
            f"start it with `{Path(sys.executable).name} -m emul.sandbox COMMAND`"
        )


def namespace_argv(lifeline: int, argv: Sequence[str], grace_s: float = GRACE_S) -> list[str]:
    """The argument list that makes the namespaces and runs `argv` under process 1, which reads `lifeline`."""
    return [
        "unshare",
        "--net",
        "--mount",
        "--propagation=private",  # the default of unshare(1), said because a shared /sys mount would reach the machine
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-I",
        "-S",
        sandbox_init.__file__,
        str(lifeline),
        str(grace_s),
        *argv,
    ]


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Run `argv` in a new sandbox and wait; its exit status (128 + n when signal n ended it, 126 or 127 when not run).

    When this returns, every process of the sandbox is gone. The command leads a process group of its own. SIGINT and
    SIGTERM that reach this process meanwhile (in the main thread; Ctrl-C is the first of them) are told to the sandbox,
    which hands the first to that whole group and gives it `grace_s` seconds to end in its own way; a second signal, or
    the time run out, kills the sandbox (status 128 + SIGKILL). With `grace_s` = 0 the first signal n ends the sandbox
    at once and the status is 128 + n: for commands whose every trace goes with the sandbox anyway. It is also the only
    sure way to end a Python program: KeyboardInterrupt, raised wherever the program happens to be, is lost where
    somebody's code excepts everything, as Cython's does while numpy is imported.

    `stdin` is empty unless given; None passes ours on, and when that is a terminal of which we are in the foreground,
    the command is lent the foreground, and so gets Ctrl-C from the terminal itself.

    Raises SandboxError when the namespaces cannot be made at all (no root, no unshare).
    """
    if os.geteuid() != 0:
        raise SandboxError("the emulation needs root to make network namespaces; run the same command with sudo")
    lifeline_read, lifeline_write = os.pipe()
    with open(lifeline_write, "wb", buffering=0) as lifeline, _forwarding(lifeline):
        try:
            process = subprocess.Popen(
                namespace_argv(lifeline_read, argv, grace_s),
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(lifeline_read,),
                process_group=0,
            )
        except FileNotFoundError as error:
            raise SandboxError(f"cannot start a sandbox: {error.filename} is missing; install util-linux") from error
        finally:
            os.close(lifeline_read)
        with process, lifeline, _foreground(process.pid, stdin):  # whatever is raised here: first the lifeline ends
            status = process.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def _forwarding(lifeline: IO[bytes]) -> Iterator[None]:
    """While open, signals that ask to stop are written to `lifeline`, where they wait until process 1 reads them."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(BrokenPipeError, ValueError):  # process 1 has ended, or the lifeline is closed and it will
            lifeline.write(bytes([number]))

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    previous = {number: signal.signal(number, forward) for number in sandbox_init.STOPPING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _foreground(group: int, stdin: int | IO[bytes] | None) -> Iterator[None]:
    """While open, process group `group` is in the terminal's foreground, if it is to read the terminal and we were."""
    if stdin is not None or not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield
        return
    _set_foreground(group)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGCONT)  # it was stopped if it has read already
    try:
        yield
    finally:
        _set_foreground(os.getpgrp())


def _set_foreground(group: int) -> None:
    # A background process that does this is stopped by SIGTTOU unless it blocks it (tcsetpgrp(3)).
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with suppress(OSError):  # the group has ended
            os.tcsetpgrp(sys.stdin.fileno(), group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def main() -> int:
    """`python -m emul.sandbox COMMAND ...`: run a command in a sandbox by hand, at a terminal also interactively."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m emul.sandbox COMMAND [ARGUMENT ...]\n")
        return 2
    try:
        return run(sys.argv[1:], stdin=None)
    except SandboxError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
