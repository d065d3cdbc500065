# SPDX-License-Identifier: Apache-2.0
"""The link between namespaces over which `paralet bench stress` compares `soft` with TCP."""

from __future__ import annotations

import json

import pytest

from emul import commands
from testbed.bench import lossy_link
from testbed.bench.lossy_link import loss_rules


@pytest.mark.sandboxed
def test_both_transports_deliver_over_a_link_that_loses_single_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    def rules(loss: float) -> list[str]:
        """The rules, with counters of lost packets and, before all others, of packets that are several in one."""
        table, *lines = loss_rules(loss)
        counted = []
        for line in lines:
            counted.append(line.replace("1000000000 < 10000000 drop", "1000000000 < 10000000 counter name lost drop"))
            if line.startswith("flush"):
                counted.append(f"add rule netdev loss {line.split()[-1]} meta length > 4200 counter name long")
        return [table, "add counter netdev loss long", "add counter netdev loss lost", *counted]

    entered: list[int] = []

    def enter(pid: int) -> list[str]:
        entered.append(pid)
        return ["nsenter", f"--net=/proc/{pid}/ns/net"]

    monkeypatch.setattr(lossy_link, "LOSS", (0.01,))
    monkeypatch.setattr(lossy_link, "_SECONDS", 0.2)
    monkeypatch.setattr(lossy_link, "loss_rules", rules)
    monkeypatch.setattr(lossy_link, "enter", enter)
    measuring = lossy_link.measurements(1)
    measurement = next(measuring)
    listed = json.loads(commands.run([*enter(entered[0]), "nft", "-j", "list", "counters"]))
    measuring.close()
    packets = {entry["counter"]["name"]: entry["counter"]["packets"] for entry in listed["nftables"][1:]}
    assert (measurement.case, measurement.peer_name) == ("1 % loss", "TCP, 8 flows")
    assert min(measurement.ours, measurement.peer) > 0
    assert packets["lost"] > 0
    assert packets["long"] == 0
