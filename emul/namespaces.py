# SPDX-License-Identifier: Apache-2.0
"""Moves a process into the namespaces of a host without executing another program."""

import ctypes
import os


def enter(pid: int) -> None:
    """Move this process, which must have one thread, into the network and mount namespaces of process `pid`.

    The working directory stays the same. Raises OSError.
    """
    folder = os.getcwd()
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as net, open(f"/proc/{pid}/ns/mnt") as mnt:
        for namespace in (net, mnt):
            if libc.setns(namespace.fileno(), 0) != 0:
                error = ctypes.get_errno()
                raise OSError(error, f"cannot enter {namespace.name}: {os.strerror(error)}")
    os.chdir(folder)  # setns(2) has changed it to the root of the mount namespace
