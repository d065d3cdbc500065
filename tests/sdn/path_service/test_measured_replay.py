# SPDX-License-Identifier: Apache-2.0
"""The event log of a service that pins by measured paths gives the same messages again, in any other process too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netmodel import CrcHash, EcmpHash, LinuxL4Hash, Topology, forwarding
from sdn.measured.router_names import names_of
from sdn.path_service.constraints import Constraints
from sdn.path_service.journal import Journal
from sdn.path_service.links import links_named
from sdn.path_service.log_file import LogFile
from sdn.path_service.messages import Hello, HostMessage
from sdn.path_service.pinning import Sends
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import address
from tests.sdn.path_service.test_measured import HOSTS, THREE_TIERS, TWO_TIERS, Probers, permuted

ROOT = Path(__file__).parents[3]
REPLAY = """
import sys
from pathlib import Path
from sdn.path_service.replay import replay
for replayed in replay([Path(sys.argv[1])]):
    for send in replayed.sends:
        print(send)
"""


class Logged(PathService):
    """A service that writes what happens to it, as `sdn.path_service.server` does, and remembers what it has sent."""

    def __init__(self, journal: Journal, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._journal = journal
        self.sent: list[str] = []

    def connect(self, now_s: float, conn: int, hello: Hello) -> tuple[Sends, int | None]:
        now_s = round(now_s, 6)  # the log's resolution, as of the server's clock
        sends, old = super().connect(now_s, conn, hello)
        self._journal.hello(now_s, conn, hello, "10.0.0.1:7")
        return self._noted(sends), old

    def handle(self, now_s: float, conn: int, messages: Iterable[HostMessage]) -> Sends:
        now_s, said = round(now_s, 6), list(messages)
        self._journal.said(now_s, conn, [msgspec.json.encode(message) for message in said])
        return self._noted(super().handle(now_s, conn, said))

    def tick(self, now_s: float) -> Sends:
        now_s = round(now_s, 6)
        self._journal.tick(now_s)
        return self._noted(super().tick(now_s))

    def constrain(self, now_s: float, constraints: Constraints) -> Sends:
        now_s = round(now_s, 6)
        self._journal.constrained(now_s, constraints, {})
        return self._noted(super().constrain(now_s, constraints))

    def _noted(self, sends: Sends) -> Sends:
        self._journal.sends(sends)
        self.sent += map(str, sends)
        return sends


@pytest.mark.parametrize(
    ("topology", "ecmp_hash"),
    [(TWO_TIERS, CrcHash("crc16")), (THREE_TIERS, LinuxL4Hash())],
    ids=["two tiers, affine", "three tiers"],
)
def test_a_log_with_measured_paths_gives_the_same_messages_in_another_process(
    tmp_path: Path, topology: Topology, ecmp_hash: EcmpHash
) -> None:
    log, routers = tmp_path / "events.jsonl", names_of(topology)
    with LogFile(log) as lines:
        journal = Journal(lines)
        journal.head(topology, Options(), routers)
        service = Logged(journal, topology, Options(), routers=routers)
        probers = Probers(service, ecmp_hash)
        permuted(probers)
        probers.run(8.0)
        used = next(link for link, _ in probers.load().most_common() if link.node.startswith(("core", "spine")))
        probers.change(forwarding(topology, frozenset({topology.link_at(used)})))
        probers.run(8.0)
        ends = address(topology, 0), address(topology, HOSTS - 1)
        pins = {ends: (frozenset(links_named(topology, used.node)),)}
        drained = frozenset(links_named(topology, topology.switches[-1].name))
        probers.hear(service.constrain(probers.now_s, Constraints(drained=drained, pins=pins)))
        probers.run(1.0)
        journal.sent(probers.now_s)
    counts = service.status()["counts"]
    assert counts["probes answered"] > 0
    assert counts["watched ports that moved"] > 0
    replayed = subprocess.run(
        [sys.executable, "-c", REPLAY, str(log)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(service.sent) > 5 * HOSTS
    assert replayed.stdout.splitlines() == service.sent
