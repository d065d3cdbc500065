# SPDX-License-Identifier: Apache-2.0
"""Training of a transformer with DDP over NCCL on a GPU, whose network NCCL's variables choose.

`python3 -m testbed.nccl.ddp` runs it over one network after the other. By itself, with torchrun:

    torchrun --nproc-per-node 2 experiments/torch/nccl_ddp.py

All ranks use the first GPU that they see, so give each a NCCL_HOSTID of its own, or a GPU by CUDA_VISIBLE_DEVICES. On
`--device cpu` it trains over Gloo. A rank prints one JSON object: the seconds of each step with the exchange of
gradients (`seconds`) and without (`alone`), the loss of each step, and a digest of the trained parameters. The digests
of all ranks must be equal, because every rank adds the same averaged gradients to the same parameters.
"""

import argparse
import contextlib
import hashlib
import json
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 256


class Transformer(nn.Module):
    """Tokens (batch, length) to logits (batch, length, VOCABULARY)."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, nhead=8, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.logits = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024, help="a multiple of 8")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    arguments: Any = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", **({"device_id": device} if on_gpu else {}))

    torch.manual_seed(1)  # the same parameters on all ranks
    model = Transformer(arguments.layers, arguments.width).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    data = torch.Generator().manual_seed(100 + dist.get_rank())

    def step(*, exchange: bool) -> tuple[float, float]:
        """Loss and seconds of a step; without the exchange of gradients the parameters stay as they are."""
        rows = torch.randint(VOCABULARY, (arguments.batch, 1), generator=data)
        tokens = ((rows + torch.arange(arguments.length + 1)) % VOCABULARY).to(device)
        wait(device)
        began_s = time.perf_counter()
        optimizer.zero_grad()
        with contextlib.nullcontext() if exchange else parallel.no_sync():
            logits = parallel(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        if exchange:
            optimizer.step()
        wait(device)
        return loss.item(), time.perf_counter() - began_s

    for exchange in (True, True, False):  # connections, memory and kernels are made in the first steps
        step(exchange=exchange)
    steps = [step(exchange=True) for _ in range(arguments.steps)]
    alone = [step(exchange=False) for _ in range(arguments.steps)]
    parameters = hashlib.sha256()
    for parameter in model.parameters():
        parameters.update(parameter.detach().cpu().numpy().tobytes())
    report = {
        "seconds": [seconds for _, seconds in steps],
        "alone": [seconds for _, seconds in alone],
        "losses": [loss for loss, _ in steps],
        "gradient_bytes": sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
        "parameters": parameters.hexdigest(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device) if on_gpu else "",
    }
    print(json.dumps(report), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def wait(device: torch.device) -> None:
    """Wait until everything that was started on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
