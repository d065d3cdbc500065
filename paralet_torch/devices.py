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

    Raises ValueError for wrong variables and DeviceError when the device cannot be opened.
    """
    global _device, _users
    with _lock:
        if _device is None:
            _device = _open(os.environ)
        _users += 1
        return _device


def release() -> None:
    """Undo one `acquire`. The last one closes the device."""
    global _device, _users
    with _lock:
        _users -= 1
        if _users == 0 and _device is not None:
            _device.close()
            _device = None


def _open(environment: Mapping[str, str]) -> Device:
    parameters = read_parameters(environment)
    local_rank = environment.get("LOCAL_RANK", "")
    # Without PARALET_IFNAME and PARALET_ADDRESSES the ranks use the network on which they found each other.
    address = parameters.address(environment.get("MASTER_ADDR"), int(local_rank) if local_rank.isdecimal() else 0)
    return Device(address, **parameters.options)
