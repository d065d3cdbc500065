# SPDX-License-Identifier: Apache-2.0
"""Chakra execution traces: times by hand, what becomes of each type of node, and errors with their bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.traces.chakra import read_chakra
from testbed.training.ideal import run
from tests.testbed.traces import chakra_files as files
from tests.testbed.traces.chakra_files import COLLECTIVE, COMPUTE, MEMORY, RECEIVE, SEND, Node

Entry = dict[str, object]
DATA = Path(__file__).parent / "data"
RATE_BPS = 8e9
"""One byte takes a nanosecond."""


def test_the_golden_trace_takes_as_long_as_by_hand() -> None:
    graph = read_chakra(DATA / "chakra")
    assert graph.devices == 4
    # Computing 10, ring of four 2 * 3 / 4 * 40, computing 5, sending 3, gathering 1 from each of two.
    assert run(graph, RATE_BPS).seconds == pytest.approx((10 + 60 + 5 + 3 + 1) * 1e-6)
    assert list(graph.sent_bytes()) == [64_000, 61_000, 60_000, 60_000]


def test_the_golden_files_are_those_of_the_writer(tmp_path: Path) -> None:
    files.write(tmp_path / "chakra", files.golden())
    for rank in range(4):
        assert (tmp_path / f"chakra.{rank}.et").read_bytes() == (DATA / f"chakra.{rank}.et").read_bytes()


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (files.ALL_REDUCE, [1500] * 4),
        (files.ALL_GATHER, [3000] * 4),
        (files.REDUCE_SCATTER, [750] * 4),
        (files.ALL_TO_ALL, [750] * 4),
        (files.BROADCAST, [1000, 1000, 1000, 0]),
        (files.REDUCE, [1000, 1000, 1000, 0]),
        (files.BARRIER, [0] * 4),
    ],
)
def test_a_collective_sends_what_its_kind_sends(tmp_path: Path, kind: int, sent: list[int]) -> None:
    nodes = [Node(0, COLLECTIVE, attributes={"comm_type": kind, "comm_size": 1000})]
    assert list(read_chakra(files.write(tmp_path / "t", [nodes] * 4)).sent_bytes()) == sent


def test_the_second_collective_of_a_group_waits_for_what_its_nodes_wait_for(tmp_path: Path) -> None:
    first = Node(1, COLLECTIVE, attributes={"comm_type": files.ALL_REDUCE, "comm_size": 1000})
    second = Node(3, COLLECTIVE, [2], attributes={"comm_type": files.ALL_REDUCE, "comm_size": 2000})
    ranks = [[first, Node(2, COMPUTE, [1], duration), second] for duration in (4, 9)]
    assert run(read_chakra(files.write(tmp_path / "t", ranks)), RATE_BPS).seconds == pytest.approx(12e-6)


def test_processors_compute_beside_the_accelerator(tmp_path: Path) -> None:
    nodes = [Node(1, COMPUTE, [], 8), Node(2, COMPUTE, [], 8), Node(3, COMPUTE, [], 20, {"is_cpu_op": True})]
    assert run(read_chakra(files.write(tmp_path / "t", [nodes])), RATE_BPS).seconds == pytest.approx(20e-6)


def converted(kernel: Node) -> list[Node]:
    """As PyTorch's converter of 2024 writes: a processor's operators call one another and launch `kernel`."""
    launch = Node(3, kernel.type, [2], 4, {"is_cpu_op": True, "rf_id": 9}, calls=[3])
    return [
        Node(1, COMPUTE, [], 2, {"is_cpu_op": True}),
        Node(2, COMPUTE, [1], 3, {"is_cpu_op": True}, calls=[3]),
        launch,
        kernel,
    ]


def test_a_launch_of_a_communication_takes_its_time_on_the_processor(tmp_path: Path) -> None:
    kernel = Node(4, COLLECTIVE, [3], 0, {"is_cpu_op": False, "comm_type": files.ALL_REDUCE, "comm_size": 1000})
    graph = read_chakra(files.write(tmp_path / "t", [converted(kernel)] * 2))
    assert list(graph.sent_bytes()) == [1000, 1000]
    assert run(graph, RATE_BPS).seconds == pytest.approx((2 + 3 + 4 + 1) * 1e-6)


def test_bytes_of_a_launch_without_type_and_size_are_read(tmp_path: Path) -> None:
    """Written by hand: node 1 launches (type 7, is_cpu_op), 5 us; node 2 all-reduces 8 bytes after it."""
    launch = b"\x08\x01\x18\x07\x22\x01\x01\x38\x05\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x01"
    kernel = b"\x08\x02\x18\x07\x2a\x01\x01\x52\x0d\x0a\x09comm_type\x48\x00\x52\x0d\x0a\x09comm_size\x48\x08"
    messages = (b"\x0a\x050.0.4", launch, kernel)
    for rank in range(2):
        (tmp_path / f"t.{rank}.et").write_bytes(b"".join(bytes([len(message)]) + message for message in messages))
    graph = read_chakra(tmp_path / "t")
    assert list(graph.sent_bytes()) == [8, 8]
    assert run(graph, RATE_BPS).seconds == pytest.approx(5.008e-6)


def test_controls_are_waited_for_where_no_node_is_its_own(tmp_path: Path) -> None:
    nodes = [Node(1, COMPUTE, [], 8), Node(2, COMPUTE, [], 8, {"is_cpu_op": True}, calls=[1])]
    assert run(read_chakra(files.write(tmp_path / "t", [nodes])), RATE_BPS).seconds == pytest.approx(16e-6)


def test_an_accelerators_collective_without_a_type_is_refused_with_its_name(tmp_path: Path) -> None:
    nodes = [Node(1, COLLECTIVE, attributes={"is_cpu_op": False, "comm_size": 9})]
    with pytest.raises(ValueError, match=r"byte 9: node 1 \('node 1'\) is a collective without comm_type; add it"):
        read_chakra(files.write(tmp_path / "t", [nodes]))


def test_a_send_does_not_wait_for_its_receiver(tmp_path: Path) -> None:
    """Each rank of this ring sends before it receives, as in ASTRA-sim's; a receive also waits for its own node."""
    ranks = [
        [
            Node(1, SEND, attributes={"comm_dst": 1 - rank, "comm_size": 3000}),
            Node(2, COMPUTE, [], 5),
            Node(3, RECEIVE, [1, 2], attributes={"comm_src": 1 - rank, "comm_size": 3000}),
            Node(4, COMPUTE, [3], 2),
        ]
        for rank in (0, 1)
    ]
    assert run(read_chakra(files.write(tmp_path / "t", ranks)), RATE_BPS).seconds == pytest.approx(7e-6)
    ranks[1][0] = Node(1, SEND, [5], attributes={"comm_dst": 0, "comm_size": 3000})
    ranks[1].append(Node(5, COMPUTE, [], 40))
    assert run(read_chakra(files.write(tmp_path / "t", ranks)), RATE_BPS).seconds == pytest.approx((45 + 3 + 2) * 1e-6)


def test_dimensions_that_are_all_involved_leave_nobody_out(tmp_path: Path) -> None:
    attributes: dict[str, files.Value] = {
        "comm_type": files.ALL_REDUCE,
        "comm_size": 1000,
        "involved_dim": [True, True],
    }
    graph = read_chakra(files.write(tmp_path / "t", [[Node(0, COLLECTIVE, attributes=attributes)]] * 4))
    assert list(graph.sent_bytes()) == [1500] * 4


def test_of_nodes_that_wait_for_a_circle_one_of_the_circle_is_named(tmp_path: Path) -> None:
    shared: dict[str, files.Value] = {"comm_type": files.BROADCAST, "comm_size": 9}
    ranks = [
        [Node(1, COMPUTE, [3]), Node(2, COLLECTIVE, [3], attributes=shared), Node(3, COMPUTE, [2])],
        [Node(2, COLLECTIVE, attributes=shared)],
    ]
    with pytest.raises(ValueError, match=r"t\.0\.et: byte \d+: node [23] waits for itself"):
        read_chakra(files.write(tmp_path / "t", ranks))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([[Node(1, MEMORY)]], "t.0.et: byte 9: node 1 is of type 2"),
        ([[Node(1, COMPUTE), Node(1, COMPUTE)]], "t.0.et: byte 24: node 1 has the id of a node before it"),
        ([[Node(1, COMPUTE, [9])]], "t.0.et: byte 9: node 1 waits for node 9, which the file does not have"),
        ([[Node(1, COMPUTE, [2]), Node(2, COMPUTE, [1])]], "t.0.et: byte 9: node 1 waits for itself"),
        ([[Node(1, COMPUTE, attributes={"num_ops": 9})]], "t.0.et: byte 9: node 1 has num_ops instead of a duration"),
        ([[Node(1, COMPUTE, [], 1 << 60)]], "t.0.et: byte 9: node 1 takes 1152921504606846976 us"),
        ([[Node(1, COLLECTIVE)]], "t.0.et: byte 9: node 1 ('node 1') is a collective without comm_type"),
        (
            [[Node(1, COLLECTIVE, attributes={"comm_type": files.GATHER, "comm_size": 9})]],
            "t.0.et: byte 9: node 1 is a",
        ),
        ([[Node(1, COLLECTIVE, attributes={"comm_type": 0})]], "t.0.et: byte 9: node 1 needs an attribute comm_size"),
        (
            [[Node(1, COLLECTIVE, attributes={"comm_type": 0, "comm_size": 9, "involved_dim": [True, False]})]] * 2,
            "t.0.et: byte 9: node 1 leaves out dimensions (involved_dim); name its members by pg_name",
        ),
        ([[Node(1, COLLECTIVE, attributes={"comm_type": 0, "comm_size": -9})]], "t.0.et: byte 9: node 1 needs an"),
        ([[Node(1, COLLECTIVE, attributes={"comm_type": 0, "comm_size": 0.5})]], "t.0.et: byte 9: node 1 needs an"),
        (
            [[Node(1, COLLECTIVE, attributes={"comm_type": 0, "comm_size": size})] for size in (8, 9)],
            "t.1.et: byte 9: node 1 differs in type or size",
        ),
        (
            [[Node(1, COLLECTIVE, attributes={"comm_type": 0, "comm_size": 9})], []],
            "t.0.et: byte 9: node 1 is a collective of all ranks",
        ),
        ([[Node(1, SEND, attributes={"comm_dst": 1, "comm_size": 9})], []], "t.0.et: byte 9: node 1 sends to rank 1"),
        (
            [[Node(1, RECEIVE, attributes={"comm_src": 1})], []],
            "t.0.et: byte 9: node 1 receives from rank 1 with tag 0",
        ),
        (
            [
                [Node(1, SEND, attributes={"comm_dst": 1, "comm_size": 9})],
                [Node(1, RECEIVE, attributes={"comm_src": 0, "comm_size": 8})],
            ],
            "t.1.et: byte 9: node 1 receives another size",
        ),
        (
            [[Node(1, SEND, attributes={"comm_src": 3, "comm_dst": 1, "comm_size": 9})]],
            "t.0.et: byte 9: node 1 sends for",
        ),
    ],
)
def test_what_a_task_graph_cannot_say_is_one_sentence_with_its_byte(
    tmp_path: Path, ranks: list[list[Node]], expected: str
) -> None:
    files.write(tmp_path / "t", ranks)
    with pytest.raises(ValueError, match=r"t\.\d\.et: ") as refusal:
        read_chakra(tmp_path / "t")
    text = str(refusal.value).replace(f"{tmp_path}/", "")
    assert text.startswith(expected)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "byte 0: is empty"),
        (b"\x1f\x8b\x08", "byte 0: is compressed"),
        (b"\x05\x0a", "byte 0: a message of 5 bytes goes beyond the end, byte 2"),
        (b"\xff" * 12, "byte 0: a number of variable length does not end"),
        (b"\x00\x02\x0f\x01", "byte 2: 15 is not a tag of a field"),
        (b"\x00\x02\x08\xff", "byte 3: a number of variable length does not end"),
        (b"\x00\x03\x12\x05a", "byte 4: field 2 ends beyond its message, whose end is byte 5"),
        (b"\x00\x03\x12\x01\xff", "byte 4: field 2 is not UTF-8 text"),
        (b"\x00\x05\x0d\x00\x00\x00\x00", "byte 3: field 1 is a FIXED32, and must be a VARINT"),
        (b"\x00\x04\x2a\x02\x01\x80", "byte 5: a number of variable length does not end"),
        # id 1, type 7, parent 3, input_types "int" (a string, where the present schema has a number), attribute "a" 9
        (
            b"\x00\x14\x08\x01\x18\x07\x20\x03\x3a\x03int\x5a\x07\x0a\x01a\x10\x02\x30\x09",
            "byte 2: is of Chakra's schema before October 2023; convert the trace anew",
        ),
    ],
)
def test_bytes_that_are_no_trace_are_one_sentence(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "t.0.et").write_bytes(content)
    with pytest.raises(ValueError, match="byte") as refusal:
        read_chakra(tmp_path / "t")
    assert str(refusal.value).startswith(f"{tmp_path}/t.0.et: {expected}")


def in_json(folder: Path, *ranks: list[Entry]) -> Path:
    for rank, entries in enumerate(ranks):
        (folder / f"t.{rank}.json").write_text(json.dumps({"workload_graph": entries, "ngpus": len(ranks)}))
    return folder / "t"


def entry(number: int, kind: int, after: list[int], **more: object) -> Entry:
    return {"Id": number, "Name": f"n{number}", "NodeType": kind, "data_deps": after, "is_cpu_op": False, **more}


def test_json_is_read_as_the_other_form(tmp_path: Path) -> None:
    ranks = []
    for rank in range(4):
        nodes = [
            entry(1, files.METADATA, []),
            entry(2, COMPUTE, [1], runtime=10),
            entry(3, COLLECTIVE, [2], comm_type=files.ALL_REDUCE, comm_size=40_000),
            entry(4, COMPUTE, [3, 2], runtime=5, ctrlDeps=[3]),
        ]
        if rank == 0:
            nodes.append(entry(5, SEND, [4], comm_dst=1, comm_tag=7, comm_size=3_000))
        if rank == 1:
            nodes.append(entry(5, RECEIVE, [4], comm_src=0, comm_tag=7, comm_size=3_000))
        if rank < 2:
            nodes.append(entry(6, COLLECTIVE, [5], comm_type=files.ALL_GATHER, comm_size=1_000, pg_name="tp"))
        ranks.append(nodes)
    graph, other = read_chakra(in_json(tmp_path, *ranks)), read_chakra(DATA / "chakra")
    assert run(graph, RATE_BPS).seconds == run(other, RATE_BPS).seconds
    assert list(graph.sent_bytes()) == list(other.sent_bytes())


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry(-1, COMPUTE, [])], "t.0.json: entry 0 of workload_graph: Id must be a whole number of 0 or more"),
        ([entry(1, COMPUTE, []), 7], "t.0.json: entry 1 of workload_graph: must be a JSON object"),
        ([entry(1, COMPUTE, [], runtime=0.5)], "t.0.json: entry 0 of workload_graph: runtime must be a whole number"),
        ([{"Id": 1}], "t.0.json: entry 0 of workload_graph: NodeType must be a whole number"),
        ([entry(1, COMPUTE, [], data_deps=7)], "t.0.json: entry 0 of workload_graph: data_deps and involved_dim must"),
        ([entry(1, COMPUTE, [True])], "t.0.json: entry 0 of workload_graph: data_deps must be a whole number"),
        ([entry(1, SEND, [], comm_dst=[1])], "t.0.json: entry 0 of workload_graph: comm_dst must be a whole number"),
        ([entry(1, COMPUTE, [9])], "t.0.json: entry 0 of workload_graph: node 1 waits for node 9, which the file"),
        ([entry(1, COLLECTIVE, [], comm_type=0)], "t.0.json: entry 0 of workload_graph: node 1 needs an attribute"),
        (
            [entry(1, COLLECTIVE, [], comm_type=0, comm_size=8, involved_dim=[True, False])],
            "t.0.json: entry 0 of workload_graph: node 1 leaves out dimensions",
        ),
    ],
)
def test_bad_json_is_one_sentence_with_its_entry(tmp_path: Path, entries: list[Any], expected: str) -> None:
    with pytest.raises(ValueError, match="entry") as refusal:
        read_chakra(in_json(tmp_path, entries))
    text = str(refusal.value).replace(f"{tmp_path}/", "")
    assert text.startswith(expected)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{\n", "t.0.json:2: is not JSON"),
        ("[]", "t.0.json:1: must be a JSON object with a list workload_graph"),
        ("[" * 100_000, "t.0.json:1: is not JSON"),
        ("9" * 5_000, "t.0.json:1: is not JSON"),
    ],
)
def test_what_is_no_json_trace_is_one_sentence(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "t.0.json").write_text(text)
    with pytest.raises(ValueError, match="JSON") as refusal:
        read_chakra(tmp_path / "t")
    assert str(refusal.value).replace(f"{tmp_path}/", "").startswith(expected)


def test_a_prefix_with_traces_of_both_forms_is_refused(tmp_path: Path) -> None:
    files.write(in_json(tmp_path, [entry(1, COMPUTE, [])]), [[Node(1, COMPUTE)]])
    with pytest.raises(ValueError, match=r"t\.0\.et: t\.0\.json is there too; remove one of the two"):
        read_chakra(tmp_path / "t")


def test_a_missing_prefix_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give the traces' common prefix"):
        read_chakra(tmp_path / "t.0.et")
