# SPDX-License-Identifier: Apache-2.0
"""Moves a process or a thread into the namespaces of a host without executing another program."""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_CLONE_NEWNET = 0x40000000  # linux/sched.h

_Result = TypeVar("_Result")


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


def within(pid: int, action: Callable[[], _Result]) -> _Result:
    """The result of `action`, run by a thread of its own in the network namespace of process `pid`.

    Sockets that it opens stay in that namespace. Raises OSError, and what `action` raises.
    """

    def entered() -> _Result:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{pid}/ns/net") as net:
            if libc.setns(net.fileno(), _CLONE_NEWNET) != 0:
                error = ctypes.get_errno()
                raise OSError(error, f"cannot enter {net.name}: {os.strerror(error)}")
        return action()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(entered).result()
