# SPDX-License-Identifier: Apache-2.0
"""Four hosts in a one-way ring: h1 reaches h4 only through h2 and h3, which relay its packets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from emul import MininetFabric
from emul.relays import RelayError
from netmodel import PortRef, direct_connect
from sdn.topoopt.patching import patch
from sdn.topoopt.permutations import ring_circuits
from sdn.topoopt.relays import RelayPlan, plan_relays
from tests.integration.topoopt.direct import FRAME, PAYLOAD, RATE_BPS, arrives, bound, carried, connected, names
from tests.integration.traffic import PORT

pytestmark = pytest.mark.sandboxed


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MininetFabric, RelayPlan]]:
    """h1 -> h2 -> h3 -> h4 -> h1, one NIC each: the walk-through of appendix I, A to D by B and C."""
    topology = direct_connect(4, 1, RATE_BPS)
    directory = tmp_path_factory.mktemp("four")
    with MininetFabric(topology, log_dir=directory) as fabric:
        fabric.set_circuits(patch(topology, names(4), [ring_circuits(range(4), 1)]))
        plan = plan_relays(topology, fabric.circuits, names(4))
        fabric.set_relays(plan)
        yield fabric, plan


def test_packets_from_h1_to_h4_are_relayed_without_the_relays_engines(
    four: tuple[MininetFabric, RelayPlan],
) -> None:
    fabric, plan = four
    way = plan.connections["h1", "h4"][0].there
    assert way.relays == ("h2", "h3")
    engines = [bound(fabric, PortRef(relay, 1), PORT) for relay in way.relays]
    before, links = fabric.relay_counters(), carried(fabric)
    payload = np.random.default_rng(8).bytes(PAYLOAD)
    assert arrives(fabric, way, payload)
    after = fabric.relay_counters()
    for relay in names(4):
        moved = after[PortRef(relay, 1)].rx_packets - before[PortRef(relay, 1)].rx_packets
        assert moved == (1 if relay in way.relays else 0)
        sent = after[PortRef(relay, 1)].tx_packets - before[PortRef(relay, 1)].tx_packets
        assert sent == moved
    assert carried(fabric) - links == 3 * FRAME
    for engine in engines:
        engine.settimeout(0.05)
        with pytest.raises(TimeoutError):
            engine.recv(1 << 16)
        engine.close()


def test_rdma_writes_cross_two_relays_with_the_predicted_bandwidth_tax(
    four: tuple[MininetFabric, RelayPlan],
) -> None:
    fabric, plan = four
    (connection,) = plan.connections["h1", "h4"]
    sent = np.random.default_rng(9).integers(0, 256, 300_000, dtype=np.uint8)
    got = np.zeros_like(sent)
    # Before there is a connection and after its devices are closed: hosts are read one after the other, and a packet on
    # its way meanwhile would be counted at one relay and not at the next.
    links, relayed = settled(fabric)
    with ExitStack() as stack:
        out, into = connected(fabric, stack, connection)
        request = into.recv(got)
        out.send(sent).wait(timeout_s=30)
        request.wait(timeout_s=30)
    after = settled(fabric)
    total, own = after[0] - links, {host: count - relayed[host] for host, count in after[1].items()}
    assert np.array_equal(sent, got)
    # Data go over three circuits by h2 and h3; acknowledgements go straight on from h4 to h1.
    assert (connection.there.hops, connection.back.hops) == (3, 1)
    assert own["h2"] == own["h3"] > sent.nbytes
    assert own["h1"] == own["h4"] == 0
    data, acknowledgements = own["h2"], total - 3 * own["h2"]
    assert 0 < acknowledgements < data / 4


def settled(fabric: MininetFabric) -> tuple[int, dict[str, int]]:
    """Bytes by circuit, and relayed bytes by host, once two readings agree."""
    seen: tuple[int, dict[str, int]] = (-1, {})
    while seen != (now := (carried(fabric), relay_bytes(fabric))):
        seen = now
        time.sleep(0.5)
    return seen


def relay_bytes(fabric: MininetFabric) -> dict[str, int]:
    """By host, bytes sent for others."""
    found: dict[str, int] = {}
    for port, counters in fabric.relay_counters().items():
        found[port.node] = found.get(port.node, 0) + counters.tx_bytes
    return found


def test_a_relay_that_is_down_is_named_and_works_again_once_up(four: tuple[MininetFabric, RelayPlan]) -> None:
    fabric, plan = four
    way = plan.connections["h1", "h4"][0].there
    fabric.check_relays(plan)
    fabric.popen("h3", ["ip", "link", "set", "dev", "nic0r", "down"]).wait(10)
    with pytest.raises(RelayError, match=r"h3 does not relay, its interface nic0r is down, so packets of h\d do not"):
        fabric.check_relays(plan)
    assert not arrives(fabric, way, timeout_s=0.3)
    fabric.popen("h3", ["ip", "link", "set", "dev", "nic0r", "up"]).wait(10)
    fabric.set_relays(plan)  # routes go with the interface
    fabric.check_relays(plan)
    assert arrives(fabric, way)
