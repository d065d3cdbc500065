# SPDX-License-Identifier: Apache-2.0
"""The bench of `paralet pin`: its programs run, and their connections have planned ports."""

from __future__ import annotations

import shutil

import pytest

from testbed.bench import pin
from testbed.errors import TestbedError


def test_connections_are_timed_with_planned_ports_and_without() -> None:
    (measured,) = pin.connections(1, 40)
    assert (measured.case, measured.unit) == ("40 connections", "us")
    assert measured.ours > 0 < measured.peer


def test_ranks_that_connect_at_once_are_timed_too() -> None:
    (measured,) = pin.connections(1, 40, ranks=2)
    assert measured.case == "40 connections of each of 2 ranks at once"
    assert measured.ours > 0 < measured.peer


def test_connections_without_planned_ports_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin, "_NETWORKS", "10.0.0.0/8")
    with pytest.raises(TestbedError, match=r"^only \d+% of the connections had a planned port$"):
        list(pin.connections(1, 40))


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is missing")
def test_iperf3_is_measured_with_planned_ports_and_without() -> None:
    (measured,) = pin.iperf3(1, 1)
    assert measured.ours > 0 < measured.peer
