# SPDX-License-Identifier: Apache-2.0
"""Training of a small transformer with DDP or FSDP on CPUs, over any backend of torch.distributed.

It learns to continue number sequences that it makes itself. For torchrun:

    torchrun --nproc-per-node 2 experiments/torch/transformer.py --backend paralet --parallel fsdp

Every rank prints a JSON object per step: its number, the loss averaged over the ranks, the seconds that it took.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import paralet_torch

VOCABULARY = 32


class Transformer(nn.Module):
    """A decoder: tokens (batch, length) to logits (batch, length, VOCABULARY)."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.logits = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.logits(x)


def sequences(batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Tokens (batch, length + 1): each row counts in steps of its own."""
    first = torch.randint(VOCABULARY, (batch, 1), generator=generator)
    stride = torch.randint(1, 6, (batch, 1), generator=generator)
    return (first + stride * torch.arange(length + 1)) % VOCABULARY


def parallel(model: Transformer, how: str) -> nn.Module:
    """The model for all ranks of the default group."""
    if how == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard  # importing it takes most of a second

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="paralet", help="paralet or gloo")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=32, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--seed", type=int, default=1)
    arguments: Any = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    torch.manual_seed(arguments.seed)  # the same weights on all ranks
    model = parallel(Transformer(arguments.layers, arguments.width, arguments.length), arguments.parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1000 * arguments.seed + dist.get_rank())
    for step in paralet_torch.steps(arguments.steps):
        tokens = sequences(arguments.batch, arguments.length, generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        step.loss = mean.item()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
