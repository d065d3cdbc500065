# SPDX-License-Identifier: Apache-2.0
"""The device of this process, which its process groups share."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import torch.distributed as dist

from hostlib import Device
from hostlib.parameters import read_parameters

_lock = threading.Lock()
_device: Device | None = None
_users = 0


def acquire(store: dist.Store) -> Device:
    """The device, opened by the first caller with the `PARALET_*` variables of that moment.

    Without `PARALET_IFNAME` and `PARALET_ADDRESSES` the ranks use the network on which they found each other: that of
    the `store`, or of `MASTER_ADDR`.

    A forked child has a device of its own. Raises ValueError for wrong variables, and DeviceError when the device
    cannot be opened.
    """
    global _device, _users
    with _lock:
        if _device is None:
            _device = _open(os.environ, master_of(store, os.environ))
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


def master_of(store: dist.Store, environment: Mapping[str, str]) -> str | None:
    """The host on which the ranks meet: that of a TCPStore, as init_method="tcp://.." makes one, or MASTER_ADDR."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, dist.TCPStore) else environment.get("MASTER_ADDR")


def _open(environment: Mapping[str, str], master: str | None) -> Device:
    parameters = read_parameters(environment)
    local_rank = environment.get("LOCAL_RANK", "")
    address = parameters.address(master, int(local_rank) if local_rank.isdecimal() else 0)
    return Device(address, **parameters.device_options(address))
