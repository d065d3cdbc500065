# SPDX-License-Identifier: Apache-2.0
"""Workload `language_model`: an iteration on every fabric against its bounds, the ideal switch and the closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from netmodel import PortRef, SpecError
from testbed import spec
from testbed.conflict import Conflict
from testbed.spec import Experiment, Spec, check
from testbed.training.closed_form import estimate
from testbed.training.communication import sent_over_fabric
from testbed.training.ideal import run
from testbed.training.schedule import iteration, work_of
from testbed.training.transformer import GPT_22B
from testbed.workloads.language_model import LanguageModel
from tests.testbed.experiments import first_of
from tests.testbed.simulate.small import ACK_BYTES, HEADER_BYTES, observe

RATE_BPS = 180e9
"""What a NIC of 200 Gbit/s reaches."""
SPLIT = {"tensor": 4, "pipeline": 2, "data": 2, "microbatches": 2, "sequence": True}
PAIRS = {"tensor": 2, "pipeline": 2, "data": 2, "microbatches": 3, "zero": 1}
ECMP, LANES = {"name": "ecmp", "policy": "ecmp"}, {"name": "lanes", "policy": "ecmp", "m": 8}
PLANNED = {"name": "planned", "policy": "controller", "planner": "optimal"}
VCLOS = {"name": "vclos", "policy": "vclos"}


def clos(leaves: int = 4, spines: int = 4, **more: int) -> dict[str, Any]:
    return {"leaf_spine": {"leaves": leaves, "spines": spines, "hosts_per_leaf": 4, "host_rate": "180 Gbit/s", **more}}


def rails(kind: str, **more: int) -> dict[str, Any]:
    sizes = {"domains": 4, "gpus_per_domain": 4, "rail_rate": "180 Gbit/s", "hb_rate": "2400 Gbit/s"}
    return {"topology": {kind: {**sizes, **more}}, "local_nic": "nic1"}


def circuits(hosts: int, degree: int, **optical: Any) -> dict[str, Any]:
    return {
        "topology": {"direct_connect": {"hosts": hosts, "degree": degree, "rate": "60 Gbit/s"}},
        "optical": optical,
        "strategy": PAIRS,
    }


EXPERTS: dict[str, Any] = {
    "strategy": {"tensor": 2, "pipeline": 2, "data": 4, "expert": 2, "microbatches": 2},
    "workload": {"experts": 4, "chosen": 2, "iterations": 2},
}
"""Two iterations of a model whose layers have experts, which two copies share."""

FABRICS: dict[str, dict[str, Any]] = {
    "clos": {"topology": clos(), "policies": [ECMP, LANES, PLANNED]},
    "packet": {"topology": clos(), "policies": [ECMP, LANES, PLANNED], "fabric": "packet", "divided": 5000},
    "experts": {"topology": clos(), "policies": [ECMP, LANES, PLANNED], **EXPERTS},
    "experts on packet": {"topology": clos(), "policies": [ECMP], "fabric": "packet", "divided": 5000, **EXPERTS},
    "vclos": {
        "topology": clos(),
        "policies": [ECMP, VCLOS],
        "placement": {"rule": "vclos"},
        "jobs": 2,
        "strategy": PAIRS,
    },
    "rail-only": {**rails("rail_only"), "policies": [ECMP]},
    "rail-optimised": {**rails("rail_optimised", spines=4), "policies": [ECMP, LANES, PLANNED]},
    "circuits found for it": {**circuits(8, 3, find=True), "policies": [ECMP]},
    "circuits of an expander": {**circuits(8, 3, strides=[1, 3, 4]), "policies": [ECMP]},
}


def made(
    *, strategy: dict[str, Any] | None = None, divided: float = 1.0, workload: dict[str, Any] | None = None, **keys: Any
) -> Experiment:
    document = {
        "name": "iteration",
        "fabric": "fluid",
        "topology": clos(),
        "policies": [ECMP],
        "path_mtu": 4096,
        "workload": {
            "kind": "language_model",
            "model": "gpt-22b",
            "strategy": strategy or SPLIT,
            "bytes_divided_by": divided,
            "seconds_divided_by": divided,
            **(workload or {}),
        },
        **keys,
    }
    return check(Spec.model_validate(document))


def iteration_of(experiment: Experiment) -> LanguageModel:
    assert isinstance(experiment.spec.workload, LanguageModel)
    return experiment.spec.workload


@pytest.mark.parametrize("fabric", FABRICS)
def test_an_iteration_is_never_shorter_than_its_longest_chain_or_the_bytes_of_a_link(fabric: str) -> None:
    experiment = made(**FABRICS[fabric])
    workload = iteration_of(experiment)
    for record in observe(experiment).runs:
        assert record.completion_s >= first_of(experiment).ideal_s() >= workload.longest_chain_s(RATE_BPS)
        assert record.links
        for load in record.links:
            rate_bps = experiment.topology.link_at(PortRef.parse(load.port)).rate_bps
            assert record.completion_s >= 8 * load.tx_bytes / rate_bps * (1 - 1e-9), load
        sent = workload.graph.sent_bytes().sum() * len(experiment.jobs)
        assert sent <= sum(flow.bytes for flow in record.flows) < sent * 1.001 + 8 * len(first_of(experiment).transfers)


def test_planned_lanes_come_close_to_the_ideal_switch_and_colliding_flows_do_not() -> None:
    experiment = made(policies=[ECMP, LANES, PLANNED])
    ideal_s = run(iteration_of(experiment).graph, RATE_BPS).seconds
    times = {record.policy: record.completion_s / ideal_s for record in observe(experiment).runs}
    assert times["planned"] < 1.03 < times["ecmp"]  # headers and acknowledgements are 2 % of the bytes
    assert times["planned"] < times["lanes"] < times["ecmp"]


@pytest.mark.parametrize(
    "strategy",
    [
        {**SPLIT, "pipeline": 1},
        {**SPLIT, "zero": 2, "overlap_gradients": False},
        {**SPLIT, "data": 1, "overlap_transfers": True},
        PAIRS,
    ],
    ids=["copies", "zero-2", "stages", "pairs"],
)
def test_below_one_leaf_an_iteration_takes_as_long_as_the_closed_form(strategy: dict[str, Any]) -> None:
    """The fluid model also shares a NIC among messages that the ideal switch sends one after the other."""
    ranks = strategy["tensor"] * strategy["pipeline"] * strategy["data"]
    wire_bps = round(RATE_BPS * (4096 + HEADER_BYTES + ACK_BYTES) / 4096)
    topology = {"leaf_spine": {"leaves": 1, "spines": 1, "hosts_per_leaf": ranks, "host_rate": wire_bps}}
    experiment = made(strategy=strategy, topology=topology)
    workload = iteration_of(experiment)
    closed = estimate(GPT_22B, workload.strategy.split, workload.cluster)
    (record,) = observe(experiment).runs
    assert 0.988 < record.completion_s / closed.iteration_s < 1.003


@pytest.mark.parametrize(("fabric", "divided"), [("fluid", 1), ("packet", 5000)])
def test_iterations_follow_one_another(fabric: str, divided: float) -> None:
    """Copies without a pipeline do nothing of an iteration before the optimizer's step of the one before."""
    spec_of = {"fabric": fabric, "divided": divided, "strategy": {"tensor": 4, "data": 4, "zero": 1}}
    once_s, thrice_s = (
        observe(made(**spec_of, workload={"iterations": times})).runs[0].completion_s for times in (1, 3)
    )
    assert thrice_s == pytest.approx(3 * once_s, rel=0.001)


@pytest.mark.parametrize(("fabric", "divided"), [("fluid", 1), ("packet", 5000)])
def test_experts_exchange_what_the_closed_form_counts(fabric: str, divided: float) -> None:
    """Tokens of four copies go to the experts of the three others, and nothing else does without gradients' rings."""
    experiment = made(
        fabric=fabric,
        divided=divided,
        strategy={"tensor": 4, "data": 4, "expert": 4, "microbatches": 2},
        workload={"experts": 8},
    )
    workload = iteration_of(experiment)
    tokens = sent_over_fabric(workload.shape, workload.strategy.split, workload.cluster).tokens / divided
    (record,) = observe(experiment).runs
    sent = {(flow.src // 4, flow.dst // 4): flow.bytes for flow in record.flows if flow.src % 4 == 0}
    assert sent.keys() == {(src, dst) for src in range(4) for dst in range(4) if src != dst}
    for src, dst in sent:
        if dst != (src + 1) % 4:  # the ring of gradients
            assert sent[src, dst] == pytest.approx(tokens / 3, rel=0.02)  # whole elements


def test_experts_in_fp8_compute_as_long_as_in_the_closed_form() -> None:
    split = {"tensor": 8, "data": 16, "expert": 16, "flash": True, "fp8": True}
    document = {"kind": "language_model", "model": "gpt-175b", "gpu": "h100", "experts": 16, "chosen": 4}
    workload = LanguageModel.model_validate({**document, "strategy": split})
    closed = estimate(workload.shape, workload.strategy.split, workload.cluster)
    computed_s = closed.compute_s + closed.recompute_s + closed.tensor_s + closed.optimizer_s
    assert workload.graph.computed_s() == pytest.approx([computed_s] * 128)


@pytest.mark.parametrize("tensor", [1, 4])
def test_gpus_of_a_tensor_group_take_as_long_as_the_group(tensor: int) -> None:
    workload = iteration_of(made(strategy={**SPLIT, "tensor": tensor}, placement={"ranks": 4 * tensor}))
    devices = iteration(workload.strategy.split, work_of(GPT_22B, workload.strategy.split, workload.cluster))
    assert run(workload.graph, RATE_BPS).seconds == pytest.approx(run(devices, RATE_BPS).seconds)
    assert workload.graph.sent_bytes().sum() == pytest.approx(tensor * devices.sent_bytes().sum())


def test_each_rank_of_a_tensor_group_computes_after_what_it_has_received() -> None:
    workload = iteration_of(made(fabric="mininet", divided=1e6))
    transfers = workload.schedule(16, 1)
    computed: set[tuple[float, ...]] = set()
    for rank in range(8, 12):  # a tensor group of the second stage
        order = workload.order_at(rank, 16)
        computed.add(tuple(sorted(order.pauses_s.tolist())))
        received = next(place for place, transfer in enumerate(transfers) if transfer.dst == rank)
        waiting = order.waits[order.waits[:, 0] == received, 1]
        assert waiting.size
        assert (waiting >= len(transfers)).all()  # pauses
    assert len(computed) == 1
    assert sum(computed.pop()) > 0


def test_sizes_and_times_are_divided() -> None:
    whole, part = made(), made(divided=1000)
    sent = [iteration_of(workload).graph.sent_bytes().sum() for workload in (whole, part)]
    assert sent[0] == pytest.approx(1000 * sent[1])
    assert iteration_of(part).longest_chain_s(RATE_BPS) == pytest.approx(
        iteration_of(whole).longest_chain_s(RATE_BPS) / 1000
    )


def test_a_dumped_spec_is_the_same_iteration(tmp_path: Path) -> None:
    experiment = made()
    again = tmp_path / "again.yaml"
    again.write_text(spec.dump(experiment.spec))
    assert first_of(spec.load(again)).transfers == first_of(experiment).transfers


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"strategy": {**SPLIT, "tensor": 3}}, "22B: 64 heads do not divide among 3 GPUs"),
        ({"strategy": {**SPLIT, "interleave": 2, "microbatches": 3}}, "a multiple of 2 microbatches"),
        ({"strategy": {**SPLIT, "data": 4}}, "the iteration takes 32 GPUs, and the job has 16 ranks"),
        ({"strategy": {**SPLIT, "fp8": True}}, "A100 80 GB has no units for FP8; take BF16"),
        ({"strategy": {**SPLIT, "expert": 2}}, "gpt-22b has no experts to share; give experts, or leave expert out"),
        ({"workload": {"experts": 2, "chosen": 3}}, "a token goes to at most all 2 experts, not to 3"),
        ({"workload": {"iterations": 1000}, "strategy": {**SPLIT, "microbatches": 64}}, "microbatches or iterations"),
        ({"strategy": {"tensor": 16}}, "one copy without a pipeline sends nothing"),
        ({"strategy": {**SPLIT, "microbatches": 4096, "zero": 3}}, "more than 2000000; take fewer microbatches"),
        ({"workload": {"bytes": 16}}, "the model has the sizes; leave it out"),
        ({"fabric": "mininet", "strategy": {"data": 16}}, "more than 1073741824; use fluid or packet"),
    ],
)
def test_an_iteration_that_cannot_run_is_one_sentence(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises((SpecError, ValueError, Conflict)) as refusal:
        made(**changes)
    assert expected in str(refusal.value)
