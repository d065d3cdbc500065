# SPDX-License-Identifier: Apache-2.0
"""The first process of a sandbox: set up the new namespaces, run one command, reap processes, and end on request.

It is process 1 of a new PID namespace, so when it ends, for any reason, the kernel kills every process of the sandbox.
The network namespace (bridges, veths) and the mount namespace (tmpfs, sysfs) disappear with the last process. It is run
by path with ``python -I -S`` and uses the standard library only, to start fast and independently of this package.

LIFELINE_FD is a pipe from the process that made the sandbox. End of file ends the sandbox at once. A byte is the
number of a signal, which is sent to the command's process group; the command then has GRACE_S seconds to end. A second
byte ends the sandbox at once.

usage: sandbox_init.py LIFELINE_FD GRACE_S COMMAND [ARGUMENT ...]
"""

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time

ENVIRONMENT_MARK = "PARALET_SANDBOX"
SCRATCH = "/dev/shm"  # exists on every Linux; the sandbox mounts a tmpfs of its own there, which disappears with it

STOPPING = (signal.SIGINT, signal.SIGTERM)

EXIT_NOT_RUN = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNAL_BASE = 128

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8  # linux/mount.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h
_IFREQ = struct.Struct("16sh22x")  # struct ifreq with ifr_flags


def _mount(kind: str, target: str, flags: int, options: str | None = None) -> None:
    """mount(2) of a new file system. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    data = options.encode() if options else None
    if libc.mount(kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind} on {target}: {os.strerror(code)}")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = _IFREQ.unpack(fcntl.ioctl(control, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))


def _prepare() -> None:
    """Mount a /sys of this network namespace and a private scratch tmpfs, and bring loopback up. Raises OSError."""
    _mount("sysfs", "/sys", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount("tmpfs", SCRATCH, _MS_NOSUID | _MS_NODEV, "mode=1777")
    _loopback_up()


def _start(argv: list[str], lifeline: int) -> int:
    """Fork and execute the command with default signal handling. Returns its process id; STOPPING is ignored after."""
    # The signals are blocked, because Python drops a signal that the child gets before it knows that it is the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    pid = os.fork()
    if pid:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid
    try:
        os.close(lifeline)
        signal.set_wakeup_fd(-1)
        for number in (*STOPPING, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"sandbox: cannot run {argv[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(EXIT_NOT_FOUND if error.errno == errno.ENOENT else EXIT_NOT_RUN)
    finally:
        os._exit(EXIT_NOT_RUN)


def _reap(command: int) -> int | None:
    """Reap every ended child, orphans of the sandbox included. Returns the command's exit status once it has ended."""
    status = None
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == command:
            code = os.waitstatus_to_exitcode(wait_status)
            status = code if code >= 0 else EXIT_SIGNAL_BASE - code


def _supervise(command: int, lifeline: int, wakeup: int, grace_s: float) -> int:
    """Wait until the command ends or the sandbox must end. Returns the exit status."""
    killed = EXIT_SIGNAL_BASE + signal.SIGKILL
    deadline = None
    poller = select.poll()
    poller.register(wakeup, select.POLLIN)
    poller.register(lifeline, select.POLLIN)
    while (status := _reap(command)) is None:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            return killed
        for descriptor, _events in poller.poll(None if left_s is None else left_s * 1000):
            if descriptor == wakeup:
                os.read(wakeup, 512)
                continue
            signals = os.read(lifeline, 1)
            if not signals or deadline is not None:
                return killed
            if grace_s == 0:
                return EXIT_SIGNAL_BASE + signals[0]
            deadline = time.monotonic() + grace_s
            os.killpg(0, signals[0])
    return status


def main() -> int:
    """Returns the command's exit status; 128 + n when signal n ended it; 126 when the sandbox cannot be set up."""
    lifeline, grace_s = int(sys.argv[1]), float(sys.argv[2])
    # Signals that do not arrive by the lifeline come from a terminal, which signals the whole process group, so the
    # command gets them too. This process outlives it; before the command has started they end this process.
    for number in STOPPING:
        signal.signal(number, lambda caught, _frame: os._exit(EXIT_SIGNAL_BASE + caught))
    try:
        _prepare()
    except OSError as error:
        sys.stderr.write(f"sandbox: cannot be set up: {error.strerror or error}\n")
        return EXIT_NOT_RUN
    os.environ[ENVIRONMENT_MARK] = os.readlink("/proc/self/ns/net")
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # without a handler no byte is written to the pipe
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    command = _start(sys.argv[3:], lifeline)
    return _supervise(command, lifeline, wakeup_read, grace_s)


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())  # skips the interpreter's shutdown: the kernel removes everything
