# SPDX-License-Identifier: Apache-2.0
"""Boot a guest and run one command in it; write its console to a log."""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from emul import sandbox
from emul.guest.command import GuestOptions, boot_script, guest_argv, job_script, watched_argv
from emul.guest.kernel import GuestError, cache_dir, find_kernel, find_tools
from emul.sandbox_init import STOPPING
from netmodel.printable import printable

_TIMED_OUT = (124, 128 + 9)  # timeout(1): by SIGTERM, by SIGKILL
_NO_STATUS = 255  # virtme-run: the guest ended before its command
_STOPPED = tuple(128 + number for number in STOPPING)  # this process got SIGINT or SIGTERM


def run(
    argv: Sequence[str],
    *,
    log: Path,
    options: GuestOptions | None = None,
    output: IO[bytes] | None = None,
    cwd: Path | None = None,
) -> int:
    """Run `argv` in a guest and wait. Returns its exit status. Needs root.

    The command's standard output and standard error go to `output` as they arrive (default: our standard output). The
    guest's console goes to the file `log`. The guest uses this machine's file system and starts in `cwd` (default: our
    working directory); its changes are lost, except in `options.writable`. QEMU runs in a sandbox, so no process
    outlives this call. SIGINT and SIGTERM end the guest at once with status 128 + the signal.

    A guest that ends or hangs before it has started the command is booted a second time, with a message on standard
    error. A command that has started is never run again.

    Raises GuestError when something is missing, when the time limit is exceeded, and when the guest ends without a
    status.
    """
    options = options or GuestOptions()
    where = (cwd or Path.cwd()).resolve()
    kernel, tools = find_kernel(cache_dir()), find_tools()
    log.parent.mkdir(parents=True, exist_ok=True)
    sink = output or sys.stdout.buffer
    until = time.monotonic() + options.time_limit_s
    with tempfile.TemporaryDirectory(prefix="paralet-guest-") as scratch, log.open("wb") as console:
        scripts, state = Path(scratch, "scripts"), Path(scratch, "state")
        scripts.mkdir()
        state.mkdir()
        job, boot, started = scripts / "job", scripts / "boot", state / "started"
        job.write_text(job_script(argv, where, started, options))
        boot.write_text(boot_script(job))
        for script in (job, boot):
            script.chmod(0o700)

        def attempt(time_limit_s: int) -> int:
            qemu = guest_argv(kernel, tools, boot, state, where, replace(options, time_limit_s=time_limit_s))
            # QEMU reopens its outputs, which would truncate a file, so it gets pipes.
            with _copied_to(_flushing(sink)) as stdout, _copied_to(_flushing(console)) as stderr:
                return sandbox.run(
                    watched_argv(qemu, started, options.boot_limit_s),
                    stdout=stdout,
                    stderr=stderr,
                    cwd=scratch,
                    grace_s=0.0,  # a guest has nothing to clean up
                )

        try:
            status = attempt(options.time_limit_s)
            left_s = int(until - time.monotonic())
            if not started.exists() and status not in _STOPPED and left_s > 0:
                sentence = f"the guest did not come up (status {status}); it is booted again"
                sys.stderr.write(f"{printable(sentence)}; its console is in {printable(log)}\n")
                console.write(f"\n-- {sentence} --\n".encode())
                status = attempt(left_s)
        except sandbox.SandboxError as error:
            raise GuestError(f"a guest cannot be started: {error}") from error
        came_up = started.exists()
    if not came_up and status not in _STOPPED:
        raise GuestError(f"the guest did not come up; its console is in {log}")
    if status in _TIMED_OUT:
        raise GuestError(f"the guest did not finish within {options.time_limit_s} s; its console is in {log}")
    if status == _NO_STATUS:
        raise GuestError(f"the guest ended before its command did; its console is in {log}")
    return status


def _flushing(sink: IO[bytes]) -> Callable[[bytes], object]:
    def write(data: bytes) -> None:
        sink.write(data)
        sink.flush()

    return write


@contextmanager
def _copied_to(write: Callable[[bytes], object]) -> Iterator[int]:
    """The writing end of a pipe whose data goes to `write`. On exit all data has been written."""
    reading, writing = os.pipe()

    def copy() -> None:
        while data := os.read(reading, 1 << 16):
            write(data)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join()
        os.close(reading)
