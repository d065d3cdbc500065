# SPDX-License-Identifier: Apache-2.0
"""Backends of other devices in a composite group such as ``cpu:paralet,cuda:nccl``.

torch puts a process group that is written in Python in the place of its own, and then creates no further backends. So
they are created here, when the first tensor of their device comes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_groups: dict[Any, dist.ProcessGroup] = {}


def devices_of(group: Any) -> list[torch.device]:
    """The devices that `group` was given backends for, the CPU first."""
    config = c10d._world.pg_backend_config.get(group)
    others = c10d.BackendConfig(config).get_device_backend_map() if config else {}
    return [torch.device("cpu"), *(torch.device(device) for device in others if device != "cpu")]


def other_backends(group: Any, device: torch.device) -> dist.ProcessGroup:
    """A group of the same ranks with the backend that `group` was given for `device`.

    Raises ValueError when there is none, or when this PyTorch was built without it.
    """
    config = c10d.BackendConfig(c10d._world.pg_backend_config[group]).get_device_backend_map()
    backend = config.get(device.type)
    if backend in (None, "paralet"):
        raise ValueError(
            f"this process group has no backend for tensors on {device.type}: "
            f"name one in init_process_group, as in 'cpu:paralet,{device.type}:nccl'"
        )
    key = (group, device.type)
    if key not in _groups:
        other = dist.ProcessGroup(group._store, group.rank(), group.size())
        kind = c10d.Backend.backend_type_map[backend]
        other._set_default_backend(kind)
        other._register_backend(torch.device(device.type), kind, _create(backend, device.type, group))
        other._set_group_name(f"{group._name}/{device.type}")
        _groups[key] = other
    return _groups[key]


def forget(group: Any) -> None:
    """Shut down the backends that were created for `group`."""
    for key in [key for key in _groups if key[0] is group]:
        _groups.pop(key).shutdown()


def _create(backend: str, device: str, group: Any) -> Any:
    store = dist.PrefixStore(f"{device}/", group._store)
    if backend == "nccl":
        if not dist.is_nccl_available():
            raise ValueError(f"this PyTorch has no NCCL for tensors on {device}: install a build of PyTorch for CUDA")
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = group._timeout
        return c10d.ProcessGroupNCCL(store, group.rank(), group.size(), options)
    if backend == "gloo":
        return c10d.ProcessGroupGloo(store, group.rank(), group.size(), timeout=group._timeout)
    raise ValueError(f"backend paralet cannot be combined with backend {backend} for {device}: use nccl or gloo")
