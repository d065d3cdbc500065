# SPDX-License-Identifier: Apache-2.0
"""All formats: bad bytes are one sentence, and the packed form gives the same graph."""

from __future__ import annotations

import base64
import importlib
import lzma
import re
import shutil
import tracemalloc
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.traces import chakra, flexnet, floodns, formats, goal, hpcc, htsim, nccl_inspector, simai
from testbed.traces.formats import Format, pack, read_trace, unpack
from testbed.training.ideal import run
from testbed.training.tasks import TaskGraph
from tests.testbed.training.graphs import graphs

DATA = Path(__file__).parent / "data"
MATRIX = """Nodes 4
Connections 3
Triggers 1
0->1 id 1 start 0 size 1000 recv_done_trigger 1
2->3 id 2 start 500000 size 2000 recv_done_trigger 1
1->2 id 3 trigger 1 size 3000
trigger id 1 barrier count 2
"""
SCHEDULE = """num_ranks 2
rank 0 {
l1: calc 100
l2: send 1000b to 1 tag 7
l2 requires l1
}
rank 1 {
l1: recv 1000b from 0 tag 7
}
"""
FLOWS = "3\n2 1 3 100 2000 0\n3 1 3 100 3000 0.5\n4 1 3 100 1500 2.000000001\n"
SAMPLES: dict[Format, tuple[str, str]] = {
    "chakra": ("chakra.0.et", "chakra"),
    "flexnet": ("graph.fbuf", "graph.fbuf"),
    "floodns": ("floodns/job_0-A.txt", "floodns"),
    "goal": ("s.goal", "s.goal"),
    "hpcc": ("flow.txt", "flow.txt"),
    "htsim": ("matrix.cm", "matrix.cm"),
    "nccl_inspector": ("inspector/a-pid11.log", "inspector"),
    "simai": ("simai.txt", "simai.txt"),
}
"""By format: the file that is changed, and what is read."""
_PLACE = re.compile(r"^[^:]+(:\d+: |: byte \d+: |: task \d+ )")


def samples(folder: Path) -> None:
    shutil.copytree(DATA, folder, dirs_exist_ok=True)
    (folder / "matrix.cm").write_text(MATRIX)
    (folder / "s.goal").write_text(SCHEDULE)
    (folder / "flow.txt").write_text(FLOWS)
    (folder / "graph.fbuf").write_bytes(
        lzma.decompress((Path(__file__).parent / "flexnet/bert_16_100.fbuf.xz").read_bytes())
    )


@pytest.mark.parametrize("form", SAMPLES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_a_graph_or_one_sentence_with_file_and_place(form: Format, data: st.DataObject) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        for module in (chakra, flexnet, floodns, formats, goal, hpcc, htsim, nccl_inspector, simai):
            patch.setattr(module, "MOST_TASKS", 20_000)  # graphs beyond take seconds to build
        folder = Path(name)
        samples(folder)
        changed, read = (folder / place for place in SAMPLES[form])
        content = bytearray(changed.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, max(0, len(content) - 1)))
            match data.draw(st.sampled_from(["set", "insert", "delete", "cut"])):
                case "set":
                    content[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
                case "insert":
                    content[at:at] = data.draw(st.binary(min_size=1, max_size=3))
                case "delete":
                    del content[at : at + data.draw(st.integers(1, 9))]
                case _:
                    del content[at:]
        changed.write_bytes(content)
        sentence = ""
        try:
            graph = read_trace(form, read, 4)
        except ValueError as error:
            sentence = str(error)
        else:
            assert unpack(pack(graph)).sent_bytes().tolist() == graph.sent_bytes().tolist()
        assert not sentence or (
            sentence.startswith(name) and _PLACE.search(sentence.removeprefix(name)) and "\n" not in sentence
        )


@pytest.mark.parametrize("form", SAMPLES)
def test_every_sample_is_read(form: Format, tmp_path: Path) -> None:
    samples(tmp_path)
    graph = read_trace(form, tmp_path / SAMPLES[form][1], 4)
    assert graph.sent_bytes().sum() > 0


@given(graphs(blocking=False))
def test_a_packed_graph_runs_as_the_graph(graph: TaskGraph) -> None:
    again = unpack(pack(graph))
    assert run(again, 1e9).ends_s.tolist() == run(graph, 1e9).ends_s.tolist()


@given(st.binary(max_size=60) | st.just(b"").map(lambda _: pack(TaskGraph(0)).encode()))
def test_other_text_is_no_packed_graph(content: bytes) -> None:
    with pytest.raises(ValueError, match="is not a packed trace"):
        unpack(content.decode("latin-1"))


@pytest.mark.parametrize(
    ("form", "limit", "junk", "expected"),
    [
        ("chakra", "MOST_TASKS", b"\xff" * 20, r"chakra\.0\.et: byte \d+: node .* is one more than the 2 of all ranks"),
        ("flexnet", "MOST_ENTRIES", b"", r"byte \d+: the tasks up to this one have more than 2 followers"),
        ("floodns", "MOST_TASKS", b"\njunk", r"job_0-A\.txt:\d: this hop is one more than the 2 that are read"),
        ("nccl_inspector", "MOST_TASKS", b"\njunk", r"\.log:1: the collectives up to this one are more than 4 tasks"),
        ("simai", "MOST_TASKS", b"\njunk", r"simai\.txt:2: 2 layers on \d+ GPUs are more than 4 tasks"),
    ],
)
def test_limits_are_asked_while_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Format, limit: str, junk: bytes, expected: str
) -> None:
    """What comes after too much, such as junk, is not read any more."""
    samples(tmp_path)
    file, path = SAMPLES[form]
    with (tmp_path / file).open("ab") as changed:
        changed.write(junk)
    module = importlib.import_module(f"testbed.traces.{form}")
    monkeypatch.setattr(module, limit, 4 if form in ("nccl_inspector", "simai") else 2)
    with pytest.raises(ValueError, match=expected):
        read_trace(form, tmp_path / path, 4)


def bomb(unit: bytes, mebibytes: int = 60) -> str:
    """A packed text, about a thousandth as long as what it stands for."""
    compress = zlib.compressobj(9)
    parts = [compress.compress(b"[2,[")]
    parts += [compress.compress(unit * ((1 << 20) // len(unit))) for _ in range(mebibytes)]
    return base64.b64encode(b"".join(parts) + compress.flush()).decode()


UNITS = [b"0,", b"[[[[[[[[]]]]]]]],", b'{"a":0},', b"[],"]


@pytest.mark.parametrize("unit", UNITS)
def test_what_a_small_text_stands_for_is_counted_before_it_is_read(unit: bytes) -> None:
    packed = bomb(unit)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is not a packed trace"):
            unpack(packed)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20  # of the values: gigabytes
    finally:
        tracemalloc.stop()


def test_a_graph_that_would_not_be_read_again_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MOST_ENTRIES", 50)
    graph = TaskGraph(2)
    for _ in range(5):
        graph.send(0, 1, 8.0)
    assert len(unpack(pack(graph)).tasks) == 5
    for _ in range(5):
        graph.send(0, 1, 8.0)
    with pytest.raises(ValueError, match="more than 50 devices and waits; cut the trace"):
        pack(graph)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    for form in SAMPLES:
        with pytest.raises(ValueError, match=str(tmp_path)):
            read_trace(form, tmp_path / "none", 4)
