# SPDX-License-Identifier: Apache-2.0
"""Run a command in network, mount and PID namespaces of its own, which the kernel removes when the command ends.

Clean-up does not depend on code that could be skipped. When the command ends, its parent is killed or the terminal
disappears, process 1 of the PID namespace ends. The kernel then kills every process of the sandbox and removes the
namespaces with everything in them: bridges, veths, mounts. Nothing is searched by name, so nothing outside is touched.
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
from netmodel.printable import printable

SCRATCH_DIR = Path(sandbox_init.SCRATCH)
"""Inside a sandbox: a private tmpfs. The path is short, because UNIX socket paths have at most 107 bytes."""

GRACE_S = 15.0
"""Default time in seconds that a command has to end after a signal."""


class SandboxError(Exception):
    """A sandbox is missing or cannot be made. The text is one sentence for the user."""


def inside() -> bool:
    """Whether this process runs in the main network namespace of a sandbox, not in an emulated host's or outside."""
    mark = os.environ.get(sandbox_init.ENVIRONMENT_MARK)
    return mark is not None and mark == os.readlink("/proc/self/ns/net")


def require(what: str) -> None:
    """Raises SandboxError, which names `what`, unless this process runs in a sandbox."""
    if not inside():
        raise SandboxError(
            f"{what} runs only inside the sandbox, which protects the machine's own network; "
            f"start it with `{Path(sys.executable).name} -m emul.sandbox COMMAND`"
        )


def namespace_argv(lifeline: int, argv: Sequence[str], grace_s: float = GRACE_S) -> list[str]:
    """The argv that makes the namespaces and runs `argv` under process 1, which reads file descriptor `lifeline`."""
    return [
        "unshare",
        "--net",
        "--mount",
        "--propagation=private",  # unshare(1)'s default, stated because a shared /sys mount would propagate outside
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
    """Run `argv` in a new sandbox and wait. Returns its exit status.

    The status is 128 + n when signal n ended the command, and 126 or 127 when it could not be run. When this function
    returns, every process of the sandbox is gone. The command leads a process group of its own.

    While the command runs, SIGINT (Ctrl-C) and SIGTERM that reach this process's main thread are forwarded: the first
    signal goes to the command's process group, which has `grace_s` seconds to end. A second signal, or the end of that
    time, kills the sandbox (status 128 + SIGKILL). With `grace_s` = 0 the first signal n kills the sandbox at once and
    the status is 128 + n; this suits commands that leave nothing outside the sandbox. It is also the only reliable way
    to end a Python program: code that catches all exceptions swallows KeyboardInterrupt, as Cython's code does while
    numpy is imported.

    `stdin` is empty by default. With None the command inherits the standard input of this process; if that is a
    terminal and this process is in its foreground, the command is put into the foreground and gets Ctrl-C directly.

    Raises SandboxError without root or without unshare(1).
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
        with process, lifeline, _foreground(process.pid, stdin):  # on an exception the lifeline is closed first
            status = process.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def _forwarding(lifeline: IO[bytes]) -> Iterator[None]:
    """While open, SIGINT and SIGTERM are written to `lifeline`, a pipe from which process 1 reads them."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(BrokenPipeError, ValueError):  # process 1 has ended, or ends because the lifeline is closed
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
    """While open, process group `group` is in the foreground of the terminal.

    Nothing happens if the command does not inherit the terminal, or if this process is not in its foreground.
    """
    if stdin is not None or not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield
        return
    _set_foreground(group)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGCONT)  # it was stopped if it has already read from the terminal
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
    """`python -m emul.sandbox COMMAND ...`: run a command, also an interactive one, in a sandbox."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m emul.sandbox COMMAND [ARGUMENT ...]\n")
        return 2
    try:
        return run(sys.argv[1:], stdin=None)
    except SandboxError as error:
        sys.stderr.write(f"{printable(error)}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
