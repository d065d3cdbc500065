# SPDX-License-Identifier: Apache-2.0
"""The plugin keeps NCCL's contract: every rule of net-conformance, for every version of the interface, on loopback.

scripts/test-native.sh runs the same rules under sanitizers.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import nccl_net_plugin
from hostlib.stats import DeviceSnapshot, survey
from tests.nccl_net_plugin.conformance.suite import LOOPBACK, RULES, VERSIONS, Suite, rules_in_sources

BAD_NETWORK = "drop=0.02,duplicate=0.02,reorder=0.05,corrupt=0.01,seed=7"
"""Value of PARALET_FAULTS."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("version", "rule"),
    [
        pytest.param(version, rule.name, id=f"v{version}-{rule.name}")
        for version in VERSIONS
        for rule in RULES
        if version in rule.versions
    ],
)
def test_the_plugin_keeps_the_rule(suite: Suite, version: int, rule: str) -> None:
    done = suite.run(nccl_net_plugin.path(), version, rule)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_lists_the_rules_that_are_tested_here(suite: Suite) -> None:
    assert sorted(suite.rules(), key=str) == sorted(rules_in_sources(), key=str)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_rules_hold_over_roce(suite: Suite) -> None:
    """The tests above have the default back end, which is tcp on loopback."""
    done = suite.run(nccl_net_plugin.path(), 12, "all", PARALET_BACKEND="soft")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_rules_hold_on_a_bad_network(suite: Suite) -> None:
    """Packets are dropped, duplicated, reordered and corrupted. A shorter minimum timeout keeps the test fast."""
    faults = {"PARALET_BACKEND": "soft", "PARALET_FAULTS": BAD_NETWORK, "PARALET_MIN_TIMEOUT": "5ms"}
    done = suite.run(nccl_net_plugin.path(), 12, "all", **faults)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["PLUGIN", "13", "all"], "VERSION is 8 to 12, not 13"),
        (["PLUGIN", "12", "politeness"], "there is no rule politeness"),
        (["/nowhere.so", "12", "all"], "there is no plugin at /nowhere.so"),
        (["PLUGIN", "12"], "PLUGIN, VERSION and RULE are required"),
        (["PLUGIN", "8", "contexts"], "this version and place do not have the rule contexts"),
        (["--place", "moon", "PLUGIN", "12", "all"], "--place is alone, one-process or two-processes, not moon"),
        (["--stuck", "0", "PLUGIN", "12", "sizes"], "--stuck is a number of seconds from 0.1 to 3600, not 0"),
        (["--role", "listener", "PLUGIN", "12", "sizes"], "--role and --rendezvous require each other"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(suite: Suite, argv: list[str], complaint: str) -> None:
    plugin = str(nccl_net_plugin.path())
    done = subprocess.run(
        [suite.program, *(plugin if word == "PLUGIN" else word for word in argv)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"net-conformance: {complaint}; see --help\n"


# -- queue pairs, counted by the live counters -------------------------------------------------------------------

LANES = 6
DEADLINE_S = 60.0


@contextmanager
def held(suite: Suite, version: int, rule: str) -> Iterator[dict[str, int]]:
    """Run a rule until its two processes wait for input; yield their process ids by role."""
    with subprocess.Popen(
        [suite.program, nccl_net_plugin.path(), str(version), rule],
        env={**os.environ, **LOOPBACK, "PARALET_LANES": str(LANES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            words = [process.stdout.readline().split() for _ in range(2)]
            assert all(line[:1] == ["holding"] for line in words), words
            yield {role: int(pid) for _, role, pid in words}
            process.stdin.write("\n")
            process.stdin.flush()
            assert "ok" in process.stdout.readline()
        finally:
            process.kill()


def device_of(pid: int, connections: int, messages: int = 0) -> DeviceSnapshot:
    """Counters of a process's only device, once it has this many connections and messages.

    Published counters may be a tenth of a second old.
    """
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        (process,) = survey([pid]).processes
        (device,) = process.devices
        if device.connections == connections and device.messages.sends + device.messages.receives >= messages:
            return device
        time.sleep(0.05)
    raise AssertionError(f"expected {connections} connections and {messages} messages, the counters show {device}")


@pytest.mark.parametrize("version", VERSIONS, ids="v{}".format)
def test_64_connections_to_one_peer_make_m_queue_pairs(suite: Suite, version: int) -> None:
    with held(suite, version, "hold-64") as pids:
        devices = [device_of(pids[role], 64, messages=64) for role in ("listener", "connector")]
    for device in devices:
        assert (device.m, device.peers) == (LANES, 1)
        assert sorted(lane.lane for lane in device.lanes) == list(range(LANES))
    assert sum(lane.flowlets for lane in devices[1].lanes) >= 64


@pytest.mark.timeout(300)
def test_a_thousand_connections_one_after_the_other_make_m_queue_pairs(suite: Suite) -> None:
    with held(suite, 12, "hold-after-cycles") as pids:
        devices = [device_of(pids[role], 1, messages=1001) for role in ("listener", "connector")]
    for device in devices:
        assert (device.m, device.peers) == (LANES, 1)
        assert sorted(lane.lane for lane in device.lanes) == list(range(LANES))
