# SPDX-License-Identifier: Apache-2.0
"""A transfer of `soft` between two hosts of an emulated fabric that goes on until the context ends."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from netmodel import Flow, Topology
from testbed.bench.transfer_end import Configuration, Policy, Received, Sent
from testbed.errors import TestbedError


class Hosts(Protocol):
    """The part of an emulated fabric that is used."""

    @property
    def topology(self) -> Topology:
        """What is emulated."""

    def popen(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[Any]":
        """Start a command on a host."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The flows of a lane: its data, and the acknowledgements of them."""

    data: Flow
    acknowledgements: Flow


class SteadyTransfer:
    """A transfer between two hosts over all their NICs, while the context is open. Raises TestbedError.

    sent, received: what both ends saw, once the context has ended without an error.
    """

    sent: Sent
    received: Received

    def __init__(self, fabric: Hosts, near: str, far: str, policy: Policy) -> None:
        self._fabric = fabric
        self._near, self._far = near, far
        self._policy: Policy = policy
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._receiver = stack.enter_context(_End(self._fabric, self._far, self._configuration(self._far)))
            own = self._configuration(self._near, self._receiver.answer())
            self._sender = stack.enter_context(_End(self._fabric, self._near, own))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is None:
                self._sender.tell("end")
                self.sent = Sent(**self._sender.answer())
                self.received = Received(**self._receiver.answer())

    def lanes(self) -> list[Lane]:
        """The lanes with their NICs and source ports now, by number."""
        near, far = (self._fabric.topology.host(name).nics for name in (self._near, self._far))
        rows = []
        for end in (self._sender, self._receiver):
            end.tell("lanes")
            rows.append(end.answer())
        return [
            Lane(
                Flow(near[data["member"]].address, far[data["member"]].address, data["port"]),
                Flow(far[back["member"]].address, near[back["member"]].address, back["port"]),
            )
            for data, back in zip(*rows, strict=True)
        ]

    def _configuration(self, host: str, handle: str | None = None) -> Configuration:
        addresses = "+".join(str(nic.address) for nic in self._fabric.topology.host(host).nics)
        return Configuration(addresses, self._policy, handle)


class _End:
    """The program at one end. A context manager, which kills it."""

    def __init__(self, fabric: Hosts, host: str, configuration: Configuration) -> None:
        self._host = host
        argv = [sys.executable, "-m", "testbed.bench.transfer_end", json.dumps(asdict(configuration))]
        self._process = fabric.popen(host, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def tell(self, line: str) -> None:
        """Send the program a line."""
        with suppress(BrokenPipeError):  # `answer` says that it has ended
            print(line, file=self._process.stdin)

    def answer(self) -> Any:
        """The next line of the program's output. Raises TestbedError when it has ended."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise TestbedError(f"the transfer has ended at {self._host}")
        return json.loads(line)
