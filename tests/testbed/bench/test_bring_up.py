# SPDX-License-Identifier: Apache-2.0
"""The fabric whose bring-up is measured; tests/integration/routed brings a small one up."""

from __future__ import annotations

from collections import Counter

from testbed.bench import bring_up


def test_the_fabric_has_64_hosts_and_16_cores() -> None:
    roles = Counter(switch.role for switch in bring_up.LARGE.switches)
    assert len(bring_up.LARGE.hosts) == 64
    assert roles == {"leaf": 16, "agg": 16, "core": 16}
