# SPDX-License-Identifier: Apache-2.0
"""`paralet bench path-service` with few hosts: every answer arrives, and every metric is measured on both sides."""

from __future__ import annotations

import pytest

from testbed.bench import path_service
from testbed.bench.frame import result


def test_every_metric_is_measured() -> None:
    load = path_service.Load(hosts=12, per_host_s=20, seconds=0.3, leaves=4, spines=3)
    ((*measurements,),) = path_service.run(load, repetitions=1)
    rows = result("path-service", measurements).rows
    assert [(row.metric, row.unit) for row in rows] == [
        ("answer, median", "ms"),
        ("answer, 99th", "ms"),
        ("answer after sending, median", "ms"),
        ("answer after sending, 99th", "ms"),
        ("processor time per announcement", "us"),
        ("core in use", "%"),
        ("core of the hosts in use", "%"),
    ]
    assert all(row.ours > 0 and row.peer > 0 and row.case == "12 hosts, 20/s each" for row in rows)


def test_a_host_is_answered_beside_a_faulty_one() -> None:
    median, worst = path_service.beside_faulty(seconds=0.3)
    assert (median.metric, worst.metric, worst.peer_name) == ("answer, median", "answer, 99th", "alone")
    assert 0 < median.ours <= worst.ours
    assert 0 < median.peer <= worst.peer


def test_an_operators_changes_are_stored_or_not() -> None:
    load = path_service.Load(hosts=8, per_host_s=20, seconds=0.3, leaves=4, spines=3)
    median, worst = path_service.beside_operator(load)
    assert (median.case, worst.peer_name) == ("8 hosts, 20/s each, 2 changes/s", "unstored")
    assert 0 < median.ours <= worst.ours
    assert 0 < median.peer <= worst.peer


@pytest.mark.parametrize("pings", [False, True])
def test_hosts_speak_tls_and_ping(pings: bool) -> None:
    load = path_service.Load(hosts=70, per_host_s=10, seconds=0.2, leaves=4, spines=3, tls=True, pings=pings)
    outcome = path_service.played(load, 0, has_operator=False, is_stored=True)
    assert len(outcome.due) == 70 * 2
    assert outcome.cpu_s > 0
    assert 0 <= outcome.idle_s <= outcome.span_s


def test_the_id_of_an_answer_is_found_at_any_position() -> None:
    assert path_service.answered(b'{"type":"assign","peer":"10.0.0.2","ports":[50000],"id":17}') == 17
    assert path_service.answered(b'{"type":"assign","id":3,"peer_port":4791}') == 3
    assert path_service.answered(b'{"type":"pong","nonce":4}') == 4
    assert path_service.answered(b'{"type":"standby"}') is None
