# SPDX-License-Identifier: Apache-2.0
"""A second network namespace for a benchmark. Needs a sandbox."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def network_namespace() -> Iterator[int]:
    """A network namespace without interfaces, as the id of a process that does nothing else."""
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None  # it is a pipe
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def enter(pid: int) -> list[str]:
    """The argv prefix that runs a command in the network namespace of a process."""
    return ["nsenter", f"--net={file_of(pid)}"]


def file_of(pid: int) -> str:
    """The file that is the network namespace of a process."""
    return f"/proc/{pid}/ns/net"
