# SPDX-License-Identifier: Apache-2.0
"""A ring between hosts with IPv6 addresses: switches hash its packets as predicted, and plans come true."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.integration import paralet


class Done:
    """`paralet run` of the spec beside this file."""

    def __init__(self, folder: Path) -> None:
        self.summary = paralet.run(Path(__file__).with_name("spec.yaml"), folder)
        self.policies = {policy["name"]: policy for policy in self.summary["policies"]}
        with (folder / "ipv6" / "predictions.csv").open(newline="") as file:
            self.flows = list(csv.DictReader(file))

    def elephants(self, policy: str) -> list[dict[str, str]]:
        """The flows of a policy that carry data of the ring."""
        return [flow for flow in self.flows if flow["policy"] == policy and int(flow["tx_bytes"]) > 100_000]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("ipv6"))


def test_every_byte_is_right(done: Done) -> None:
    assert done.policies.keys() == {"paralet-4", "pinned", "controller"}
    assert all(policy["verified"] for policy in done.policies.values())


def test_switches_choose_the_predicted_ports(done: Done) -> None:
    for policy in done.policies:
        assert len(done.elephants(policy)) >= 4  # one for each hop of the ring, all of which cross leaves
    assert all(flow["src"].startswith("fd00::") for flow in done.flows)
    assert all(flow["matched"] == "True" for flow in done.flows), done.flows


def test_pinned_elephants_share_no_uplink(done: Done) -> None:
    uplinks = [flow["observed"] for flow in done.elephants("pinned")]
    assert len(uplinks) == len(set(uplinks)) == 4


def test_the_path_service_assigns_ports_to_every_elephant(done: Done) -> None:
    (clients,) = done.policies["controller"]["clients"]
    assert clients["assigns"] >= clients["announces"] >= 4, clients
    assert clients["invalid"] == clients["ecmp_starts"] == 0, clients
