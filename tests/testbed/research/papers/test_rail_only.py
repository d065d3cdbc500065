# SPDX-License-Identifier: Apache-2.0
"""Rail-only's cost model, equations and claims, compared with independent calculations."""

from __future__ import annotations

import json
from itertools import product

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from testbed.cli import main
from testbed.research.papers.claim import CLOSE
from testbed.research.papers.rail_only import claims, cost, find, iterations, times, traffic
from testbed.training.transformer import GPT_1T, Transformer
from testbed.workloads.training_models import Model

RATES = st.floats(1e6, 1e12)


@given(n=st.integers(1, 16), factor=st.integers(1, 64), half=st.integers(1, 32))
def test_a_clos_has_enough_ports_for_full_bisection(n: int, factor: int, half: int) -> None:
    radix, gpus = 2 * half, n * factor * half
    if gpus > radix**3 // 4:
        with pytest.raises(ValueError, match=f"more than three tiers of {radix}-port switches carry"):
            cost.rail_optimised(gpus, radix)
        return
    fabric = cost.rail_optimised(gpus, radix)
    # Every endpoint takes a port, and every link between tiers, one for each endpoint, takes two.
    ports = gpus * (2 * fabric.tiers - 1)
    assert 0 <= fabric.switches * radix - ports < radix
    assert fabric.transceivers == 2 * fabric.tiers * gpus
    assert (fabric.tiers == 1) == (gpus <= radix)


@given(domains=st.integers(1, 64), k=st.sampled_from([1, 2, 8, 256]), radix=st.sampled_from([8, 64, 128, 256]))
def test_rail_only_never_costs_more_than_rail_optimised(domains: int, k: int, radix: int) -> None:
    gpus = domains * k
    assume(gpus <= radix**3 // 4)
    optimised, alone = cost.rail_optimised(gpus, radix), cost.rail_only(gpus, radix, k)
    assert alone.usd <= optimised.usd
    assert alone.watts <= optimised.watts
    assert alone.tiers <= optimised.tiers


def test_incomplete_hb_domains_are_refused() -> None:
    with pytest.raises(ValueError, match="100 GPUs do not fill HB domains of 8; take a multiple"):
        cost.rail_only(100, 64, 8)


@given(x=st.integers(1, 64), y=st.integers(1, 64), hb=RATES, nic=RATES, size=st.floats(1, 1e12))
def test_the_equations_are_consistent(x: int, y: int, hb: float, nic: float, size: float) -> None:
    grid = times.Grid(x, y, hb, nic)
    # With one domain, or one GPU in each, a single network carries everything, as a flat collective would.
    if y == 1:
        assert times.all_gather_s(grid, size) == pytest.approx(8 * size * (x - 1) / x / hb)
    if x == 1:
        assert times.all_gather_s(grid, size) == pytest.approx(8 * size * (y - 1) / y / nic)
        assert times.rail_only_alltoall_s(grid, size) == times.rail_optimised_alltoall_s(grid, size)
    assert times.rail_only_alltoall_s(grid, size) >= times.rail_optimised_alltoall_s(grid, size)
    if x == y > 1 and hb >= nic:
        assert times.alltoall_slowdown(grid) == pytest.approx(nic / hb)
    assert times.all_reduce_s(grid, size) == 2 * times.all_gather_s(grid, size)


def test_a_grid_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="needs one GPU and one domain or more"):
        times.Grid(0, 2, 1.0, 1.0)


def test_the_pipeline_sends_in_both_directions() -> None:
    flat = traffic.Training(Model("none", 1e9, 1, 8, 2048, tensor=1, pipeline=2), batch=1, data=1)
    sent = traffic.volume(flat)
    assert (sent.tensor, sent.data_hb, sent.data_nic) == (0, 0, 0)
    assert sent.pipeline == sent.total == 2 * 2048 * 8 * 2
    assert traffic.pair_share(flat) == (0.0, 0.0)


def test_no_reading_of_tensor_parallel_traffic_gives_the_papers_300_gb() -> None:
    """GPT-1T by hand: an activation is 2048 * 25600 * 2 = 100 MiB; two layers and 512 microbatches make 100 GiB."""
    training = traffic.MEGATRON[-1]
    found = [sent / 2**30 for sent in traffic.tensor_readings(training).values()]
    assert found == pytest.approx([350, 400, 1050, 875, 1400, 100, 300])
    assert traffic.volume(training).tensor / 2**30 == pytest.approx(700)
    assert min(abs(gib * 2**30 / 300e9 - 1) for gib in [*found, 700]) > CLOSE


def test_table_2_is_reproduced_to_the_digits_printed() -> None:
    rows = [claim for claim in claims() if claim.where == "Table II" and claim.printed is not None]
    assert len(rows) == 12
    assert {claim.verdict for claim in rows} == {"agrees"}


def test_deviations_from_the_paper_are_known_and_explained() -> None:
    open_ones = {claim.what: claim for claim in claims() if claim.verdict in ("differs", "fails")}
    assert set(open_ones) == {
        "GPT-146B: pairs with tensor-parallel traffic",
        "GPT-310B: pairs with tensor-parallel traffic",
        "GPT-1T on GH200: data parallelism over NICs",
        "all-reduce, 32 x 2 GPUs: bytes over NICs",
        "GPT-1T: data parallelism, per GPU",
        "GPT-1T: tensor parallelism, per GPU",
        "MoE-1.3B: all-to-all share",
        "GPT-22B on 8 GPUs: hardware FLOPs utilisation",
        "GPT-22B on 8 GPUs: error of the model",
        "GPT-1T on 512 GPUs: error of the model",
        "GPT-1T: iteration time with K = 256 against ideal",
        "GPT-146B: iteration time with K = 256 against ideal",
        "GPT-146B: iteration time with K = 8 against K = 1",
        "GPT-146B: iteration time with K = 256 against K = 8",
        "GPT-1T, K = 8: time saved, HB 2.4 to 9.6 Tbit/s",
        "GPT-1T, K = 256: time saved, HB 2.4 to 9.6 Tbit/s",
        "GPT-1T, K = 8: time saved, NICs 100 to 400 Gbit/s",
        "GPT-1T, K = 256: time saved, NICs 100 to 400 Gbit/s",
        "GPT-1T, K = 8, batch 4096: relative performance",
        "least cost saved",
        "cost of a Clos of 32768 GPUs",
        "GPT-1T: iteration time with K = 256 against K = 32",
        "GPUs unavailable after a rail switch fails, K = 8",
        "32768 GPUs, radix 64: rail-only, of all switches",
        "65536 GPUs, radix 64: rail-only, of all switches",
    }
    assert all(claim.note for claim in open_ones.values())


def test_every_input_is_the_papers_number() -> None:
    inputs = [claim for claim in claims(quick=True) if claim.given]
    assert len(inputs) > 20
    assert all(claim.ours == pytest.approx(claim.printed) for claim in inputs)


@pytest.mark.parametrize("gpus", [32768, 65536])
def test_no_share_of_switches_near_three_quarters_gives_the_savings_of_table_2(gpus: int) -> None:
    """By hand: 5 n / k switches become 3 n / k. Savings that round or are cut to 38 and 37 % allow 55 to 64 %."""
    before = cost.rail_optimised(gpus, 64)
    after = cost.rail_only(gpus, 64, 256)
    exact = cost.switches_left(before, cost.saving(before.usd, after.usd), cost.saving(before.watts, after.watts))
    assert exact == pytest.approx(3 / 5)
    corners = [cost.switches_left(before, usd, watts) for usd, watts in product((0.375, 0.39), (0.365, 0.38))]
    assert 0.55 < min(corners) < max(corners) < 0.64


def test_a_pipeline_stage_has_the_tensor_groups_of_all_copies() -> None:
    """Figure 3 by hand: 8 tensor-parallel GPUs of 6 copies. Figure 4: 8 of 64 copies, two stages."""
    found = {claim.what: claim.ours for claim in claims(quick=True)}
    assert found["GPT-1T: GPUs of a pipeline stage"] == 8 * 6
    assert found["GPT-1T on GH200: GPUs of two pipeline stages"] == 2 * 8 * 64


def test_rows_of_failures_are_those_of_the_ring_by_hand() -> None:
    """15 / 16 of 10 GB go twice at 400 Gbit/s; without one of eight rails the ring takes 8 / 7 of that time."""
    ring_s = 2 * 15 / 16 * 8 * 10e9 / 400e9
    found = [claim.ours for claim in claims(quick=True) if claim.where == "IV-C" and claim.unit == "s"]
    # A GPU loses the restart, the switching, and the work since iteration 40.
    since_s = 10 * (10 + ring_s) + 5
    assert found == pytest.approx([ring_s / 7, 1.0, 300.1 + since_s, 300 + since_s])


def test_time_above_32_gpus_in_an_hb_domain_falls_mainly_by_gradients() -> None:
    """The rest is a better strategy, with tensor groups of 16 and half of the stages."""
    waits = [iterations.gradients_s(GPT_1T, 32_768, domain) for domain in (32, 256)]
    times_s = [iterations.domain_sweep(GPT_1T, 32_768)[domain] for domain in (32, 256)]
    assert 0.5 < (waits[0] - waits[1]) / (times_s[0] - times_s[1]) <= 1


@pytest.mark.parametrize("model", iterations.BATCHES, ids=lambda batch: batch.name)
@pytest.mark.parametrize("gpus", iterations.CLUSTERS)
def test_a_larger_hb_domain_never_makes_an_iteration_longer(model: Transformer, gpus: int) -> None:
    times_s = list(iterations.domain_sweep(model, gpus).values())
    assert times_s == sorted(times_s, reverse=True)


@pytest.mark.parametrize("domain", [8, 256])
def test_faster_links_never_make_an_iteration_longer(domain: int) -> None:
    rates = [(hb, nic) for hb in iterations.HB_BPS for nic in iterations.NIC_BPS]
    found = {
        (hb, nic): iterations.iteration_s(GPT_1T, 32_768, 4096, domain, hb_bps=hb, nic_bps=nic) for hb, nic in rates
    }
    for (hb, nic), (hb_2, nic_2) in product(rates, rates):
        if hb <= hb_2 and nic <= nic_2:
            assert found[hb, nic] >= found[hb_2, nic_2]


def test_utilisation_is_that_of_the_measured_iteration_time() -> None:
    """Korthikanti et al., Table 5, prints 43.7, 52.8, 57.0 and 57.0 %."""
    measured = [iteration.measured for iteration in iterations.utilisations() if iteration.gpus != 2240]
    assert measured == pytest.approx([0.437, 0.528, 0.570, 0.570], abs=0.0015)


def test_a_quick_check_leaves_out_what_needs_a_search() -> None:
    quick = find(quick=True).claims
    assert not {"Fig. 8", "Fig. 9", "Fig. 10"} & {claim.where for claim in quick}
    assert {claim.what for claim in quick} < {claim.what for claim in claims()}


def test_the_command_prints_a_row_per_claim_and_the_notes() -> None:
    done = CliRunner().invoke(main, ["papers", "003"])
    assert done.exit_code == 0, done.output
    for claim in claims():
        assert claim.what in done.output
    assert f"{len(claims())} numbers: " in done.output


def test_the_command_prints_json() -> None:
    done = CliRunner().invoke(main, ["papers", "003", "--json"])
    assert done.exit_code == 0
    listed = json.loads(done.output)
    assert listed["paper"] == "003"
    assert [claim["verdict"] for claim in listed["claims"]] == [claim.verdict for claim in claims()]
    h100 = next(claim for claim in listed["claims"] if claim["what"].startswith("DGX H100: all-to-all"))
    assert (h100["printed"], round(h100["ours"], 2), h100["verdict"]) == (11.2, 11.11, "close")


def test_an_unknown_paper_is_a_one_line_error() -> None:
    done = CliRunner().invoke(main, ["papers", "999"])
    assert done.exit_code == 2
    assert "'999' is not" in done.output + str(getattr(done, "stderr", ""))
