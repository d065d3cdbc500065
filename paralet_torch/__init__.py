# SPDX-License-Identifier: Apache-2.0
"""PyTorch over ParaLet lanes: importing this registers the backend ``paralet`` of torch.distributed, for CPU tensors.

::

    import paralet_torch
    torch.distributed.init_process_group("paralet")

Device options are the variables ``PARALET_*`` (docs/torch.md). Raises ModuleNotFoundError where torch is missing.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from paralet_torch.process_group import NAME, ParaletProcessGroup
from paralet_torch.steps import Step, steps
from paralet_torch.work import ParaletWork

__all__ = ["NAME", "ParaletProcessGroup", "ParaletWork", "Step", "steps"]


def _create(options: Any, _: Any) -> ParaletProcessGroup:
    """Called by torch.distributed in every rank of a new group."""
    return ParaletProcessGroup(
        options.store, options.group_rank, options.group_size, timeout=options.timeout, name=options.group_id
    )


if NAME.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
