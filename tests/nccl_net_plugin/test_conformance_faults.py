# SPDX-License-Identifier: Apache-2.0
"""Every rule of net-conformance can fail: for each there is a plugin with a fault that violates it."""

from __future__ import annotations

import pytest

import nccl_net_plugin
from tests.nccl_net_plugin.conformance.suite import RULES, Suite

FAULTS = [  # the fault, and the rule that it violates
    ("none", "symbols"),  # the faulty plugin has two versions only
    ("changing-devices", "devices"),
    ("no-speed", "properties"),
    ("properties-overflow", "properties"),
    ("any-device", "wrong-device"),
    ("fuses-anything", "virtual-device"),
    ("no-warning", "no-device"),
    ("two-banners", "banner"),
    ("refuses-consumed", "optional-calls"),
    ("ignores-traffic-class", "traffic-class"),
    ("forgets-phandles", "profiler-events"),
    ("connect-fails-early", "connect-first"),
    ("accept-blocks", "accept-first"),
    ("accept-leaves-comm", "accept-first"),
    ("connect-never", "connect-in-turns"),
    ("forgetful-handle", "connect-in-turns"),
    ("connect-blocks", "connect-never-blocks"),
    ("handle-overflow", "connect-to-self"),
    ("same-comm", "connect-8"),
    ("same-comm", "connect-64"),
    ("close-listen-closes-all", "close-listen-early"),
    ("swallows-errors", "closed-at-once"),
    ("swallows-errors", "wrong-handle"),
    ("swallows-errors", "stale-handle"),
    ("swallows-errors", "close-listen-pending"),
    ("wrong-size", "sizes"),
    ("corrupts-a-byte", "sizes"),
    ("loses-last-byte", "sizes"),
    ("aligns-down", "unaligned"),
    ("size-of-receive", "short-sends"),
    ("writes-past-message", "short-sends"),
    ("byte-past-receive", "long-send"),
    ("swallows-errors", "misuse"),
    ("swallows-errors", "long-send-told"),
    ("sixteen-requests", "in-flight"),
    ("error-when-full", "full"),
    ("lazy-send", "progress"),
    ("early-done", "proxy"),
    ("fails-after-many", "reuse"),
    ("error-when-pending", "pending-test"),
    ("early-send-done", "overwrite"),
    ("half-duplex", "both-ways"),
    ("keeps-preset", "optional-completion"),
    ("uses-phandles", "phandles"),
    ("flush-error", "flush"),
    ("ignores-tags", "group-tags"),
    ("one-size-too-many", "group-tags"),
    ("group-early", "group-whole"),
    ("sizes-not-null", "group-whole"),
    ("sixteen-requests", "group-in-flight"),
    ("swaps-equal-tags", "group-equal-tags"),
    ("swaps-members", "group-mixed"),
    ("any-group", "group-size"),
    ("leaks-registrations", "register-many"),
    ("region-per-comm", "register-global"),
    ("merges-registrations", "register-overlapping"),
    ("takes-gpu-memory", "register-refused"),
    ("writes-after-deregister", "deregister-in-flight"),
    ("writes-after-deregister", "deregister-elsewhere"),
    ("registers-anything", "register-unmapped"),
    ("reads-after-close", "close-send-in-flight"),
    ("writes-after-close", "close-recv-in-flight"),
    ("close-error", "close-order"),
    ("close-closes-all", "close-after-send"),
    ("close-closes-all", "close-neighbour"),
    ("swallows-errors", "sender-killed"),
    ("swallows-errors", "receiver-killed"),
    ("short-retry-time", "receiver-silent"),
    ("slow-close", "close-stopped"),
    ("close-closes-all", "close-slow"),
    ("one-thread-only", "threads-own-comms"),
    ("one-thread-only", "threads-service"),
    ("thread-bound", "threads-post-and-test"),
    ("one-context", "contexts"),
    ("leaks-thread", "finalize-leaves-nothing"),
    ("inits-once", "init-again"),
    ("leaks-thread", "finalize-open"),
    ("dies-at-dlclose", "unload-without-finalize"),
    ("leaks-fd", "cycles"),
    ("leaks-memory", "cycles"),
]
TIMEOUT_S = 1
"""With some faults the suite waits until this timeout."""
HANGING = ("accept-blocks", "connect-blocks")
"""With these a call of the plugin does not return, and spins on a processor."""
STUCK_S = 3


@pytest.mark.parametrize(("fault", "rule"), FAULTS, ids=str)
def test_a_fault_violates_its_rule(suite: Suite, fault: str, rule: str) -> None:
    version = 8 if rule == "unload-without-finalize" else 12
    done = suite.run(
        suite.faulty_plugin,
        version,
        rule,
        *("--timeout", str(TIMEOUT_S)),
        *(("--stuck", str(STUCK_S)) if fault in HANGING else ()),
        FAULTY_PLUGIN=str(nccl_net_plugin.path()),
        FAULTY_FAULT=fault,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"v{version} {rule} (" in done.stdout
    assert "FAILED: " in done.stdout
    assert ("FAILED: hangs: " in done.stdout) == (fault in HANGING)
    print(done.stdout)


def test_every_rule_has_a_fault() -> None:
    assert {rule for _, rule in FAULTS} == {rule.name for rule in RULES}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_forwarding_plugin_without_a_fault_keeps_every_rule(suite: Suite) -> None:
    """The faults violate rules, not the forwarding itself."""
    for rule in RULES:
        if 12 in rule.versions and rule.name != "symbols":
            done = suite.run(
                suite.faulty_plugin, 12, rule.name, FAULTY_PLUGIN=str(nccl_net_plugin.path()), FAULTY_FAULT="none"
            )
            assert done.returncode == 0, done.stdout + done.stderr
