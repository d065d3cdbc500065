# SPDX-License-Identifier: Apache-2.0
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.measured.tables import MeasuredTables

PORTS = st.integers(0xC000, 0xC000 + 5)
EVENTS = st.lists(
    st.one_of(st.tuples(st.just("saw"), PORTS, st.sampled_from("abc")), st.tuples(st.just("doubt"), PORTS, st.none())),
    max_size=40,
)


@given(EVENTS)
def test_only_ports_seen_since_the_last_change_are_given_out(events: list[tuple[str, int, str | None]]) -> None:
    tables: MeasuredTables[str] = MeasuredTables()
    known: dict[int, str] = {}
    old: dict[int, str] = {}
    for now_s, (event, port, way) in enumerate(events):
        if event == "doubt" or way is None:
            tables.doubt(1, 2)
            old, known = old | known, {}
            continue
        former = (old | known).get(port)
        assert tables.saw(now_s, 1, 2, port, way) == (former if former != way else None)
        if known.get(port, way) != way:
            old, known = old | known, {}
        known[port] = way
        old.pop(port, None)
        assert tables.seen_s(1, 2, port) == now_s
    assert tables.known(1, 2) == dict(sorted(known.items()))
    assert tables.doubtful(1, 2) == sorted(old)
    assert sorted(tables.ways(1, 2)) == sorted(set(known.values()))
    for way in "abc":
        own = sorted(port for port, its in known.items() if its == way)
        assert tables.ports(1, 2, way, len(own)) == own
        assert tables.ports(1, 2, way, len(own) + 1) == []


def test_pairs_and_destination_ports_are_apart() -> None:
    tables: MeasuredTables[str] = MeasuredTables()
    tables.saw(0.0, 1, 2, 50_000, "a")
    for other in ((2, 1, 4791), (1, 2, 4792)):
        assert tables.known(*other) == {}
        assert tables.ports(other[0], other[1], "a", 1, other[2]) == []
        assert tables.generation(*other) == 0
        assert tables.seen_s(other[0], other[1], 50_000, other[2]) is None
    assert tables.known(1, 2) == {50_000: "a"}


def test_old_ports_never_become_current_again() -> None:
    tables: MeasuredTables[str] = MeasuredTables()
    tables.saw(0.0, 1, 2, 50_000, "a")
    tables.saw(0.0, 1, 2, 50_001, "a")
    before = tables.bytes
    for _ in range(256):
        tables.doubt(1, 2)
        assert tables.known(1, 2) == {}
    assert tables.doubtful(1, 2) == []
    assert tables.bytes < before
    assert tables.generation(1, 2) == 256


def test_memory_is_bounded_and_what_was_used_last_stays() -> None:
    tables: MeasuredTables[int] = MeasuredTables(most_bytes=100_000)
    for dst in range(1, 1_000):
        for port in range(8):
            tables.saw(0.0, 0, dst, 50_000 + port, port)
        assert tables.ports(0, 1, 3, 1) == [50_003]
        assert tables.bytes <= 100_000
    assert 1 < len(tables) < 200
    assert tables.known(0, 2) == {}
    assert tables.known(0, 999) == {50_000 + port: port for port in range(8)}
    for dst in range(1, 1_000):
        tables.forget(0, dst)
    assert (len(tables), tables.bytes) == (0, 0)


@pytest.mark.parametrize("ports", [8, 64])
def test_the_told_memory_is_about_what_is_used(ports: int) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tables: MeasuredTables[int] = MeasuredTables()
        for dst in range(300):
            for port in range(ports):
                tables.saw(0.0, 1_000 + dst, 2_000 + dst, 50_000 + port, port)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert tables.bytes == pytest.approx(used, rel=0.3)


def test_more_ways_than_a_fabric_has_are_refused() -> None:
    tables: MeasuredTables[int] = MeasuredTables()
    for way in range(1 << 16):
        tables.saw(0.0, 1, 2 + way % 500, 50_000 + way // 500, way)
    with pytest.raises(ValueError, match="65,536 distinct ways"):
        tables.saw(0.0, 1, 2, 50_000, -1)
