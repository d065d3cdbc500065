# SPDX-License-Identifier: Apache-2.0
"""Conformance of the NCCL net plugin between two hosts of an emulated leaf-spine with queues that drop packets.

h1 - leaf1 = spine1, spine2 = leaf2 - h2
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

import nccl_net_plugin
from emul import MininetFabric
from netmodel import leaf_spine
from tests.nccl_net_plugin.conformance.suite import RULES, VERSIONS, Suite, build

pytestmark = [pytest.mark.sandboxed, pytest.mark.long]

TOPOLOGY = leaf_spine(2, 2, 1, 1_000_000_000)
HOSTS = {"listener": "h1", "connector": "h2"}
TIMEOUT_S = 100
EVERY_VERSION = ["connect-64", "sizes", "full", "proxy", "group-in-flight", "close-recv-in-flight", "receiver-killed"]
"""Between hosts the versions differ in nothing that loopback does not show; these make sure."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return build(tmp_path_factory.mktemp("conformance"))


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MininetFabric]:
    with MininetFabric(TOPOLOGY, log_dir=tmp_path_factory.mktemp("fabric")) as running:
        yield running


def play(fabric: MininetFabric, suite: Suite, version: int, rule: str) -> dict[str, str]:
    """Both ends of a rule, each on its host: what each says."""
    ends = dict(zip(HOSTS, socket.socketpair(), strict=True))
    processes = {}
    for role, host in HOSTS.items():
        with ends[role] as rendezvous:
            processes[role] = fabric.popen(
                host,
                [
                    *(str(suite.program), "--role", role, "--rendezvous", "0", "--timeout", str(TIMEOUT_S)),
                    *(str(nccl_net_plugin.path()), str(version), rule),
                ],
                env={name: value for name, value in os.environ.items() if not name.startswith("PARALET_")},
                stdin=rendezvous,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
    said = {}
    for role, process in processes.items():
        out, err = process.communicate()
        said[role] = out + (err if process.returncode else "")
        process.wait()
    return said


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("version", "rule"),
    [
        pytest.param(version, rule.name, id=f"v{version}-{rule.name}")
        for version in VERSIONS
        for rule in RULES
        if version in rule.versions and "two-hosts" in rule.places
        if version == VERSIONS[-1] or rule.name in EVERY_VERSION
    ],
)
def test_the_rule_is_kept_between_hosts(fabric: MininetFabric, suite: Suite, version: int, rule: str) -> None:
    said = play(fabric, suite, version, rule)
    assert all(f"v{version} {rule} (two-hosts): ok" in words for words in said.values()), "\n".join(said.values())


def test_the_processes_are_on_two_hosts(fabric: MininetFabric, suite: Suite) -> None:
    """All data crossed the fabric: the leaves' links to the spines carried it."""
    before = fabric.link_counters()
    play(fabric, suite, 12, "sizes")
    after = fabric.link_counters()
    crossed = sum(after[port].tx_bytes - before[port].tx_bytes for port in after if port.node.startswith("spine"))
    assert crossed > 2 * (4 << 20)
