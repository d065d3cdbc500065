# SPDX-License-Identifier: Apache-2.0
"""Training by PyTorch: every rank is a process that runs a training script over torch.distributed.

The schedule states the demands on the fabric: which pairs exchange how many bytes. Small collectives, such as the sum
of the losses, are not in it.
"""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from testbed.conflict import Conflict
from testbed.errors import InputError
from testbed.workloads.base import Transfer, Workload
from testbed.workloads.ring_allreduce import RingAllreduce

PASSED = ("--backend", "--parallel", "--steps", "--seed")
"""Options that the script gets from the spec's own keys."""


class TorchTraining(Workload):
    """`kind: torch`. `bytes` is the size of the model's gradients in float32.

    With `parallel` ddp a ring reduces the gradients in every step. With fsdp parameters are gathered for the forward
    and for the backward pass, and gradients are reduced and scattered: 1.5 times the traffic.

    The script gets the options `PASSED` and `arguments`, and torchrun's environment variables. Its loop is
    `paralet_torch.steps`. A relative name of the script starts at the spec's folder.
    """

    RANK: ClassVar[str | None] = "torch"
    TRAINS: ClassVar[bool] = True
    RIGHT: ClassVar[str] = "ranks agree"
    LACKING: ClassVar[frozenset[str]] = frozenset({"fluid", "packet", "softroce"})
    ONE_NIC: ClassVar[bool] = True
    SOCKETS: ClassVar[bool] = True
    RELAYED: ClassVar[bool] = False

    kind: Literal["torch"] = "torch"
    dtype: Literal["float32"] = "float32"
    script: str
    arguments: list[str] = Field(default=[])
    parallel: Literal["ddp", "fsdp"] = "ddp"
    steps: int = Field(default=10, ge=1, le=10_000)

    @field_validator("arguments")
    @classmethod
    def _no_option_twice(cls, arguments: list[str]) -> list[str]:
        for index, word in enumerate(arguments):
            if (option := word.partition("=")[0]) in PASSED:
                raise Conflict(f"the script gets {option} from the spec's other keys; leave it out", index)
        return arguments

    def check_installed(self) -> None:
        """Raises InputError where torch is missing. Does not import it."""
        if find_spec("torch") is None:
            raise InputError("torch is not installed: run 'make torch' in a checkout, or pip install 'paralet[torch]'")

    def read(self, folder: Path, ranks: int, rate_bps: float) -> "TorchTraining":
        """The workload with the absolute path of its script. Raises Conflict when there is no such file."""
        script = (folder / self.script).resolve()
        if not script.is_file():
            raise Conflict(f"there is no file {script}", "script")
        return self.model_copy(update={"script": str(script)})

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """The rings of all steps. `seed` is not used."""
        ring = RingAllreduce(bytes=self.bytes, dtype=self.dtype, slices=self.slices).schedule(ranks, seed)
        rounds = ranks - 1
        reducing = [transfer for transfer in ring if transfer.step < rounds]
        gathering = [replace(transfer, step=transfer.step - rounds) for transfer in ring if transfer.step >= rounds]
        phases = [reducing, gathering] if self.parallel == "ddp" else [gathering, gathering, reducing]
        return tuple(
            replace(transfer, step=number * rounds + transfer.step)
            for number, phase in enumerate(phases * self.steps)
            for transfer in phase
        )

    @property
    def in_place(self) -> bool:
        """True: rings sum gradients in place, and pass on what they have received."""
        return True
