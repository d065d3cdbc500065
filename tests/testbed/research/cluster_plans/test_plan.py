# SPDX-License-Identifier: Apache-2.0
"""`paralet plan`: parts, prices and failures by hand, properties of fabrics, and the files that it writes."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from netmodel import PortRef, SpecError, load_yaml, parse_rate
from testbed import spec
from testbed.allocation.demands import bytes_by_pair
from testbed.cli import main
from testbed.research.cluster_plans.clos import clos
from testbed.research.cluster_plans.experiment import write_spec
from testbed.research.cluster_plans.job import Job
from testbed.research.cluster_plans.points import Point, Refused, choice, cluster_of, pareto, points, shared_cluster
from testbed.research.cluster_plans.prices import DEFAULT, load_prices
from testbed.spec import Experiment
from testbed.training.closed_form import estimate
from testbed.training.communication import exposed_s, hidden_s, sent_over_fabric
from testbed.training.strategies import Strategy
from tests.browser import PROGRAM, Browser
from tests.testbed.experiments import first_of
from tests.testbed.simulate.small import observe

ROOT = Path(__file__).parents[4]
SMALL: dict[str, Any] = {
    "name": "small",
    "model": {"layers": 8, "hidden": 2048, "heads": 16},
    "batch": 64,
    "tokens": 1e9,
    "gpus": [32],
    "fabrics": [{"kind": "rail_only"}],
}
MOE = {"layers": 8, "hidden": 2048, "heads": 16, "experts": 32}


def found(**changes: Any) -> list[Point]:
    made = list(points(Job.model_validate({**SMALL, **changes}), load_prices()))
    return [point for point in made if isinstance(point, Point)]


@given(n=st.integers(1, 64), factor=st.integers(1, 64), k=st.sampled_from([4, 8, 16, 64]), over=st.sampled_from([1, 3]))
def test_a_clos_has_the_ports_that_its_links_need(n: int, factor: int, k: int, over: int) -> None:
    endpoints = n * factor * over
    try:
        parts = clos(endpoints, k, 1, over)
    except ValueError:
        assert endpoints > k**2 * (k * over // (over + 1)) // 2
        return
    # Endpoints take a port, links between tiers one at each end.
    needed = endpoints + (parts.tiers - 1) * 2 * endpoints / over
    assert 0 <= parts.ports - needed < parts.radix
    assert parts.links == endpoints + (parts.tiers - 1) * endpoints // over


def test_a_small_cluster_costs_the_sum_of_its_parts() -> None:
    (point,) = found(gpus=[64], batch=64)
    prices = load_prices()
    network = 64 * 694 + 128 * 199 + 64 * 9 + 64 * 1500
    assert (point.parts.switches, point.parts.links, point.parts.tiers) == (1, 64, 1)
    assert point.network_usd == pytest.approx(network)
    assert point.capital_usd == pytest.approx(network + 64 * 33000)
    watts = 1.25 * (64 * 18 + 128 * 9 + 64 * 25 + 64 * 1250)
    assert point.watts == pytest.approx(watts)
    # 50,700 GPU-hours between failures, of which each costs 600 s and half of 1,800 s.
    between_s = 50_700 / 64 * 3600
    assert point.failures_per_day == pytest.approx(24 * 3600 / between_s)
    assert point.availability == pytest.approx(between_s / (between_s + 1500))
    usd_per_s = point.capital_usd / (4 * 365 * 24 * 3600) + watts / 1000 * 0.08 / 3600
    assert point.failure_usd == pytest.approx(1500 * usd_per_s)
    tokens_per_s = 64 * 2048 / point.iteration_s * point.availability
    assert point.usd_per_token == pytest.approx(usd_per_s / tokens_per_s)
    assert point.days == pytest.approx(1e9 / tokens_per_s / 86400)
    assert prices.failures.lost_s == 1500


def test_a_gpu_and_its_nic_take_the_power_of_a_dgx() -> None:
    """The data sheets' power has the NICs, each of 200 Gbit/s in a DGX A100 and of 400 in a DGX H100."""
    prices = load_prices()
    for gpu, dgx_w, rate in (("a100", 6500, "200 Gbit/s"), ("h100", 10_200, "400 Gbit/s")):
        nic = prices.of_rate(parse_rate(rate))
        assert prices.gpus[gpu].watts + nic.nic_w == pytest.approx(dgx_w / 8, abs=0.5)


def test_a_point_has_the_closed_form_of_its_strategy() -> None:
    fabrics = [{"kind": "clos", "oversubscription": [1, 4]}, {"kind": "rail_only", "domain_gpus": [4, 8]}]
    for model in (SMALL["model"], MOE):
        job = Job.model_validate({**SMALL, "model": model, "fabrics": fabrics})
        for point in found(model=model, fabrics=fabrics):
            cluster = cluster_of(job, point.fabric)
            wanted = estimate(job.transformer, point.strategy, cluster)
            assert point.iteration_s == pytest.approx(wanted.iteration_s)
            assert point.exposed_s == pytest.approx(exposed_s(wanted))
            assert point.hidden_s >= 0
            assert point.strategy.gpus == point.gpus
            assert point.memory_bytes <= cluster.gpu.memory_bytes


def test_gradients_behind_the_backward_pass_are_hidden_communication() -> None:
    (point,) = found(strategies={"widest_tensor": 1, "deepest_pipeline": 1, "zeros": [0]})
    job = Job.model_validate(SMALL)
    cluster = cluster_of(job, point.fabric)
    after = replace(point.strategy, overlap_gradients=False)
    late = estimate(job.transformer, after, cluster)
    assert point.exposed_s + point.hidden_s == pytest.approx(late.data_s)
    assert hidden_s(job.transformer, after, cluster) == 0


def test_dense_models_need_no_spines_and_experts_pay_for_forwarding() -> None:
    fabrics = [{"kind": "rail_only", "radix": [32]}, {"kind": "rail_optimised", "radix": [32]}]
    only, optimised = found(gpus=[256], batch=256, fabrics=fabrics)
    assert only.iteration_s == optimised.iteration_s
    assert only.network_usd < optimised.network_usd
    space = {"widest_tensor": 1, "deepest_pipeline": 1}
    only, optimised = found(gpus=[256], batch=256, fabrics=fabrics, model=MOE, strategies=space)
    assert only.iteration_s >= optimised.iteration_s


def test_a_switch_without_uplinks_is_not_oversubscribed() -> None:
    fabrics = [{"kind": "clos", "oversubscription": [1, 4], "radix": [64]}]
    plain, thin = found(model=MOE, gpus=[64], fabrics=fabrics, strategies={"widest_tensor": 1, "deepest_pipeline": 1})
    assert plain.parts.tiers == thin.parts.tiers == 1
    assert thin.strategy.expert > 1
    assert thin.iteration_s == plain.iteration_s
    job = Job.model_validate({**SMALL, "model": MOE})
    leaf = yaml.safe_load(write_spec(job, thin))["topology"]["leaf_spine"]
    assert leaf == yaml.safe_load(write_spec(job, plain))["topology"]["leaf_spine"]


def test_oversubscription_is_never_faster_nor_dearer() -> None:
    fabrics = [{"kind": "clos", "oversubscription": [1, 2, 4], "radix": [16]}]
    rows = found(gpus=[128], batch=128, fabrics=fabrics)
    times_s, prices_usd = [row.iteration_s for row in rows], [row.network_usd for row in rows]
    assert times_s == sorted(times_s)
    assert prices_usd == sorted(prices_usd, reverse=True)


def test_planes_need_fewer_tiers() -> None:
    one, four = found(gpus=[256], batch=256, fabrics=[{"kind": "clos", "radix": [64], "planes": [1, 4]}])
    assert (one.parts.tiers, four.parts.tiers) == (2, 1)
    assert four.network_usd < one.network_usd
    assert four.iteration_s == one.iteration_s
    assert (one.leaf_failure_gpus, four.leaf_failure_gpus) == (32, 0)


def test_failures_idle_domains_without_spare_gpus() -> None:
    eight, large, spare = found(
        gpus=[64],
        fabrics=[
            {"kind": "rail_only", "domain_gpus": [8, 64]},
            {"kind": "rail_only", "domain_gpus": [36], "spare_gpus": 4},
        ],
    )
    assert (eight.gpus_idled, large.gpus_idled, spare.gpus_idled) == (8, 64, 0)
    assert (eight.bought_gpus, spare.bought_gpus) == (64, 72)


def test_no_point_beats_one_of_the_front_and_every_other_one_is_beaten() -> None:
    rows = found(gpus=[16, 32, 64], fabrics=[{"kind": "clos", "oversubscription": [1, 2], "radix": [8, 16]}])
    front = pareto(rows)

    def beats(one: Point, other: Point) -> bool:
        return one.usd_per_token <= other.usd_per_token and one.days <= other.days

    assert front
    for point in front:
        assert all(beats(point, other) for other in rows if beats(other, point))
    assert all(any(beats(point, other) for point in front) for other in rows)


def test_the_choice_keeps_its_limits() -> None:
    job = Job.model_validate({**SMALL, "gpus": [16, 32, 64]})
    rows = found(gpus=[16, 32, 64])
    cheapest = choice(job, rows)
    assert cheapest is not None
    assert cheapest.usd_per_token == min(point.usd_per_token for point in rows)
    days = sorted(point.days for point in rows)[0]
    fast = choice(Job.model_validate({**SMALL, "within": {"days": days}}), rows)
    assert fast is not None
    assert fast.days == days
    assert choice(Job.model_validate({**SMALL, "within": {"capital_usd": 1.0}}), rows) is None
    assert choice(Job.model_validate({**SMALL, "within": {"megawatts": 1e-6}}), rows) is None
    limits = {"capital_usd": 5e7, "days": 10}
    assert Job.model_validate({**SMALL, "within": limits}).within.said == " within $50,000,000 of capital, 10 days"
    assert Job.model_validate(SMALL).within.said == ""


def test_a_fabric_that_cannot_be_is_refused_with_its_reason() -> None:
    job = Job.model_validate({**SMALL, "gpus": [32, 7 * 11], "fabrics": [{"kind": "clos", "radix": [4]}]})
    large, odd = list(points(job, load_prices()))
    assert isinstance(large, Refused)
    assert large.reason.startswith("32 endpoints are more than three tiers of 4-port switches carry, 16")
    assert isinstance(odd, Refused)
    wide = Job.model_validate({**SMALL, "gpus": [77]})
    (reason,) = [point.reason for point in points(wide, load_prices()) if isinstance(point, Refused)]
    assert reason == "no strategy divides GPUs and batch evenly"
    heavy = Job.model_validate({**SMALL, "gpus": [1], "model": "gpt-1t"})
    (reason,) = [point.reason for point in points(heavy, load_prices()) if isinstance(point, Refused)]
    assert reason == "no strategy fits into memory"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"experts": 4, "chosen": 5}, "a token goes to at most all 4 experts, not to 5"),
        ({"key_heads": 3}, "must divide the 16 heads, not 3"),
    ],
)
def test_a_shape_that_is_none_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Job.model_validate({**SMALL, "model": {**MOE, **changes}})


def test_prices_without_a_rate_or_a_gpu_say_what_to_add(tmp_path: Path) -> None:
    prices = load_prices()
    with pytest.raises(ValueError, match="no price for 25 Gbit/s; add it to `network` of the prices, which has 100"):
        prices.of_rate(25_000_000_000)
    without = prices.model_copy(update={"gpus": {}})
    with pytest.raises(ValueError, match="no price for the GPU h100; add it"):
        list(points(Job.model_validate(SMALL), without))
    file = tmp_path / "prices.yaml"
    file.write_text(DEFAULT.read_text().replace("rate: 200 Gbit/s", "rate: 100 Gbit/s"))
    with pytest.raises(SpecError, match=r"prices.yaml:\d+: network\[1\].rate: 100 Gbit/s has a price already"):
        load_prices(file)


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        ({"kind": "torus"}, "fabrics[0].kind"),
        ({"kind": "rail_only", "oversubscription": [2]}, "only a fabric of kind clos is oversubscribed"),
        ({"kind": "clos", "domain_gpus": [8], "spare_gpus": 8}, "fabrics[0].domain_gpus[0]: must be 9 or more, not 8"),
    ],
)
def test_mistakes_of_a_job_name_line_and_field(tmp_path: Path, fabric: dict[str, Any], expected: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**SMALL, "fabrics": [fabric]}))
    done = CliRunner().invoke(main, ["plan", str(file), "--results", str(tmp_path)])
    assert done.exit_code == 2
    assert expected in done.stderr
    assert "job.yaml:" in done.stderr


def _on_16(kind: str) -> tuple[Job, Point]:
    changes: dict[str, Any] = {
        "gpus": [16],
        "fabrics": [{"kind": kind, "domain_gpus": [4], "radix": [8]}],
        "strategies": {"widest_tensor": 4, "deepest_pipeline": 2, "zeros": [0], "microbatches": [2]},
    }
    (point,) = found(**changes)
    return Job.model_validate({**SMALL, **changes}), point


@pytest.mark.parametrize("kind", ["rail_only", "rail_optimised", "clos"])
def test_the_chosen_point_is_a_spec_that_takes_as_long_on_the_fluid_model(tmp_path: Path, kind: str) -> None:
    job, point = _on_16(kind)
    file = tmp_path / "chosen.yaml"
    file.write_text(write_spec(job, point))
    made = spec.load(file, policies=["paralet"])
    assert made.spec.name == "small_chosen"
    simulated = observe(made).runs[0].completion_s
    # The workload hides nothing behind computing.
    assert point.iteration_s * 0.98 <= simulated <= (point.iteration_s + point.hidden_s) * 1.05


def _direct_on_16(**strategies: Any) -> tuple[Job, Point]:
    changes: dict[str, Any] = {
        "gpus": [16],
        "fabrics": [{"kind": "topoopt", "domain_gpus": [4]}],
        "strategies": {"widest_tensor": 4, "zeros": [0], "microbatches": [2], **strategies},
    }
    (point,) = found(**changes)
    return Job.model_validate({**SMALL, **changes}), point


def test_a_chosen_point_of_direct_connections_is_a_spec_with_a_ring_of_hb_domains(tmp_path: Path) -> None:
    job, point = _direct_on_16(deepest_pipeline=1)
    file = tmp_path / "chosen.yaml"
    file.write_text(write_spec(job, point))
    made = spec.load(file)
    assert made.ranks == 4
    (run,) = observe(made).runs
    assert point.iteration_s * 0.98 <= run.completion_s <= (point.iteration_s + point.hidden_s) * 1.05


@pytest.mark.parametrize(("pipeline", "data"), [(2, 2), (4, 1)])
def test_direct_connections_with_a_pipeline_have_circuits_to_the_next_copy_and_both_neighbouring_stages(
    tmp_path: Path, pipeline: int, data: int
) -> None:
    job, point = _direct_on_16(deepest_pipeline=1)
    strategy = replace(point.strategy, tensor=4, sequence=True, pipeline=pipeline, data=data, microbatches=4)
    staged = replace(point, strategy=strategy)
    cluster = shared_cluster(job, staged)
    file = tmp_path / "chosen.yaml"
    file.write_text(write_spec(job, staged))
    made = spec.load(file)
    assert made.ranks == 4
    rates = [first_of(made).line_rate_bps(0, nic) for nic in range(len(made.topology.hosts[0].nics))]
    shares = [cluster.ring_share] * (data > 1) + [cluster.chain_share] * 2
    assert rates == [int(share * cluster.fabric.rate_bps) for share in shares]
    expected_s = estimate(job.transformer, strategy, cluster).iteration_s
    most_s = expected_s + hidden_s(job.transformer, strategy, cluster)
    assert expected_s * 0.95 <= observe(made).runs[0].completion_s <= most_s * 1.05


def _staged(kind: str, **changes: Any) -> tuple[Job, Point]:
    """A strategy with everything that sends: experts, stages with chunks, copies."""
    settings: dict[str, Any] = {
        "model": MOE,
        "gpus": [64],
        "fabrics": [{"kind": kind, "domain_gpus": [4], **({} if kind == "topoopt" else {"radix": [8]})}],
    }
    point = found(**settings)[0]
    strategy = Strategy(tensor=2, pipeline=4, data=8, microbatches=8, interleave=2, sequence=True)
    return Job.model_validate({**SMALL, **settings}), replace(point, strategy=replace(strategy, **changes))


@pytest.mark.parametrize("kind", ["rail_only", "rail_optimised", "clos", "topoopt"])
@pytest.mark.parametrize(
    "changes",
    [
        {"expert": 8, "zero": 1},
        {"expert": 4, "recomputation": "full"},
        {"expert": 2, "zero": 2},  # an expert group is within an HB domain
        {"expert": 4, "pipeline": 1, "interleave": 1, "data": 32, "zero": 3, "microbatches": 3},  # three equal rings
    ],
    ids=["one-group", "groups", "inside", "zero-3"],
)
def test_the_spec_of_a_point_sends_byte_for_byte_what_the_closed_form_counts(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    job, point = _staged(kind, **changes)
    cluster = shared_cluster(job, point)
    file = tmp_path / "chosen.yaml"
    file.write_text(write_spec(job, point))
    made = spec.load(file)
    sent = Counter[int]()
    for (source, _), size in bytes_by_pair(first_of(made).transfers, 8).items():
        sent[source] += size
    parts = sent_over_fabric(job.transformer, point.strategy, cluster)
    whole = parts.tokens + parts.activations + parts.shared + parts.owned
    assert max(sent.values()) == whole  # an inner stage; the first and the last one send less
    assert (parts.tokens > 0) == (point.strategy.expert > 2)
    assert (parts.owned > 0) == (point.strategy.expert < point.strategy.data)


@pytest.mark.parametrize("kind", ["rail_only", "rail_optimised", "clos", "topoopt"])
def test_the_spec_of_a_point_with_experts_takes_as_long_on_the_fluid_model(tmp_path: Path, kind: str) -> None:
    settings = {"model": MOE, "gpus": [64], "batch": 128, "fabrics": [{"kind": kind}]}
    (point,) = found(**settings)
    assert point.strategy.expert == 32
    file = tmp_path / "chosen.yaml"
    file.write_text(write_spec(Job.model_validate({**SMALL, **settings}), point))
    fastest = min(run.completion_s for run in observe(spec.load(file)).runs)
    # NICs reach their full rate there, and 90 % in the closed form.
    assert point.iteration_s <= fastest <= 1.05 * (point.iteration_s + point.hidden_s)


def test_the_spec_of_a_small_point_with_experts_takes_as_long_on_packets(tmp_path: Path) -> None:
    model = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64, "vocabulary": 512, "experts": 4}
    settings: dict[str, Any] = {
        "model": model,
        "gpus": [8],
        "batch": 8,
        "fabrics": [{"kind": "rail_only", "domain_gpus": [2], "nic_rate": ["100 Gbit/s"]}],
    }
    (point,) = found(**settings)
    staged = replace(point, strategy=Strategy(data=8, expert=4))
    file = tmp_path / "chosen.yaml"
    file.write_text(write_spec(Job.model_validate({**SMALL, **settings}), staged))
    made = spec.load(file, policies=["ecmp"])
    assert made.ranks == 4
    fluid, packet = (observe(made, fabric).runs[0].completion_s for fabric in ("fluid", "packet"))
    assert packet == pytest.approx(fluid, rel=0.1)


def test_a_slice_keeps_the_oversubscription_of_the_leaves_and_at_least_two_expert_groups(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"fabrics": [{"kind": "clos", "radix": [16], "oversubscription": [4]}], "gpus": [64]}
    (point,) = found(model=MOE, **settings)
    job = Job.model_validate({**SMALL, "model": MOE, **settings})
    for strategy, ranks in ((Strategy(data=64, expert=32), 8), (Strategy(tensor=8, data=8, expert=4), 8)):
        file = tmp_path / "chosen.yaml"
        file.write_text(write_spec(job, replace(point, strategy=strategy), most_ranks=8))
        made = spec.load(file)
        assert made.ranks == ranks
        up = sum(link.rate_bps for link in made.topology.links if link.a.node == "leaf1" or link.b.node == "leaf1")
        down = sum(first_of(made).line_rate_bps(rank, 0) for rank in range(ranks) if _leaf(made, rank) == "leaf1")
        assert up - down == down / 4


def _leaf(made: Experiment, rank: int) -> str:
    return made.topology.peer(PortRef(made.first_hosts[rank], 1)).node


def test_a_third_tier_that_a_spec_has_not_is_told_in_the_file_and_to_the_user(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**SMALL, "fabrics": [{"kind": "clos", "radix": [8], "tiers": [3]}]}))
    done = CliRunner().invoke(main, ["plan", str(file), "--results", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    note = "The fabric has three tiers and the spec the lower two: collisions of paths in the third are not shown."
    assert note in done.stdout
    assert f"# {note}" in (tmp_path / "small-plan" / "chosen.yaml").read_text()


def test_pipeline_stages_that_share_a_domain_of_direct_connections_have_no_spec() -> None:
    job, point = _direct_on_16(deepest_pipeline=1)
    staged = replace(point, strategy=replace(point.strategy, tensor=1, pipeline=8, data=2))
    with pytest.raises(ValueError, match="several pipeline stages share an HB domain"):
        write_spec(job, staged)


def test_paralet_run_takes_the_spec_of_the_chosen_point(tmp_path: Path) -> None:
    file = tmp_path / "chosen.yaml"
    file.write_text(write_spec(*_on_16("rail_only")))
    done = CliRunner().invoke(main, ["run", str(file), "--fabric", "fluid", "--results", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.stderr
    assert [policy["name"] for policy in json.loads(done.stdout)["policies"]] == ["ecmp", "paralet"]


def test_a_point_that_sends_nothing_over_the_fabric_has_no_spec() -> None:
    job = Job.model_validate({**SMALL, "gpus": [8], "batch": 8})
    (point,) = [point for point in points(job, load_prices()) if isinstance(point, Point)]
    with pytest.raises(ValueError, match="sends nothing over the fabric"):
        write_spec(job, point)


def test_the_command_writes_report_points_and_spec(tmp_path: Path) -> None:
    example = ROOT / "experiments" / "plan" / "gpt_175b.yaml"
    done = CliRunner().invoke(main, ["plan", str(example), "--results", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.stderr
    listed = json.loads(done.stdout)
    folder = tmp_path / "gpt_175b-plan"
    with (folder / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(listed["points"]) > 100
    assert {point["kind"] for point in listed["points"]} == {"rail_only", "rail_optimised", "clos"}
    chosen = listed["points"][listed["chosen"]]
    assert chosen["days"] <= 10
    page = (folder / "report.html").read_text()
    assert chosen["label"] in page
    assert "Prices of 2026-11-25" in page
    assert "<td>GPU h100</td><td>33,000</td><td>1,250</td>" in page
    assert "assumption" in page
    assert (folder / "trade_off.png").stat().st_size > 1000
    assert spec.load(folder / "chosen.yaml").ranks == 256
    if PROGRAM is None:
        pytest.skip("no chromium is installed, so the rest, the width of the page, is not seen")
    with Browser(tmp_path / "browser", width=1280) as browser:
        browser.open(f"file://{folder}/report.html")
        tables = "[...document.querySelectorAll('.scroll')]"
        assert browser.value(f"{tables}.length") == 4
        assert browser.value(f"{tables}.filter((one) => one.scrollWidth > one.clientWidth).length") == 0


def test_the_example_is_read_from_its_file() -> None:
    job = load_yaml(ROOT / "experiments" / "plan" / "gpt_175b.yaml", Job)
    assert job.transformer.parameters == pytest.approx(175e9, rel=0.01)


MIX: dict[str, Any] = {
    "weight": 3,
    "mix": [{"name": "second", "model": {"layers": 4, "hidden": 1024, "heads": 16}, "batch": 32, "tokens": 2e9}],
}


def test_a_mix_shares_time_and_cost_by_weight() -> None:
    (point,) = found(**MIX)
    (first,) = found()
    (second,) = found(**{key: value for key, value in MIX["mix"][0].items() if key != "name"})
    assert point.iteration_s == pytest.approx(0.75 * first.iteration_s + 0.25 * second.iteration_s)
    assert point.utilisation == pytest.approx(0.75 * first.utilisation + 0.25 * second.utilisation)
    assert point.capital_usd == first.capital_usd == second.capital_usd
    # In a second both jobs together train so many tokens, for the same dollars.
    assert 1 / point.usd_per_token == pytest.approx(0.75 / first.usd_per_token + 0.25 / second.usd_per_token)
    assert point.days == pytest.approx(max(first.days / 0.75, second.days / 0.25))
    assert point.memory_bytes == max(first.memory_bytes, second.memory_bytes)
    assert [(share.name, share.weight, share.strategy) for share in point.shares] == [
        ("small", 0.75, first.strategy),
        ("second", 0.25, second.strategy),
    ]


def test_a_mix_has_no_point_where_one_of_its_jobs_has_none() -> None:
    mix = [{"name": "large", "model": "gpt-1t", "batch": 64}]
    (refused,) = list(points(Job.model_validate({**SMALL, "mix": mix}), load_prices()))
    assert isinstance(refused, Refused)
    assert refused.reason == "large: no strategy fits into memory"


def test_jobs_of_a_mix_have_names_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**SMALL, "mix": [{"name": "small", "model": "gpt-22b", "batch": 8}]}))
    with pytest.raises(SpecError, match=r"mix\[0\]\.name: another job is called 'small' already"):
        load_yaml(file, Job)


def test_the_report_of_a_mix_names_its_jobs(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**SMALL, **MIX}))
    done = CliRunner().invoke(main, ["plan", str(file), "--results", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["points"]
    assert [(share["name"], share["weight"]) for share in row["jobs"]] == [("small", 0.75), ("second", 0.25)]
    text = (tmp_path / "small-plan" / "report.html").read_text()
    assert "small (75 %): " in text
    assert "second (25 %): " in text


def test_every_job_of_a_mix_has_a_spec_that_takes_as_long_as_its_turn(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        yaml.safe_dump({**SMALL, **MIX, "gpus": [16], "fabrics": [{"kind": "rail_only", "domain_gpus": [4]}]})
    )
    done = CliRunner().invoke(main, ["plan", str(job), "--results", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["points"]
    for job_row, name in zip(row["jobs"], ("chosen", "chosen-second"), strict=True):
        made = spec.load(tmp_path / "small-plan" / f"{name}.yaml", policies=["paralet"])
        assert made.spec.name == f"{job_row['name']}_chosen"
        simulated_s = observe(made).runs[0].completion_s
        # The workload hides nothing behind computing.
        assert 0.98 <= simulated_s / job_row["iteration_s"] <= 1.6


def test_points_are_the_same_from_processes_as_from_this_one() -> None:
    job = Job.model_validate({**SMALL, **MIX, "gpus": [16, 32, 64]})
    assert list(points(job, load_prices(), jobs=2)) == list(points(job, load_prices()))


def test_points_are_the_same_from_a_dask_scheduler(tmp_path: Path) -> None:
    distributed = pytest.importorskip(
        "distributed", reason="the optional package distributed is not installed; pip install -e '.[dask]' brings it"
    )
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**SMALL, "gpus": [16, 32, 64]}))

    def planned(*options: str) -> Any:
        done = CliRunner().invoke(main, ["plan", str(file), "--results", str(tmp_path), "--json", *options])
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as local:
        assert planned("--scheduler", local.scheduler_address) == planned()


def test_processes_and_a_scheduler_exclude_each_other(tmp_path: Path) -> None:
    arguments = ["plan", str(tmp_path / "job.yaml"), "--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "not both" in done.stderr


def test_shares_of_a_rate_lie_above_0_and_up_to_1() -> None:
    cluster = cluster_of(Job.model_validate(SMALL), found()[0].fabric)
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="shares of the rate lie above 0 and up to 1"):
            replace(cluster, ring_share=share)
