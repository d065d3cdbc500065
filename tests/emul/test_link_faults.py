# SPDX-License-Identifier: Apache-2.0
"""nftables rules of links that lose and damage packets."""

from __future__ import annotations

import pytest

from emul.link_faults import LinkFault, ruleset


def test_rules_have_a_chain_and_counters_for_each_interface() -> None:
    assert ruleset({"leaf1-eth5": LinkFault(0.01, 0.001), "spine1-eth2": LinkFault(loss=1.0)}) == [
        "table netdev paralet_faults {",
        "counter lost_0 { }",
        "counter corrupted_0 { }",
        "chain port_0 {",
        'type filter hook egress device "leaf1-eth5" priority 0; policy accept;',
        'numgen random mod 1000000000 < 10000000 counter name lost_0 fwd to "fault-sink"',
        "ip protocol udp numgen random mod 1000000000 < 1000000 @th,80,16 set 0x0 counter name corrupted_0",
        "}",
        "counter lost_1 { }",
        "counter corrupted_1 { }",
        "chain port_1 {",
        'type filter hook egress device "spine1-eth2" priority 0; policy accept;',
        'numgen random mod 1000000000 < 1000000000 counter name lost_1 fwd to "fault-sink"',
        "}",
        "}",
    ]


@pytest.mark.parametrize("part", [-0.1, 1.1, float("nan")])
def test_a_part_that_is_no_probability_is_refused(part: float) -> None:
    with pytest.raises(ValueError, match="is no probability"):
        ruleset({"leaf1-eth5": LinkFault(corruption=part)})
