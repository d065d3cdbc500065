# SPDX-License-Identifier: Apache-2.0
"""htsim's connection matrices: what their triggers mean, round trips, and the error of every kind of bad line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.traces.htsim import read_connections, write_connections
from testbed.training.hardware import Collective
from testbed.training.ideal import run
from testbed.training.tasks import TaskGraph

RATE_BPS = 8e9
"""One byte takes a nanosecond."""
BARRIER = """Nodes 4
Connections 4
Triggers 2
# two flows, then a third, then a fourth
0->1 id 1 start 0 size 1000 recv_done_trigger 1
2->3 id 2 start 500000 size 2000 send_done_trigger 1
1->2 id 3 trigger 1 size 3000 recv_done_trigger 2
3->0 id 4 trigger 2 size 4000
trigger id 1 barrier count 2
trigger id 2 oneshot
"""


def test_triggers_order_flows_and_starts_are_picoseconds() -> None:
    graph = read_connections(BARRIER)
    assert graph.devices == 4
    found = run(graph, RATE_BPS)
    ends_us = {graph.tasks[n].name: 1e6 * found.ends_s[n] for n in range(4)}
    # The barrier waits for the flow that starts at 0.5 us and takes 2.
    assert ends_us == pytest.approx({"1": 1.0, "2": 2.5, "3": 5.5, "4": 9.5})


def test_a_multishot_starts_a_flow_at_each_activation() -> None:
    """An all-to-all as htsim's `gen_serialn_alltoall.py` writes it: each of four sends to two at once, then to one."""
    lines, triggers = [], []
    for rank in range(4):
        trigger = rank + 1
        for step in (1, 2):
            lines.append(
                f"{rank}->{(rank + step) % 4} id {3 * rank + step} start 0 size 1000 send_done_trigger {trigger}"
            )
        lines.append(f"{rank}->{(rank + 3) % 4} id {3 * rank + 3} trigger {trigger} size 500 addon")
        triggers.append(f"trigger id {trigger} multishot")
    text = "\n".join(["Nodes 4", "Connections 12", "Triggers 4", *lines, *triggers])
    graph = read_connections(text)
    assert list(graph.sent_bytes()) == [2500] * 4
    assert [after for after in graph.after if after] == [[3 * rank] for rank in range(4)]


def test_a_flow_that_a_multishot_starts_may_activate_it_again() -> None:
    flows = "0->1 id 1 start 0 size 10 send_done_trigger 1\n" + "".join(
        f"0->{rank} id {rank} trigger 1 size 10 send_done_trigger 1\n" for rank in (2, 3)
    )
    graph = read_connections(f"Nodes 4\nConnections 3\nTriggers 1\n{flows}trigger id 1 multishot\n")
    assert graph.after == [[], [0], [1]]


def ring(members: int, steps: int, size: int) -> TaskGraph:
    """Every member sends to the next one what it has received in the step before."""
    graph, before = TaskGraph(members), dict[int, int]()
    for _ in range(steps):
        before = {
            (rank + 1) % members: graph.send(rank, (rank + 1) % members, size, [before[rank]] if rank in before else [])
            for rank in range(members)
        }
    return graph


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 10**9))
def test_a_ring_that_is_written_and_read_takes_as_long(members: int, steps: int, size: int) -> None:
    graph = ring(members, steps, size)
    again = read_connections(write_connections(graph))
    assert run(again, RATE_BPS).seconds == pytest.approx(run(graph, RATE_BPS).seconds)
    assert list(again.sent_bytes()) == list(graph.sent_bytes())


def test_a_written_matrix_has_the_triggers_that_htsim_activates() -> None:
    """htsim's receivers ignore `recv_done_trigger`: with it, a ring of htsim ends after its first step."""
    assert write_connections(ring(2, 2, 1000)) == (
        "Nodes 2\nConnections 4\nTriggers 2\n"
        "0->1 id 1 start 0 size 1000 send_done_trigger 2\n"
        "1->0 id 2 start 0 size 1000 send_done_trigger 1\n"
        "0->1 id 3 trigger 1 size 1000\n"
        "1->0 id 4 trigger 2 size 1000\n"
        "trigger id 1 oneshot\ntrigger id 2 oneshot\n"
    )


def test_a_written_matrix_is_the_same_after_reading_it() -> None:
    text = write_connections(read_connections(BARRIER))
    assert write_connections(read_connections(text)) == text
    assert "trigger id 1 barrier count 2" in text


def test_barriers_of_many_flows_become_one_join() -> None:
    graph = TaskGraph(8)
    first = [graph.send(rank, rank + 4, 100) for rank in range(4)]
    joined = graph.join(first)
    for rank in range(4):
        graph.send(rank + 4, rank, 100, [joined])
    again = read_connections(write_connections(graph))
    assert sum(len(waits) for waits in again.after) == 4 + 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Connections 4", "Connections 5", "t.cm:2: Connections is 5, and the file has 4"),
        ("Triggers 2", "Triggers 1", "t.cm:3: Triggers is 1, and the file has 2"),
        ("Nodes 4", "Nodes 0", "t.cm:1: Nodes must be 1 to 2000000, not 0"),
        ("Nodes 4", "Nodes 2000001", "t.cm:1: Nodes must be 1 to 2000000, not 2000001"),
        ("Nodes 4\n", "", "t.cm:4: Nodes and their number must come before flows"),
        (BARRIER, "", "t.cm:1: has no line with Nodes and their number"),
        ("0->1", "0->4", "t.cm:5: task 0 is on (0, 4), and the graph has 4 devices"),
        ("0->1", "0->0", "t.cm:5: device 0 cannot send to itself"),
        ("0->1", "0->x", "t.cm:5: a receiver must be a number, not 'x'"),
        ("size 1000", "", "t.cm:5: a flow needs a size"),
        ("size 1000", "size 0", "t.cm:5: size must be 1 or more, not 0"),
        ("start 0 size", "size", "t.cm:5: a flow needs either a start or a trigger"),
        ("id 2", "id 1", "t.cm:6: flow id 1 is that of line 5 too"),
        ("start 0", "begin 0", "t.cm:5: 'begin' is not a key of a flow; known are start"),
        ("count 2", "count 3", "t.cm:9: trigger 1 needs 3 activations, and 2 flows have it"),
        ("count 2", "", "t.cm:9: a barrier's count must be a number, not ''"),
        ("trigger id 2 oneshot", "trigger id 1 oneshot", "t.cm:10: trigger 1 is that of line 9 too"),
        ("recv_done_trigger 2", "addon 2", "t.cm:7: 2 needs a value"),
        ("trigger id 2 oneshot", "trigger id 2", "t.cm:10: a trigger has an id and one of oneshot"),
        ("trigger id 2", "trigger id 3", "t.cm:7: trigger 2 is used, but not defined"),
        ("# two", "two", "t.cm:4: 'two' begins neither a header, a flow nor a trigger"),
        ("# two", "Failures 1 #", "t.cm:4: a task graph has no failed links"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(old: str, new: str, expected: str) -> None:
    assert old in BARRIER
    with pytest.raises(ValueError, match=r"t\.cm:") as refusal:
        read_connections(BARRIER.replace(old, new, 1), "t.cm")
    assert str(refusal.value).startswith(expected)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("flows", "expected"),
    [
        (
            "0->1 id 1 start 0 size 9\n0->2 id 2 trigger 1 size 9\n",
            "trigger 1 starts its 1 flows one by one, and 0 flows activate it",
        ),
        (
            "0->1 id 1 start 0 size 9 \n0->2 id 2 trigger 1 size 9 send_done_trigger 1\n",
            "trigger 1 would let a flow wait for itself",
        ),
    ],
)
def test_a_multishot_needs_an_earlier_flow_for_each_of_its_flows(flows: str, expected: str) -> None:
    text = f"Nodes 3\nConnections 2\nTriggers 1\n{flows}trigger id 1 multishot\n"
    with pytest.raises(ValueError, match=r"t\.cm:6: ") as refusal:
        read_connections(text, "t.cm")
    assert str(refusal.value).startswith(f"t.cm:6: {expected}")


def test_a_flow_of_less_than_half_a_byte_is_written_with_one_byte() -> None:
    graph = TaskGraph(2)
    graph.send(0, 1, 0.4)
    assert "0->1 id 1 start 0 size 1\n" in write_connections(graph)


def test_what_htsim_cannot_say_is_refused() -> None:
    graph = ring(3, 1, 10)
    graph.compute(0, 1.0)
    with pytest.raises(ValueError, match="task 3 is not a transfer"):
        write_connections(graph)
    graph = TaskGraph(3)
    graph.collective(Collective("all_reduce", 8), (0, 1, 2))
    with pytest.raises(ValueError, match="task 0 is not a transfer"):
        write_connections(graph)
    graph = ring(3, 1, 10)
    graph.send(1, 2, 5, [0])
    graph.send(1, 0, 5, [0, 1])
    with pytest.raises(ValueError, match="task 0 would activate two triggers"):
        write_connections(graph)
    write_connections(ring(2, 1, 2**31 - 1))
    with pytest.raises(ValueError, match="task 0 sends 2147483648 bytes, and htsim reads at most 2147483647; make"):
        write_connections(ring(2, 1, 2**31))
    graph = ring(3, 1, 10)
    graph.send(1, 2, 5, [0], delay_s=1e-6)
    with pytest.raises(ValueError, match="task 3 starts later"):
        write_connections(graph)
