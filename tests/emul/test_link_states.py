# SPDX-License-Identifier: Apache-2.0
"""The state of links from what the kernel says of interfaces, and from the settings of ports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emul import LinkFault, commands
from emul.layout import Layout
from emul.link_faults import LinkFaults
from emul.link_states import link_states, live_interfaces
from emul.port_settings import PortSettings
from netmodel import PortRef, leaf_spine

TOPOLOGY = leaf_spine(2, 1, 1, 20_000_000)


def listed(**operstates: str) -> str:
    """What `ip -j link show` prints."""
    return json.dumps([{"ifname": name.replace("_", "-"), "operstate": state} for name, state in operstates.items()])


def test_only_an_interface_with_a_carrier_is_live() -> None:
    shown = listed(leaf1_eth1="UP", leaf1_eth2="DOWN", leaf2_eth1="LOWERLAYERDOWN", lo="UNKNOWN")
    assert live_interfaces(shown) == {"leaf1-eth1"}


def test_links_have_their_state_rate_and_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "batch", lambda *_: None)
    monkeypatch.setattr(LinkFaults, "set", lambda *_: None)
    settings = PortSettings(Layout(TOPOLOGY), lambda _: None, Path("/nowhere"))
    faulty, slow = PortRef("leaf1", 1), TOPOLOGY.link_at(PortRef("leaf2", 2))
    settings.set_faults(faulty, LinkFault(loss=0.1))
    settings.set_faults(PortRef("leaf2", 1), LinkFault())
    settings.set_rate(slow, 0.5)
    live = {"leaf1-eth1", "leaf1-eth2", "leaf2-eth1"}
    states = {state.link: state for state in link_states(Layout(TOPOLOGY), settings, lambda _: live)}
    assert list(states) == list(TOPOLOGY.links)
    assert {link: (state.part, dict(state.faults)) for link, state in states.items() if link != slow} == {
        link: (1.0, {faulty: LinkFault(loss=0.1)} if faulty in (link.a, link.b) else {})
        for link in TOPOLOGY.links
        if link != slow
    }
    assert (states[slow].up, states[slow].part) == (False, 0.5)
    assert all(state.up for link, state in states.items() if link != slow)
