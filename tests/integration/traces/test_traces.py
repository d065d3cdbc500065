# SPDX-License-Identifier: Apache-2.0
"""A trace in AICB's text, with real packets: every byte is right, and the fabric has carried what the trace says."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from tests.integration import paralet

HOST_RANKS = {"10.0.0.1": 0, "10.0.1.1": 1, "10.0.0.2": 2, "10.0.1.2": 3}
"""Ranks by address, on hosts of two leaves in turn."""
TENSOR, DATA = 40_000 + 60_000 // 2, 40_000 + 80_000
"""Bytes that a rank sends in its tensor group and in its data group, of two members each, by the sizes of trace.txt."""
SENT = {
    **dict.fromkeys([(0, 1), (1, 0), (2, 3), (3, 2)], TENSOR),
    **dict.fromkeys([(0, 2), (2, 0), (1, 3), (3, 1)], DATA),
}

ADVERTISED = 40 * 8
"""Bytes of receive advertisements to a peer, at most. A busy machine sends some after the clock has started."""


def as_the_trace_says(counted: int, sent: int) -> bool:
    """Whether queue pairs that count these bytes have sent the trace's."""
    return sent <= counted <= sent + ADVERTISED


class Done:
    """`paralet run` of the spec beside this file."""

    def __init__(self, folder: Path) -> None:
        self.summary = paralet.run(Path(__file__).with_name("spec.yaml"), folder)
        self.folder = folder / "traced"
        self.policies = [policy["name"] for policy in self.summary["policies"]]

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("traces"))


def test_every_byte_is_right(done: Done) -> None:
    assert done.policies == ["paralet-4", "pinned"]
    assert all(policy["verified"] for policy in done.summary["policies"])
    assert all(policy["mean_s"] > done.summary["ideal_s"] for policy in done.summary["policies"])


def test_ranks_send_what_the_trace_says(done: Done) -> None:
    for policy in done.policies:
        rows = [row for row in done.table("flows.csv") if row["policy"] == policy]
        assert {(int(row["src_rank"]), int(row["dst_rank"])): int(row["bytes"]) for row in rows} == SENT


def test_queue_pairs_count_what_the_trace_says(done: Done) -> None:
    """Pairs connect in both directions at the same time, so a device may have two sets of queue pairs to a peer."""
    for policy in done.policies:
        counted: Counter[tuple[int, int]] = Counter()
        for row in done.table("lanes.csv"):
            if row["policy"] == policy:
                counted[int(row["rank"]), HOST_RANKS[row["peer"]]] += int(row["tx_bytes"])
        assert counted.keys() == SENT.keys()
        assert all(as_the_trace_says(counted[pair], sent) for pair, sent in SENT.items()), counted


def test_paths_are_as_predicted(done: Done) -> None:
    assert 0 < done.summary["predictions"]["checked"] == done.summary["predictions"]["matched"]


def test_switches_count_what_is_predicted_on_their_uplinks(done: Done) -> None:
    """A link carries the predicted payload and headers; `pinned` plans an uplink for each flow."""
    for policy in done.policies:
        uplinks = [row for row in done.table("links.csv") if row["policy"] == policy and row["uplink_to"]]
        predicted = [int(row["predicted_payload_bytes"]) for row in uplinks]
        assert as_the_trace_says(sum(predicted) // 4, TENSOR)
        assert all(int(row["tx_bytes"]) >= payload for row, payload in zip(uplinks, predicted, strict=True))
        if policy == "pinned":
            assert all(as_the_trace_says(payload, TENSOR) for payload in predicted)
