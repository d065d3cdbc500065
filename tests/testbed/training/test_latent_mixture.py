# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 against its published sizes, by hand, and against its published profile."""

from dataclasses import replace

import pytest

from testbed.training.closed_form import exchanges_of, optimizer_seconds
from testbed.training.hardware import H100, H800, Work
from testbed.training.latent_mixture import (
    DEEPSEEK_V3,
    H800_NODES,
    attention,
    computing,
    dense,
    exchange_s,
    iteration_s,
    mixture,
    parameters,
    passes,
)
from testbed.training.operators import matrix
from testbed.training.strategies import Strategy

RUN = Strategy(pipeline=16, data=128, microbatches=120, expert=64, zero=1)


def test_the_model_has_671_billion_parameters_of_which_a_token_uses_37() -> None:
    """Section 1 of the report, with the embedding and the output and without the layer that predicts one token more."""
    model = DEEPSEEK_V3
    shared, owned = parameters(model, 64)
    block = sum(operator.parameters for operator in attention(model))
    first = block + sum(operator.parameters for operator in dense(model))
    tables = 2 * model.vocabulary * model.hidden
    whole = model.dense_layers * first + (model.layers - model.dense_layers) * (shared + 64 * owned) + tables
    used = shared + 64 * owned * model.chosen / model.experts
    active = model.dense_layers * first + (model.layers - model.dense_layers) * used + tables / 2
    assert whole == pytest.approx(671e9, rel=0.001)
    assert active == pytest.approx(37e9, rel=0.02)


def test_fp8_halves_the_time_of_products_but_casts_more() -> None:
    wide, narrow = (matrix("linear", 4096, 7168, 7168, fp8=fp8) for fp8 in (False, True))
    assert [len(works) for works in (wide.forward, wide.input_gradient, wide.weight_gradient)] == [1, 1, 1]
    assert [len(works) for works in (narrow.forward, narrow.input_gradient, narrow.weight_gradient)] == [2, 2, 3]
    cast, product = narrow.forward
    assert cast.bytes == 3 * 4096 * 7168
    assert product.bytes == wide.forward[0].bytes / 2  # factors
    assert product.results == wide.forward[0].results  # results stay in BF16
    assert narrow.weight_gradient[-1].results == wide.weight_gradient[-1].results  # gradients in single precision
    ratio = H100.fp8_efficiency * 1979e12 / (H100.matrix_efficiency * 989e12)
    results_s = H100.seconds(Work(bytes=product.results))
    assert (H100.seconds(wide.forward[0]) - results_s) / (H100.seconds(product) - results_s) == pytest.approx(ratio)


def test_products_have_the_rates_of_the_kernels_before_deepgemm() -> None:
    """By hand for one product of each table, with the mean shares: its waves of tiles, and then its results."""
    assert H100.fp8_gradient_efficiency == H100.fp8_efficiency
    projection = matrix("projection", 4096, 16384, 7168, fp8=True)
    memory = 0.9 * 3.35e12
    for work, share, moved in (
        (projection.forward[-1], H800.fp8_efficiency, 2 * 4096 * 7168 / (0.75 / 0.9)),
        (projection.weight_gradient[-1], H800.fp8_gradient_efficiency, 8 * 16384 * 7168),
    ):
        assert work.product is not None
        tiles = work.product.rows * work.product.columns / (256 * 128)
        waves = -(-tiles // 132) * 132 * 256 * 128 * 2 * work.product.inner
        assert H800.seconds(work) == pytest.approx(waves / (1979e12 * share) + moved / memory)
    assert 1.0 < H100.fp8_efficiency / H800.fp8_efficiency < 1.2  # the table's factors
    assert H800.fp8_gradient_efficiency < H800.fp8_efficiency


def test_weights_are_transposed_for_gradients_of_inputs_and_less_is_kept() -> None:
    """By hand: a read and a write of each weight; E5M6 has 12 bits, and SwiGLU's input is kept in FP8."""
    operators = {operator.name: operator for operator in [*attention(DEEPSEEK_V3), *mixture(DEEPSEEK_V3, 64)]}
    linear = [operator for operator in operators.values() if operator.parameters and operator.name != "gate"]
    assert len(linear) == 9
    assert all(operator.input_gradient[0].bytes == 2 * operator.parameters for operator in linear)
    for name, numbers, width in (
        ("projection's input", 4096 * 16384, 1.5),
        ("routed gate's input", 8 * 4096 * 4096, 1),
        ("shared gate's input", 4096 * 4096, 1),
    ):
        kept = operators[name]
        assert kept.saved_bytes == width * numbers
        assert [work.bytes for work in (*kept.forward, *kept.input_gradient)] == [(2 + width) * numbers] * 2
        assert operators[name.removesuffix("'s input")].saved_bytes == 0


def test_a_token_crosses_the_fabric_to_four_nodes_at_most() -> None:
    """By hand: 4 of 8 nodes, of which an eighth is its own; FP8 there, BF16 back. Eight nodes double it."""
    size = 3 * 4096 * 7168
    fabric = H800_NODES.fabric
    between = 3.5 * size * 8 / (0.9 * 400e9)
    within = 7 * size * 8 / (0.8 * 8 * 200e9)
    assert exchange_s(DEEPSEEK_V3, H800_NODES, 64) == pytest.approx(2 * fabric.latency_s + max(between, within))
    free = replace(DEEPSEEK_V3, most_nodes=8)
    assert exchange_s(free, H800_NODES, 64) == pytest.approx(2 * fabric.latency_s + 2 * between)
    assert exchange_s(DEEPSEEK_V3, H800_NODES, 8) == pytest.approx(2 * fabric.latency_s + within)


def test_twenty_multiprocessors_only_send() -> None:
    left = computing(H800)
    assert left.multiprocessors == 112
    assert left.fp8_flops == pytest.approx(1979e12 * 112 / 132)


def test_passes_overlap_and_the_slower_of_computing_and_sending_counts() -> None:
    _, mixed, _ = passes(DEEPSEEK_V3, H800_NODES, 64)
    assert mixed.both_s == mixed.forward_s + mixed.backward_s > 2 * mixed.sent_s > 0
    slow = replace(H800_NODES, fabric=replace(H800_NODES.fabric, rate_bps=100e9))
    _, waiting, _ = passes(DEEPSEEK_V3, slow, 64)
    assert waiting.both_s == 2 * waiting.sent_s > waiting.forward_s + waiting.backward_s


def test_products_and_attention_take_the_time_of_the_published_profile() -> None:
    """Milliseconds of four layers: products 75, of which 5 are beside kernels of the other stream, attention 22."""
    gpu, found = computing(H800), {"products": 0.0, "attention": 0.0}
    for operator in [*attention(DEEPSEEK_V3), *mixture(DEEPSEEK_V3, 64)]:
        again = operator.forward if operator.recomputed else ()
        for work in (*operator.forward, *operator.input_gradient, *operator.weight_gradient, *again):
            if work.product:
                found["attention" if work.fused else "products"] += 4000 * gpu.seconds(work)
    assert found["products"] == pytest.approx(75 - 5, rel=0.05)
    assert found["attention"] == pytest.approx(22, rel=0.06)


@pytest.mark.parametrize(("stages", "layers", "bubble_s"), [(16, 4, 0.749), (2, 31, 0.0)])
def test_the_bubble_is_that_of_two_directions(stages: int, layers: int, bubble_s: float) -> None:
    """(p / 2 - 1) (F&B + B - 3 W), so that two stages have none; twice the microbatches take twice the rest.

    By hand: the slowest GPU has both ends, half of the time each. These have all dense layers, two outputs, the layers
    with experts that inner stages leave, and one that predicts a token more.
    """
    run = replace(RUN, pipeline=stages)
    one, two = (iteration_s(DEEPSEEK_V3, replace(run, microbatches=count), H800_NODES) for count in (120, 240))
    plain, mixed, out = passes(DEEPSEEK_V3, H800_NODES, 64)
    experts = layers - 3 + DEEPSEEK_V3.layers - (stages - 1) * layers + 1
    slowest = (plain * 3 + mixed * experts + out * 2) * 0.5
    assert slowest.both_s > layers * mixed.both_s
    assert (two - one) / 120 == pytest.approx(slowest.both_s)
    held = [2 * layers * count for count in parameters(DEEPSEEK_V3, 64)]
    exchanged = exchanges_of(run, held[0], held[1], H800_NODES)
    at_end_s = exchanged.gradient_s + exchanged.gather_s + optimizer_seconds(run, held[0], held[1], H800_NODES.gpu)
    found_s = one - 120 * slowest.both_s - at_end_s
    wanted_s = (stages / 2 - 1) * (slowest.both_s + slowest.backward_s - 3 * slowest.weights_s)
    assert found_s == pytest.approx(wanted_s, abs=1e-9)
    assert found_s == pytest.approx(bubble_s, abs=0.001)


@pytest.mark.parametrize("wrong", [{"pipeline": 15}, {"tensor": 2}, {"microbatch": 2}, {"zero": 0}])
def test_other_strategies_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="DualPipe here has an even number of stages"):
        iteration_s(DEEPSEEK_V3, replace(RUN, **wrong), H800_NODES)  # type: ignore[arg-type]
