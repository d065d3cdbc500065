# SPDX-License-Identifier: Apache-2.0
"""Workload `trace`: messages and order, times on the models against the ideal switch, specs that name a file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from netmodel import SpecError
from testbed import spec
from testbed.conflict import Conflict
from testbed.training.hardware import Collective
from testbed.training.ideal import run
from testbed.training.tasks import TaskGraph
from testbed.workloads.trace import Trace
from tests.testbed.experiments import first_of
from tests.testbed.simulate.small import observe
from tests.testbed.training.graphs import graphs
from tests.testbed.workloads.test_schedules import simulate

SIMAI: dict[str, Any] = {"kind": "trace", "format": "simai", "file": "simai.txt"}
DATA = Path(__file__).parents[1] / "traces" / "data"


def small(graph: TaskGraph) -> TaskGraph:
    """The same graph with a byte for each megabyte."""
    tasks = [replace(task, bytes=task.bytes / 1e6) for task in graph.tasks]
    return TaskGraph(graph.devices, tasks, graph.after)


def trace_of(graph: TaskGraph) -> Trace:
    return Trace.model_validate({"format": "htsim", "file": "some.cm"}).holding(graph)


def written(folder: Path, /, **changes: Any) -> Path:
    """A spec whose trace is SimAI's sample, on one leaf with links of 8 Gbit/s."""
    shutil.copy(DATA / "simai.txt", folder / "simai.txt")
    document = {
        "name": "traced",
        "fabric": "fluid",
        "topology": {"leaf_spine": {"leaves": 1, "spines": 1, "hosts_per_leaf": 4, "host_rate": "8 Gbit/s"}},
        "workload": SIMAI,
        "policies": [{"name": "ecmp", "policy": "ecmp"}],
        **changes,
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(document))
    return folder / "spec.yaml"


@settings(max_examples=40, deadline=None)
@given(graph=graphs(blocking=False), seed=st.integers(0, 9))
def test_every_message_arrives_and_waits_only_for_earlier_steps(graph: TaskGraph, seed: int) -> None:
    graph = small(graph)
    trace = trace_of(graph)
    transfers, order = trace.schedule(graph.devices, seed), trace.order(graph.devices)
    assert [transfer.step for transfer in transfers] == sorted(transfer.step for transfer in transfers)
    for rank, output in enumerate(simulate(trace, graph.devices, seed)):
        assert output.tobytes() == trace.expected(rank, graph.devices, seed).tobytes()
    sent = np.zeros(graph.devices)
    for transfer in transfers:
        sent[transfer.src] += 8 * transfer.count
    assert (sent >= graph.sent_bytes() - 1e-3).all()
    assert (sent <= graph.sent_bytes() + 8 * len(transfers)).all()
    between = [(early, late) for early, late in order.waits.tolist() if max(early, late) < len(transfers)]
    assert all(transfers[early].step < transfers[late].step for early, late in between)


@settings(max_examples=40, deadline=None)
@given(graph=graphs(blocking=False))
def test_a_trace_is_never_faster_than_its_longest_chain(graph: TaskGraph) -> None:
    trace = trace_of(graph)
    transfers = trace.schedule(graph.devices, 0)
    assume(transfers)
    order, rate_bps = trace.order(graph.devices), 100e9
    lowered = TaskGraph(graph.devices)  # its messages, of which a NIC sends one at a time
    for transfer in transfers:
        lowered.send(transfer.src, transfer.dst, 8 * transfer.count)
    for seconds in order.pauses_s.tolist():
        lowered.join((), delay_s=seconds)
    for early, late in order.waits.tolist():
        lowered.wait(early, late)
    assert run(lowered, rate_bps).seconds >= graph.longest_chain_s(rate_bps) * (1 - 1e-9)


def test_a_device_computes_one_task_at_a_time() -> None:
    graph = TaskGraph(2)
    for _ in range(3):
        graph.send(0, 1, 1000, [graph.compute(0, 0.5)])
    order = trace_of(graph).order(2)
    assert order.pauses_s.tolist() == [0.5] * 3
    pauses = {(early, late) for early, late in order.waits.tolist() if min(early, late) >= 3}
    assert pauses == {(3, 4), (4, 5)}


def test_an_all_to_all_is_a_message_to_each_other_member() -> None:
    graph = TaskGraph(4)
    graph.collective(Collective("all_to_all", 3200), (0, 2, 3))
    found = {(transfer.src, transfer.dst): 8 * transfer.count for transfer in trace_of(graph).schedule(4, 0)}
    assert found == dict.fromkeys(
        [(a, b) for a in (0, 2, 3) for b in (0, 2, 3) if a != b], 1072
    )  # 3200 / 3, rounded up


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
def test_a_spec_runs_a_trace_as_long_as_the_ideal_switch(tmp_path: Path, fabric: str) -> None:
    experiment = spec.load(written(tmp_path, fabric=fabric))
    trace = experiment.spec.workload
    assert isinstance(trace, Trace)
    ideal_s = run(trace.graph, 8e9).seconds  # 24.7 ms by hand, see tests/testbed/traces/test_simai.py
    assert ideal_s == pytest.approx(24.7e-3)
    assert first_of(experiment).ideal_s() == pytest.approx(trace.graph.longest_chain_s(8e9))
    (record,) = observe(experiment).runs
    # Headers and acknowledgements are 3 % of the bytes; the collectives that overlap share their links here.
    assert 1.0 <= record.completion_s / ideal_s < 1.05


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
def test_a_run_ends_with_its_last_computation(tmp_path: Path, fabric: str) -> None:
    path = written(tmp_path, fabric=fabric)
    graph = TaskGraph(4)
    graph.compute(3, 0.5, [graph.send(2, 3, 1e6)])
    experiment = spec.load(path)
    workload = trace_of(graph)
    experiment = spec.check(experiment.spec.model_copy(update={"workload": workload}))
    (record,) = observe(experiment).runs
    assert record.completion_s >= workload.longest_chain_s(8e9) > 0.5


def test_a_dumped_spec_needs_no_other_file(tmp_path: Path) -> None:
    experiment = spec.load(written(tmp_path))
    (tmp_path / "simai.txt").unlink()
    again = tmp_path / "again.yaml"
    again.write_text(spec.dump(experiment.spec))
    assert first_of(spec.load(again)).transfers == first_of(experiment).transfers
    shown = spec.dump(experiment.spec, whole=False)
    assert yaml.safe_load(shown)["workload"] == SIMAI


def test_agents_get_the_trace_as_it_is() -> None:
    graph = TaskGraph(2)
    graph.send(0, 1, 801)
    trace = trace_of(graph)
    again = Trace.model_validate_json(trace.model_dump_json())
    assert again.schedule(2, 0) == trace.schedule(2, 0)
    assert again.bytes == trace.bytes == 808


def test_jobs_of_a_trace_run_side_by_side(tmp_path: Path) -> None:
    """Two jobs of two ranks each: the file does not say how many GPUs it has."""
    path = written(tmp_path, jobs=2)
    (tmp_path / "simai.txt").write_text("MICRO\n1\nm -1 1000000 NONE 0 0 NONE 0 0 ALLREDUCE 4000000 1\n")
    (record,) = observe(spec.load(path)).runs
    assert [job.ranks for job in record.jobs] == [2, 2]
    assert record.completion_s == pytest.approx(5e-3, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"workload": {**SIMAI, "file": "none.txt"}}, "none.txt: cannot be read: No such file"),
        ({"workload": {**SIMAI, "format": "chakra"}}, "simai.txt.0.et: there is no such file"),
        ({"workload": {**SIMAI, "format": "htsim"}}, "simai.txt:1: 'HYBRID_TRANSFORMER"),
        ({"workload": {**SIMAI, "first": 3}}, "is for formats floodns and hpcc only"),
        ({"workload": {**SIMAI, "bytes": 8}}, "the trace has the sizes"),
        ({"workload": {**SIMAI, "packed": "a"}}, "is not a packed trace"),
        ({"placement": {"hosts": ["h1", "h2"]}}, "the trace has 4 devices, and the job has 2 ranks"),
    ],
)
def test_a_trace_that_cannot_run_is_one_sentence_with_the_specs_line(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(SpecError) as refusal:
        spec.load(path)
    (mistake,) = refusal.value.mistakes
    assert expected in mistake.what
    assert mistake.line is not None
    assert mistake.place[:1] == ("workload",)


def floodns_job(first: int, second: int, size: int, start_ns: int = 0) -> str:
    """Two nodes that all-reduce: each sends `size` bytes in each of two steps."""
    return "".join(f"{src} {dst} 0 0 {start_ns} {size} 0 0\n" for src, dst in ((first, second), (second, first)))


def floodns(folder: Path, *jobs: str, **changes: Any) -> Path:
    for number, text in enumerate(jobs):
        (folder / f"job_{number}-GPT.txt").write_text(text)
    return written(folder, **({"workload": {"kind": "trace", "format": "floodns", "file": "."}} | changes))


def test_jobs_of_a_trace_are_jobs_of_the_experiment(tmp_path: Path) -> None:
    """Devices are hosts in order, whichever rank they are."""
    path = floodns(tmp_path, floodns_job(0, 2, 3_000_000), floodns_job(1, 3, 1_000_000, 5_000_000))
    experiment = spec.load(path)
    assert [(job.name, job.size) for job in experiment.jobs] == [("job_0-GPT", 2), ("job_1-GPT", 2)]
    assert experiment.first_hosts == ("h1", "h3", "h2", "h4")
    (record,) = observe(experiment).runs
    assert [job.completion_s for job in record.jobs] == pytest.approx([6e-3, 7e-3], rel=0.05)
    assert [first_of(experiment).ideal_s(job) for job in experiment.jobs] == pytest.approx([6e-3, 7e-3], rel=0.05)
    again = tmp_path / "again.yaml"
    again.write_text(spec.dump(experiment.spec))
    assert spec.load(again).first_hosts == experiment.first_hosts


def test_jobs_of_a_trace_may_leave_hosts_without_a_rank(tmp_path: Path) -> None:
    workload = {"kind": "trace", "format": "floodns", "file": ".", "first": 10}
    leaf = {"leaves": 1, "spines": 1, "hosts_per_leaf": 9, "host_rate": "8 Gbit/s"}
    path = floodns(
        tmp_path,
        floodns_job(17, 12, 800),
        floodns_job(13, 11, 800),
        workload=workload,
        topology={"leaf_spine": leaf},
        placement={"rule": "random", "redraw": True},
        seeds=2,
    )
    experiment = spec.load(path)
    assert experiment.ranks == 4
    assert {len(spec.Instance(experiment, seed).hosts) for seed in (1, 2)} == {4}
    assert spec.Instance(experiment, 1).hosts != spec.Instance(experiment, 2).hosts


def test_jobs_that_share_a_node_are_one(tmp_path: Path) -> None:
    experiment = spec.load(floodns(tmp_path, floodns_job(0, 2, 3000), floodns_job(2, 3, 1000)))
    assert [job.size for job in experiment.jobs] == [4]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"jobs": 2}, "workload trace has the jobs in its file; leave it out"),
        ({"placement": {"hosts": ["h1", "h2", "h3"]}}, "the trace has 4 devices, and the job has 3 ranks"),
        ({"workload": {**SIMAI, "jobs": {"a": [0]}}}, "the trace has the jobs; leave it out"),
    ],
)
def test_jobs_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    path = floodns(tmp_path, floodns_job(0, 2, 3000), floodns_job(1, 3, 1000), **changes)
    with pytest.raises(SpecError) as refusal:
        spec.load(path)
    (mistake,) = refusal.value.mistakes
    assert expected in mistake.what
    assert mistake.line is not None


@pytest.mark.parametrize("jobs", [{"a": [0]}, {"a": [0, 1], "b": [2, 3], "c": [4]}, {"a": [0, 2], "b": [1]}])
def test_jobs_that_a_packed_trace_does_not_have_are_refused(tmp_path: Path, jobs: dict[str, list[int]]) -> None:
    experiment = spec.load(floodns(tmp_path, floodns_job(0, 2, 3000), floodns_job(1, 3, 1000)))
    values = experiment.spec.workload.model_dump() | {"jobs": jobs}
    with pytest.raises(ValueError, match="is not a packed trace with these jobs"):
        Trace.model_validate(values)


def test_processes_run_transfers_whose_ends_know_when_to_send() -> None:
    graph = TaskGraph(4)
    first = graph.send(0, 1, 800)
    joined = graph.join([first, graph.send(2, 1, 800)])
    graph.send(1, 3, 800, [joined])
    trace = trace_of(graph)
    trace.check_real()
    transfers = trace.schedule(4, 0)
    places = {(transfer.src, transfer.dst): place for place, transfer in enumerate(transfers)}
    gate = len(transfers)
    wanted = {(places[0, 1], gate), (places[2, 1], gate), (gate, places[1, 3])}
    assert set(map(tuple, trace.order_at(1, 4).waits.tolist())) == wanted
    assert trace.order_at(0, 4).waits.tolist() == [[places[0, 1], gate]]
    graph.send(0, 2, 800, [joined])  # each end knows of one of both
    trace_of(graph).check_real()
    graph.send(2, 0, 800, [3])
    with pytest.raises(Conflict, match="ranks 2, 0 wait for what only other ranks do; use"):
        trace_of(graph).check_real()
    large = TaskGraph(2)
    large.send(0, 1, 1 << 31)
    with pytest.raises(Conflict, match="the trace sends 2147483648 bytes, more than 1073741824"):
        trace_of(large).check_real()
