# SPDX-License-Identifier: Apache-2.0
"""Answers that the host's own kernel drops, from a file like that of proc."""

from __future__ import annotations

from pathlib import Path

from testbed.probing.reverse_path import dropped, remarks_on

KERNEL = """TcpExt: SyncookiesSent IPReversePathFilter TCPTimeouts
TcpExt: 1 26 3
IpExt: InNoRoutes InOctets
IpExt: 7 8
"""


def test_the_counter_is_found_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "netstat"
    assert dropped(file) == 0
    file.write_text(KERNEL)
    assert dropped(file) == 26
    file.write_text(KERNEL.replace("IPReversePathFilter", "Another"))
    assert dropped(file) == 0


def test_dropped_packets_are_told_with_what_lets_them_in() -> None:
    (said,) = remarks_on(26)
    assert said.startswith("this host dropped 26 packets meanwhile")
    assert "rp_filter=2" in said
    assert not list(remarks_on(0))
