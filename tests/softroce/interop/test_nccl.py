# SPDX-License-Identifier: Apache-2.0
"""The NCCL net plugin over `verbs` on the kernel's rxe: rules of NCCL's contract, both ends on one device."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import nccl_net_plugin
from tests.nccl_net_plugin.conformance.suite import Suite
from tests.softroce.interop.conftest import PROPERTY
from tests.softroce.interop.network import RXE_INTERFACE, Wire

pytestmark = pytest.mark.timeout(600)

BUILT = Path(__file__).parents[3] / "build/cmake/release/tests/nccl_net_plugin/conformance"
TIMEOUT_S = 300
RULES = [
    "connect-8",
    "sizes",
    "unaligned",
    "full",
    "proxy",
    "both-ways",
    "group-in-flight",
    "register-many",
    "close-send-in-flight",
    "close-recv-in-flight",
    "receiver-killed",
]


@pytest.mark.parametrize("rule", RULES)
def test_the_plugin_keeps_the_rule(wire: Wire, record_property: Callable[[str, object], None], rule: str) -> None:
    record_property(PROPERTY, ("NCCL net plugin: rules of its contract", "verbs to verbs", rule))
    suite = Suite(BUILT / "net-conformance", BUILT / "libnccl-net-faulty.so")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
    environment |= {"PARALET_BACKEND": "verbs", "PARALET_IFNAME": f"={RXE_INTERFACE}", "PARALET_LANES": "2"}
    done = suite.run(nccl_net_plugin.path(), 12, rule, "--timeout", str(TIMEOUT_S), **environment)
    assert done.returncode == 0, done.stdout + done.stderr
