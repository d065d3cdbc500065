# SPDX-License-Identifier: Apache-2.0
"""The search for strategies: against the closed form one by one, brute force, and simulation."""

from dataclasses import fields, replace
from itertools import product

import pytest

from testbed.training.closed_form import check, estimate, memory_bytes
from testbed.training.clusters import DGX_A100, DGX_H100, Cluster
from testbed.training.hardware import Collective, Network
from testbed.training.ideal import run
from testbed.training.schedule import iteration, work_of
from testbed.training.search import RECOMPUTATIONS, ZEROS, Space, candidates
from testbed.training.strategies import Strategy
from testbed.training.transformer import GPT_1T, GPT_22B, Transformer

SMALL = Transformer("small", 6, 768, 12, sequence=512)
EXPERTS = replace(SMALL, name="experts", experts=6)
UNEVEN = replace(SMALL, name="uneven", layers=7)
"""The first or the last chunk lacks a layer: 4 stages of 2 chunks."""
_CLUSTERS = {
    "DGX A100": DGX_A100,
    "pairs": replace(DGX_A100, domain_gpus=2),
    "rail-only": replace(DGX_A100, forwarding=True),
    "oversubscribed": replace(DGX_A100, domain_gpus=2, leaf_gpus=4, oversubscription=3.0),
}


@pytest.mark.parametrize("cluster", _CLUSTERS.values(), ids=_CLUSTERS)
@pytest.mark.parametrize("overlap", [(True, False), (False, True)], ids=["gradients", "transfers"])
@pytest.mark.parametrize("model", [SMALL, EXPERTS, UNEVEN], ids=lambda model: model.name)
def test_every_candidate_has_the_estimate_of_the_closed_form(
    model: Transformer, overlap: tuple[bool, bool], cluster: Cluster
) -> None:
    how = overlap[1]
    space = Space(overlap_gradients=overlap[0], overlap_transfers=how, flash=how, overlap_tensor=how)
    found = candidates(model, 12, 24, space)
    estimates = found.estimates(cluster)
    assert len(found) > 100
    for place in range(0, len(found), 7):
        strategy = found.strategy(place)
        wanted = estimate(model, strategy, cluster)
        for field in fields(estimates):
            assert getattr(estimates, field.name)[place] == pytest.approx(
                getattr(wanted, field.name), rel=1e-9, abs=1e-15
            ), (field.name, strategy)
        assert found.memory_bytes[place] == pytest.approx(memory_bytes(model, strategy), rel=1e-12)


@pytest.mark.parametrize("model", [SMALL, EXPERTS, UNEVEN], ids=lambda model: model.name)
@pytest.mark.parametrize(("gpus", "batch"), [(1, 4), (8, 16), (12, 24)])
def test_the_space_is_all_strategies_that_brute_force_finds(model: Transformer, gpus: int, batch: int) -> None:
    space = Space(widest_tensor=4, microbatches=(1, 2, 4))
    found = set(candidates(model, gpus, batch, space))
    assert found == set(_brute_force(model, gpus, batch))


def _brute_force(model: Transformer, gpus: int, batch: int) -> list[Strategy]:
    """All strategies by trying every combination of small numbers."""
    numbers, found = range(1, gpus + 1), []
    degrees = [split for split in product((1, 2, 4), numbers, numbers) if split[0] * split[1] * split[2] == gpus]
    experts = (1, 2, 6) if model.experts else (1,)
    rest = tuple(product((1, 2, 4), range(1, 7), RECOMPUTATIONS, (False, True), experts, ZEROS))
    for (tensor, pipeline, data), (size, chunks, how, sequence, expert, zero) in product(degrees, rest):
        microbatches = batch // data // size
        if microbatches * data * size != batch or (sequence and tensor == 1) or (zero and data == 1):
            continue
        try:
            strategy = Strategy(tensor, pipeline, data, microbatches, size, chunks, how, sequence, expert, zero)
            check(model, strategy)
            estimate(model, strategy, DGX_A100)
        except ValueError:
            continue
        found.append(strategy)
    return found


def test_the_best_strategy_is_that_of_brute_force_and_memory_limits_it() -> None:
    space = Space(widest_tensor=4, microbatches=(1, 2, 4))
    cluster = _CLUSTERS["pairs"]
    found = candidates(SMALL, 8, 16, space)
    every = [(estimate(SMALL, strategy, cluster).iteration_s, memory_bytes(SMALL, strategy)) for strategy in found]
    for limit in (sorted(memory for _, memory in every)[len(every) // 10], 80e9):
        best = found.best(cluster, limit)
        assert best is not None
        assert best.estimate.iteration_s == pytest.approx(min(time for time, memory in every if memory <= limit))
        assert best.fitting == sum(memory <= limit for _, memory in every)
        assert memory_bytes(SMALL, best.strategy) <= limit
    assert found.best(cluster, 1.0) is None


def test_no_tensor_group_straddles_hb_domains() -> None:
    """Of groups of 4 in domains of 6, every third one has two GPUs in each of two domains, and would use NICs."""
    cluster = replace(DGX_A100, domain_gpus=6)
    wide, narrow = (candidates(GPT_22B, 12, 3, Space(widest_tensor=width)) for width in (4, 2))
    found, least = wide.best(cluster, 1e12), narrow.best(cluster, 1e12)
    assert found is not None
    assert least is not None
    assert (found.strategy, found.estimate) == (least.strategy, least.estimate)
    assert found.fitting == least.fitting <= len(narrow) < len(wide)
    straddling = Strategy(tensor=4, data=3)
    with pytest.raises(ValueError, match="tensor groups of 4 GPUs straddle HB domains of 6; take a divisor"):
        estimate(GPT_22B, straddling, cluster)
    inside = replace(straddling, data=1)
    assert estimate(GPT_22B, inside, cluster) == estimate(GPT_22B, inside, DGX_A100)


def test_the_best_strategies_take_as_long_in_the_simulation() -> None:
    """Within what `closed_form` says of pipelines with copies, whose gradients share NICs with activations."""
    fabric = DGX_A100.fabric
    space = Space(interleaves=(1,), zeros=(0, 1), recomputations=("selective",), sequence=(True,))
    for gpus in (16, 64):
        best = candidates(GPT_22B, gpus, 64, space).best(DGX_A100)
        assert best is not None
        graph = iteration(best.strategy, work_of(GPT_22B, best.strategy, DGX_A100))
        simulated = run(graph, fabric.rate_bps * fabric.efficiency).seconds
        assert simulated == pytest.approx(best.estimate.iteration_s, rel=0.012)


def test_enumeration_covers_65536_gpus_and_every_strategy_has_them() -> None:
    found = candidates(GPT_1T, 65_536, 4096)
    assert len(found) > 1000
    assert len(set(found)) == len(found)
    assert {(strategy.gpus, strategy.batch) for strategy in found} == {(65_536, 4096)}
    best = found.best(DGX_H100)
    assert best is not None
    utilisation = GPT_1T.flops(4096) / (best.estimate.iteration_s * 65_536 * DGX_H100.gpu.matrix_flops)
    assert 0.1 < utilisation < 0.7
    assert best.estimate.memory_bytes <= DGX_H100.gpu.memory_bytes


def test_chunks_of_equal_size_can_be_asked_for() -> None:
    """7 layers are 4 or 8 chunks, of which the last one lacks a layer."""
    every, equal = (candidates(UNEVEN, 8, 16, Space(uneven_chunks=uneven)) for uneven in (True, False))
    assert {strategy for strategy in every if strategy.interleave == 1} == set(equal)
    assert {strategy.pipeline * strategy.interleave for strategy in every if strategy.interleave > 1} == {4, 8}
    chunked = candidates(SMALL, 12, 24, Space(uneven_chunks=False))
    assert {strategy.pipeline * strategy.interleave for strategy in chunked if strategy.interleave > 1} == {6}


def test_tensor_groups_divide_the_heads_of_keys() -> None:
    found = candidates(replace(SMALL, key_heads=2), 8, 16)
    assert {strategy.tensor for strategy in found} == {1, 2}
    assert all(check(replace(SMALL, key_heads=2), strategy) is None for strategy in found)


def test_a_search_without_gpus_or_without_a_strategy_says_so() -> None:
    with pytest.raises(ValueError, match="1 GPU and 1 sequence or more, not 0 and 4"):
        candidates(SMALL, 0, 4)
    none = candidates(SMALL, 7 * 11 * 13, 1)
    assert len(none) == 0
    assert none.best(DGX_A100) is None


def _grid(inside: int, domains: int, **changes: float) -> Cluster:
    """Equation 1's grid with rates of 8 and 1 byte per nanosecond, no latency, all of the rate reached."""
    made = replace(DGX_A100, domain=Network(64e9, 1.0, 0.0), fabric=Network(8e9, 1.0, 0.0), domain_gpus=inside)
    return replace(made, **changes)


@pytest.mark.parametrize(("inside", "domains"), [(1, 4), (4, 1), (4, 3), (8, 16)])
def test_collectives_over_domains_are_equation_1(inside: int, domains: int) -> None:
    group, size = _grid(inside, domains).group(inside * domains), 1e9
    gather = size * (domains - 1) / (inside * domains) / 1e9 + size * (inside - 1) / inside / 8e9
    assert group.seconds(Collective("all_gather", size)) == pytest.approx(gather)
    assert group.seconds(Collective("all_reduce", size)) == pytest.approx(2 * gather)


@pytest.mark.parametrize(("inside", "domains"), [(1, 4), (4, 3), (8, 16)])
def test_all_to_alls_over_domains_are_equations_2_and_3(inside: int, domains: int) -> None:
    pair = 1e6
    whole = Collective("all_to_all", pair * inside * domains)
    between, within = inside * (domains - 1) * pair / 1e9, (inside - 1) * pair / 8e9
    direct = _grid(inside, domains).group(inside * domains)
    forwarded = replace(direct, forwarding=True)
    assert direct.seconds(whole) == pytest.approx(max(between, within))
    assert forwarded.seconds(whole) == pytest.approx(between + domains * within)


def test_oversubscription_slows_what_leaves_a_leaf() -> None:
    size = Collective("all_gather", 1e9)
    plain = _grid(2, 8)
    thin = replace(plain, leaf_gpus=8, oversubscription=8.0)
    # Four domains below a leaf: one of four neighbours in a ring sends out of it, at an eighth of the rate.
    inner = 0.5e9 / 8e9
    ring = plain.group(16).seconds(size) - inner
    assert thin.group(16).seconds(size) - inner == pytest.approx(2 * ring)
    # Members that are 8 GPUs apart are below different leaves.
    assert thin.group(4, 8).seconds(size) == pytest.approx(8 * plain.group(4, 8).seconds(size))
    assert replace(thin, oversubscription=4.0).group(16).seconds(size) == pytest.approx(ring + inner)


def test_a_domain_or_leaf_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="HB domains of 0 GPUs"):
        replace(DGX_A100, domain_gpus=0)


def test_candidates_in_fp8_have_the_estimate_of_the_closed_form() -> None:
    found = candidates(SMALL, 8, 16, Space(fp8=True, flash=True))
    estimates, plain = found.estimates(DGX_H100), candidates(SMALL, 8, 16, Space(flash=True)).estimates(DGX_H100)
    assert (estimates.memory_bytes < plain.memory_bytes).any()
    for place in range(0, len(found), 29):
        assert found.strategy(place).fp8
        wanted = estimate(SMALL, found.strategy(place), DGX_H100)
        for field in fields(estimates):
            assert getattr(estimates, field.name)[place] == pytest.approx(getattr(wanted, field.name), rel=1e-9)
