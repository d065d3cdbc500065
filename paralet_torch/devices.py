# SPDX-License-Identifier: Apache-2.0
"""The device of this process, which its process groups share."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from hostlib import Device
from hostlib.parameters import read_parameters

_lock = threading.Lock()
_device: Device | None = None
_users = 0


def acquire() -> Device:
    """The device, opened by the first caller with the `PARALET_*` variables of that moment.

    A forked child has a device of its own. Raises ValueError for wrong variables, and DeviceError when the device
    cannot be opened.
    """
    global _device, _users
    with _lock:
        if _device is None:
            _device = _open(os.environ)
        _users += 1
        return _device


def release(device: Device) -> None:
    """Undo one `acquire`, which returned this device. The last one closes it."""
    global _device, _users
    with _lock:
        if device is not _device:
            return  # that of the parent process
        _users -= 1
        if _users == 0:
            device.close()
            _device = None


def _leave_to_parent() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global _lock, _device, _users
    _lock, _device, _users = threading.Lock(), None, 0


os.register_at_fork(after_in_child=_leave_to_parent)


def _open(environment: Mapping[str, str]) -> Device:
    parameters = read_parameters(environment)
    local_rank = environment.get("LOCAL_RANK", "")
    # Without PARALET_IFNAME and PARALET_ADDRESSES the ranks use the network on which they found each other.
    address = parameters.address(environment.get("MASTER_ADDR"), int(local_rank) if local_rank.isdecimal() else 0)
    return Device(address, **parameters.options)
