# SPDX-License-Identifier: Apache-2.0
"""Commands of a user's own, one on the host of each rank, such as iperf3 or an MPI program.

What they send is theirs. The spec says which pairs of ranks send how much, and the demands on the fabric follow.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from testbed.conflict import Conflict
from testbed.workloads.base import Transfer, Workload


class Program(BaseModel):
    """The command of a rank: a command line of a shell, and when it has gone well."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    run: str = Field(min_length=1)
    ready: str | None = Field(default=None, min_length=1)
    """It starts before the others, and is ready when a line of its output has this text."""
    environment: dict[str, str] = Field(default_factory=dict)
    status: int = Field(default=0, ge=0, le=255)
    """The exit status that is right."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds that it may take, if less than the spec's `run_s`."""


def _in_full(command: object) -> object:
    """A command line alone stands for a program with the other keys' defaults."""
    return {"run": command} if isinstance(command, str) else command


AnyProgram = Annotated[Program, BeforeValidator(_in_full, json_schema_input_type=Program | str)]


class Commands(Workload):
    """`kind: command`. Each of `pairs`, a sender and a receiver, moves `bytes`.

    `commands` has one command for each rank, or one for all.
    """

    RANK: ClassVar[str | None] = "command"
    LACKING: ClassVar[frozenset[str]] = frozenset({"fluid", "packet", "softroce"})
    ONE_NIC: ClassVar[bool] = True
    SOCKETS: ClassVar[bool] = True
    RELAYED: ClassVar[bool] = False
    RIGHT: ClassVar[str] = "not verified"

    kind: Literal["command"] = "command"
    dtype: Literal["float32"] = "float32"
    commands: list[AnyProgram] = Field(min_length=1)
    pairs: list[list[int]] = Field(min_length=1)

    @field_validator("pairs")
    @classmethod
    def _two_ranks(cls, pairs: list[list[int]]) -> list[list[int]]:
        for index, pair in enumerate(pairs):
            if len(set(pair)) != 2 or len(pair) != 2 or min(pair) < 0:
                raise Conflict("a pair is two ranks, the sender and the receiver, such as [1, 0]", index)
        return pairs

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict when the commands or pairs are not those of `ranks` ranks."""
        if len(self.commands) not in (1, ranks):
            said = f"there are {len(self.commands)} commands for {ranks} ranks; give one for each rank, or one for all"
            raise Conflict(said, "commands")
        for index, pair in enumerate(self.pairs):
            if max(pair) >= ranks:
                raise Conflict(f"rank {max(pair)} is none of 0 to {ranks - 1}", "pairs", index)

    def program(self, rank: int) -> Program:
        """The command of a rank."""
        return self.commands[rank if len(self.commands) > 1 else 0]

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """All pairs at once. `seed` is not used."""
        return tuple(Transfer(0, 0, src, dst, 0, 0, self.elements) for src, dst in self.pairs)

    @property
    def in_place(self) -> bool:
        """False: no command waits for another one's data, as far as the spec knows."""
        return False
