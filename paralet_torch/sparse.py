# SPDX-License-Identifier: Apache-2.0
"""All-reduce of sparse tensors: indices and values of all ranks are gathered and added here."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from paralet_torch.work import ParaletWork


def all_reduce_sparse(group: Any, tensor: torch.Tensor, opts: Any) -> ParaletWork:
    """Sum of COO tensors of one shape, in place. Returns when it is done: three collectives depend on each other."""
    if getattr(opts.reduceOp, "op", opts.reduceOp).name != "SUM":
        raise ValueError("sparse tensors have no reduction but SUM")
    own = tensor.detach().coalesce()
    indices, values = own.indices().contiguous(), own.values().contiguous()
    numbers = torch.zeros(group.size(), dtype=torch.int64)
    waited = c10d.AllgatherOptions()
    waited.asyncOp, waited.timeout = False, opts.timeout
    group.all_gather_single(numbers, torch.tensor([values.shape[0]]), waited).wait()
    all_indices = [indices.new_empty((indices.shape[0], int(number))) for number in numbers]
    all_values = [values.new_empty((int(number), *values.shape[1:])) for number in numbers]
    group.allgather([all_indices], [indices], waited).wait()
    group.allgather([all_values], [values], waited).wait()
    total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), own.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total)
    return ParaletWork("sparse allreduce", [], [tensor], ())
