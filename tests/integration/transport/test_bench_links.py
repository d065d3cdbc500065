# SPDX-License-Identifier: Apache-2.0
"""The links of `paralet bench transport`: their offloads are what their names say, and messages cross them."""

from __future__ import annotations

import pytest

import hostlib
from testbed.bench import flows, links
from testbed.bench.frame import Measurement
from testbed.cli import ethtool

pytestmark = pytest.mark.sandboxed


def test_links_have_the_offloads_of_their_names() -> None:
    with links.laid(links.LINKS):
        for number, link in enumerate(links.LINKS):
            features = ethtool.features(f"near{number}")
            assert features["tx-tcp-segmentation"].active == link.tso
            assert features["tx-udp-segmentation"].active == link.uso
            assert features["rx-gro"].active


def test_messages_cross_a_link_over_back_ends_and_over_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "TOTAL_BYTES", 20 << 20)
    found = list(links.measurements(hostlib.bench_program(), ["soft"], 1, links.LINKS[-1:]))
    assert {measurement.case for measurement in found} == {"veth MTU 1500, TSO, no USO, 1 MiB"}
    assert len(found) == 2 * len(flows.PEERS)
    assert all(
        isinstance(measurement, Measurement) and min(measurement.ours, measurement.peer) > 0 for measurement in found
    )
