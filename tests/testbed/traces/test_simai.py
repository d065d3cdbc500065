# SPDX-License-Identifier: Apache-2.0
"""SimAI's workloads: times by hand, groups, and the error of every kind of bad line."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.traces.simai import read_simai
from testbed.training.ideal import run

FILE = Path(__file__).parent / "data" / "simai.txt"
RATE_BPS = 8e9
"""One byte takes a nanosecond."""
HEADER = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 all_gpus: 8"


def written(folder: Path, header: str, *layers: str) -> Path:
    path = folder / "w.txt"
    path.write_text("\n".join([header, str(len(layers)), *layers]) + "\n")
    return path


def test_an_iteration_takes_as_long_as_by_hand() -> None:
    # Forward: 1 ms, 4 MB in a ring of two, 3 ms. Back: 1 ms, half of 6 MB, 0.7 ms; 2 ms and 0.5 ms while half of 8 MB
    # is reduced, which takes until 16.7 ms; then 8 MB.
    graph = read_simai(FILE, 2)
    assert graph.devices == 4
    found = run(graph, RATE_BPS)
    assert found.seconds == pytest.approx(24.7e-3)
    assert list(graph.computed_s()) == pytest.approx([8.2e-3] * 4)
    assert list(graph.sent_bytes()) == [4e6 + 3e6 + 4e6 + 8e6] * 4


def test_ranks_count_where_the_header_does_not(tmp_path: Path) -> None:
    path = written(tmp_path, "MICRO", "micro_test -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 6000 1")
    graph = read_simai(path, 6)
    assert graph.devices == 6
    assert run(graph, RATE_BPS).seconds == pytest.approx(3e-9 + 1e-5)


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("ALLREDUCE", (0, 2, 4, 6)),  # of weights' gradients: data parallelism
        ("ALLREDUCE_EP", (0, 2)),
        ("ALLREDUCE_DP_EP", (0, 4)),
    ],
)
def test_groups_are_those_of_simai(tmp_path: Path, kind: str, members: tuple[int, ...]) -> None:
    graph = read_simai(written(tmp_path, HEADER, f"l -1 0 NONE 0 0 NONE 0 0 {kind} 800 1"), 2)
    groups = [task.devices for task in graph.tasks if task.kind]
    assert members in groups
    assert sorted(device for group in groups for device in group) == list(range(8))


def test_forward_collectives_are_of_tensor_groups(tmp_path: Path) -> None:
    graph = read_simai(written(tmp_path, HEADER, "l -1 0 ALLTOALL 800 0 ALLGATHER_EP 80 0 NONE 0 1"), 2)
    assert [(task.kind, task.devices) for task in graph.tasks][:5] == [
        *(("all_to_all", (first, first + 1)) for first in (0, 2, 4, 6)),
        ("all_gather", (0, 2)),
    ]


BATCH = "embedding_layer -1 1000 NONE 0 2000 NONE 0 0 NONE 0 1"


def pipeline(gpus: int, batches: int, *, stages: int = 2) -> str:
    return f"HYBRID_TRANSFORMER model_parallel_NPU_group: 1 ep: 1 pp: {stages} vpp: 9 ga: {batches} all_gpus: {gpus}"


def test_stages_pass_microbatches_on(tmp_path: Path) -> None:
    """1F1B by hand: the first stage goes forward twice, and waits for the second one before each pass back."""
    tail = "optimizer -1 50 NONE 0 0 NONE 0 0 NONE 0 1"
    graph = read_simai(written(tmp_path, f"{pipeline(2, 2)} pp_comm: 100.0", BATCH, BATCH, tail), 2)
    assert run(graph, RATE_BPS).seconds == pytest.approx(9250e-9)
    assert list(graph.sent_bytes()) == [200, 200]
    assert list(graph.computed_s()) == pytest.approx([6050e-9] * 2)


def test_groups_are_within_a_stage(tmp_path: Path) -> None:
    head = "grad -1 0 NONE 0 0 NONE 0 0 ALLREDUCE 800 1"
    graph = read_simai(written(tmp_path, f"{pipeline(6, 1, stages=3)} pp_comm 8.5", head, BATCH), 2)
    assert [task.devices for task in graph.tasks if task.kind == "all_reduce"] == [(0, 1), (2, 3), (4, 5)]
    sent = {(task.devices, task.bytes) for task in graph.tasks if task.kind == "send"}
    assert sent == {((src, dst), 8) for src in range(6) for dst in (src - 2, src + 2) if 0 <= dst < 6}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([BATCH], "1: ga is 2, and the file does not have as many runs of layers"),
        ([BATCH, BATCH, "x" + BATCH, BATCH], "1: ga is 2, and the file does not have as many runs of layers"),
        ([BATCH, "x" + BATCH, BATCH], "5: this microbatch has fewer layers than the others, which have 2"),
    ],
)
def test_microbatches_that_are_not_alike_are_refused(tmp_path: Path, layers: list[str], expected: str) -> None:
    path = written(tmp_path, f"{pipeline(2, 2)} pp_comm: 100", *layers)
    with pytest.raises(ValueError, match=r"w\.txt:") as refusal:
        read_simai(path, 2)
    assert str(refusal.value).startswith(f"{path}:{expected}")


def test_gpus_must_fill_all_stages(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"w\.txt:1: 5 GPUs are not a multiple of 1 \(tensor\) times 1 .* times 2 \(pp"
    ):
        read_simai(written(tmp_path, f"{pipeline(5, 1)} pp_comm: 100", BATCH), 2)


def test_a_broadcast_is_a_chain(tmp_path: Path) -> None:
    header = "HYBRID_TRANSFORMER model_parallel_NPU_group: 4 all_gpus: 4"
    graph = read_simai(written(tmp_path, header, "norm -1 5 BROADCAST 900 0 NONE 0 0 NONE 0 1"), 2)
    assert list(graph.sent_bytes()) == [900, 900, 900, 0]
    assert run(graph, RATE_BPS).seconds == pytest.approx(905e-9)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "DLRM", "1: must begin with one of HYBRID_TRANSFORMER_FWD_IN_BCKWD"),
        ("all_gpus: 4", "all_gpus: 3", "1: 3 GPUs are not a multiple of 2 (tensor) times 1 (expert)"),
        ("all_gpus: 4", "all_gpus: four", "1: all_gpus must be a whole number, not 'four'"),
        ("vpp: 1", "pp: 1", "1: pp is given twice"),
        (" pp: 1", " pp: 2", "1: pp is 2, so pp_comm is needed, above 0"),
        ("pp: 1 vpp: 1 ga: 1", "pp: 2 vpp: 1", "1: pp is 2, so ga is needed, above 0"),
        ("pp_comm: 0", "pp_comm: 0.x", "1: pp_comm must be a number, not '0.x'"),
        ("pp_comm: 0", "pp_comm: .5", "1: pp_comm must be a whole number, not ''"),
        ("ep: 1", "ep: 1.0", "1: ep must be a whole number, not '1.0'"),
        ("checkpoints: 0", "checkpoints: 1", "1: checkpoints of layers, which recompute"),
        ("all_gpus: 4", "all_gpus: 400000", "2: 2 layers on 400000 GPUs are more than 2000000 tasks"),
        ("\n2\n", "\n3\n", "2: the number of layers is 3, and the file has 2"),
        ("\n2\n", "\n1\n", "4: line 2 says 1 layers, and this is one more"),
        ("\n2\n", "\n2.0\n", "2: the number of layers must be a whole number, not '2.0'"),
        ("ALLREDUCE\t4000000", "GATHER\t4000000", "3: 'GATHER' is not a collective; known are NONE, ALLREDUCE"),
        ("ALLREDUCE\t4000000", "ALLREDUCE_XY\t4000000", "3: 'ALLREDUCE_XY' is not a collective"),
        ("4000000", "-4", "3: the bytes of a collective must be 0 to"),
        ("\t3000000", "\tx", "4: a computing time must be a whole number, not 'x'"),
        ("\t100\nmlp", "\nmlp", "3: a layer has 12 words, not 11"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = FILE.read_text()
    assert old in text
    path = tmp_path / "w.txt"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"w\.txt:") as refusal:
        read_simai(path, 2)
    assert str(refusal.value).startswith(f"{path}:{expected}")
    assert "\n" not in str(refusal.value)
