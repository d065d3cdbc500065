# SPDX-License-Identifier: Apache-2.0
"""Lines of several messages at a time."""

from __future__ import annotations

import time

from sdn.path_service.host_lines import Said, lines_of
from sdn.path_service.messages import Announce, Ping, Pong, Release, from_host, to_line


def test_each_connection_is_written_to_once_and_in_order() -> None:
    assert list(lines_of([])) == []
    assert list(lines_of([(3, Pong(1))])) == [(3, to_line(Pong(1)))]
    both = dict(lines_of([(3, Pong(1)), (4, Pong(2)), (3, Pong(3))]))
    assert both == {3: to_line(Pong(1)) + to_line(Pong(3)), 4: to_line(Pong(2))}


def test_when_time_is_over_messages_end_with_one_that_releases_nothing() -> None:
    messages = [Release(1), Announce(2, "10.0.0.1", 1), Ping(1)]
    said = Said([to_line(message) for message in messages], time.perf_counter() - 1, from_host)
    assert list(said) == messages[:2]
    assert (said.count, said.wrong) == (2, "")
