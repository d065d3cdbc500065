# SPDX-License-Identifier: Apache-2.0
"""The kernel's SoftRoCE (rdma_rxe): RoCEv2 devices on ordinary network interfaces.

Up to Linux 7.0 rxe works only in the kernel's first network namespace: a device made in another namespace appears
active, but its UDP socket is in the first one, so no packet reaches it. `per_namespace` tests the running kernel.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from netmodel import ROCE_PORT, Host

_TIMEOUT_S = 60.0
_PROBE = (
    "ip link add paraletprobe type dummy && ip link set paraletprobe up && "
    "rdma link add paraletprobe type rxe netdev paraletprobe && cat /proc/net/udp && rdma link del paraletprobe"
)


class RxeError(Exception):
    """The kernel has no SoftRoCE, or it rejects a device. The text is one sentence for the user."""


def load() -> None:
    """Load the kernel module rdma_rxe if it is not loaded. Raises RxeError."""
    if Path("/sys/module/rdma_rxe").is_dir():
        return
    try:
        subprocess.run(["modprobe", "-q", "rdma_rxe"], check=True, capture_output=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise RxeError(
            "this kernel has no rdma_rxe (SoftRoCE); run in a guest whose kernel has it (docs/softroce.md)"
        ) from error


def per_namespace() -> bool:
    """Whether rxe works in every network namespace of this kernel. Needs root; leaves nothing behind."""
    try:
        load()
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired, RxeError):
        return False
    return done.returncode == 0 and listens(done.stdout)


def listens(proc_net_udp: str) -> bool:
    """Whether a socket is bound to UDP port 4791, from the text of a namespace's /proc/net/udp."""
    local = (line.split()[1] for line in proc_net_udp.splitlines()[1:])
    return any(int(address.rpartition(":")[2], 16) == ROCE_PORT for address in local)


def device_name(host: Host, nic: int) -> str:
    """Name of the rxe device on a host's NIC. It has the host's name in it: names are unique per kernel."""
    return f"rxe-{host.name}-{nic}"


def add(device: str, interface: str, enter: Sequence[str] = ()) -> None:
    """Make an rxe device on `interface`. `enter`: argv prefix that enters its namespace. Raises RxeError."""
    _rdma([*enter, "rdma", "link", "add", device, "type", "rxe", "netdev", interface])
    table = subprocess.run([*enter, "cat", "/proc/net/udp"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    if not listens(table.stdout):
        raise RxeError(
            f"device {device} does not listen: this kernel keeps SoftRoCE in its first network namespace; "
            "run in a guest (docs/softroce.md)"
        )


def remove(device: str, enter: Sequence[str] = ()) -> None:
    """Remove a device. It is not an error when the device disappeared with its interface."""
    subprocess.run([*enter, "rdma", "link", "del", device], capture_output=True, timeout=_TIMEOUT_S)


def _rdma(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError as error:
        raise RxeError(f"{error.filename} is missing; install it with `apt install iproute2`") from error
    except subprocess.TimeoutExpired as error:
        raise RxeError(f"{' '.join(argv)} did not end in {_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise RxeError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
