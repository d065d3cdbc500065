# SPDX-License-Identifier: Apache-2.0
"""A fabric for commands whose nodes are this process's own namespaces. It notes what is changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from emul import LinkFault
from emul.link_states import LinkState
from netmodel import Link, PortRef, leaf_spine
from testbed.run.console.console import FabricConsole
from testbed.run.console.terminal import Terminal

TOPOLOGY = leaf_spine(2, 2, 1, 20_000_000)
"""h1 - leaf1 = spine1, spine2 = leaf2 - h2"""


class FakeConsoleFabric:
    def __init__(self) -> None:
        self.topology = TOPOLOGY
        self.named = 0
        self.down: set[Link] = set()
        self.parts: dict[Link, float] = {}
        self.faults: dict[PortRef, LinkFault] = {}

    def enter(self, node: str) -> list[str]:
        return ["env", f"NODE={node}"]

    def node_pid(self, node: str) -> int:
        return os.getpid()

    def interface(self, port: PortRef) -> str:
        return f"{port.node}-eth{port.port}"

    def name_hosts(self) -> None:
        self.named += 1

    def link_states(self) -> Sequence[LinkState]:
        return [
            LinkState(
                link,
                link not in self.down,
                self.parts.get(link, 1.0),
                {end: self.faults[end] for end in (link.a, link.b) if end in self.faults},
            )
            for link in self.topology.links
        ]

    def rules(self, switch_name: str) -> str:
        return f"rules of {switch_name}\n"

    def set_link(self, link: Link, up: bool) -> None:
        (self.down.discard if up else self.down.add)(link)

    def set_rate(self, link: Link, part: float) -> None:
        self.parts[link] = part

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        self.faults[port] = fault


class Session:
    """A console on a fake fabric, and what its commands print. Programs are noted, and not run."""

    def __init__(self, log_dir: Path) -> None:
        self.fabric = FakeConsoleFabric()
        self.changes: list[str] = []
        self.programs: list[list[str]] = []
        self.console = FabricConsole(self.fabric, log_dir, self.changes.append)

    def give(self, line: str) -> tuple[int, str, str]:
        """The exit status, output and errors of a command."""
        output, errors = StringIO(), StringIO()

        def run(argv: Sequence[str]) -> int:
            self.programs.append(list(argv))
            return 7

        status = self.console.run(line.split(), Terminal(output, errors, run))
        return status, output.getvalue(), errors.getvalue()
