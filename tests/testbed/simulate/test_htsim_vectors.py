# SPDX-License-Identifier: Apache-2.0
"""The packet simulation on a fat-tree and a Clos of three tiers, beside what htsim has taken for the same traffic.

The times were printed by htsim, built from commit 841d9e7 of github.com/Broadcom/csg-htsim, for what `paralet export`
writes of the specs below with `--to topo` and `--to cm`:

    htsim_roce -nodes 16 -topo SPEC.topo -tm SPEC.cm -strat ecmp_host -paths 1 -mtu 4096 -end 100000

`sprayed` is by `htsim_eqds` with `-paths 64`. A flow of htsim ends when its sender has the last acknowledgement.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.testbed.simulate.small import observe, small

RATE = "100 Gbit/s"
FAT_TREE = {"fat_tree": {"k": 4, "host_rate": RATE, "host_delay": "1 us", "agg_delay": "1 us", "core_delay": "1 us"}}
UNEQUAL = {"fat_tree": {"k": 4, "host_rate": RATE, "host_delay": "500 ns", "agg_delay": "1 us", "core_delay": "5 us"}}
ONE_CORE = {"clos": {"pods": 2, "leaves": 2, "aggs": 1, "cores_per_agg": 1, "hosts_per_leaf": 4, "host_rate": RATE}}
BACK_S = {"short": 13e-6, "far": 13e-6, "incast": 6e-6, "core": 6e-6}
"""Time on the links for the last acknowledgement, where one flow or the last of several ends the run, in seconds."""


def permutation(size: int, shift: int) -> dict[str, Any]:
    return {"kind": "permutation", "bytes": size, "shift": shift, "slices": 1}


@pytest.mark.parametrize(
    ("name", "topology", "workload", "placement", "htsim_s", "least", "most"),
    [
        ("short", UNEQUAL, permutation(4096, 1), {"hosts": ["h1", "h9"]}, 28.0275e-6, 0.998, 1.002),
        ("far", UNEQUAL, permutation(4 << 20, 1), {"hosts": ["h1", "h9"]}, 373.52e-6, 0.99, 1.01),
        (
            "incast",
            FAT_TREE,
            {"kind": "parameter_server", "bytes": 4 << 20, "servers": 1, "phase": "incast", "slices": 1},
            {"hosts": ["h9", "h1", "h3", "h5", "h13"]},
            1376.84e-6,
            0.99,
            1.01,
        ),
        ("core", ONE_CORE, permutation(4 << 20, 8), {"rule": "in_order"}, 2781.74e-6, 0.99, 1.01),
        # Its senders begin each of 30 steps when they have the last acknowledgement of the one before.
        (
            "ring",
            FAT_TREE,
            {"kind": "ring_allreduce", "bytes": 16 << 20, "slices": 1},
            {"rule": "in_order"},
            2841.04e-6,
            0.94,
            0.98,
        ),
        # EQDS is another transport, which asks for packets and sprays with other numbers.
        ("sprayed", FAT_TREE, permutation(4 << 20, 8), {"rule": "in_order"}, 402.943e-6, 0.9, 1.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_simulation_takes_as_long_as_htsim(
    name: str,
    topology: dict[str, Any],
    workload: dict[str, Any],
    placement: dict[str, Any],
    htsim_s: float,
    least: float,
    most: float,
) -> None:
    policy = {"policy": "spraying", "receiver": "selective_repeat"} if name == "sprayed" else {"policy": "ecmp"}
    changes = {"topology": topology, "workload": workload, "placement": placement, "packet": {"link_delay_s": 1e-6}}
    (run,) = observe(small("packet", **changes, policies=[{"name": "it", **policy}])).runs
    assert least < (run.completion_s + BACK_S.get(name, 0.0)) / htsim_s < most
