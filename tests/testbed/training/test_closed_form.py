# SPDX-License-Identifier: Apache-2.0
"""The closed form of an iteration against published measurements and sizes."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from testbed.training import korthikanti
from testbed.training.closed_form import (
    activation_bytes,
    check,
    estimate,
    memory_bytes,
    parts_of,
    stage_of,
    state_bytes,
)
from testbed.training.clusters import DGX_A100, DGX_H100
from testbed.training.communication import exchanges, hidden_s, sent_over_fabric
from testbed.training.hardware import A100, H100, Accelerator, Collective, Product, Work, sent_bytes
from testbed.training.operators import Operator, times_of
from testbed.training.schedule import work_of
from testbed.training.strategies import Recomputation, Strategy
from testbed.training.transformer import (
    GPT_1T,
    GPT_22B,
    GPT_175B,
    GPT_530B,
    LLAMA_2_70B,
    LLAMA_3_405B,
    Transformer,
    embedding,
    layer,
    output,
)

_FIGURE_1 = {  # GiB of activations without recomputation, and with sequence parallelism and selective recomputation
    GPT_22B: (59.25, 9.5625),
    GPT_175B: (66.84375, 12.3515625),
    GPT_530B: (114.0234375, 23.076171875),
    GPT_1T: (131.25, 26.5625),
}
"""Korthikanti et al., Figure 1, as github.com/calculon-ai/calculon reads it."""


@pytest.mark.parametrize(
    "measured", korthikanti.MEASURED, ids=lambda measured: f"{measured.model.name}-{measured.strategy.recomputation}"
)
def test_iteration_time_is_within_10_percent_of_the_measurement(measured: korthikanti.Measured) -> None:
    assert abs(measured.deviation) < 0.10


def test_mean_deviation_from_the_measurements_is_below_5_percent() -> None:
    assert korthikanti.mean_deviation() < 0.05


def test_only_layers_are_computed_again() -> None:
    """Megatron-LM checkpoints the layers of `ParallelTransformer`, not the embedding or the output."""
    groups = DGX_A100.group(8), DGX_A100.group(1)
    none, full = (parts_of(GPT_22B, 4, False, how, *groups, DGX_A100.gpu, False) for how in ("none", "full"))
    assert full.layer.recompute_s == full.layer.forward_s > 0
    assert (full.first, full.last) == (none.first, none.last)


def test_sequence_parallelism_gathers_the_gradient_of_the_embedding() -> None:
    size = 2 * GPT_22B.sequence * GPT_22B.hidden
    split, whole = (embedding(GPT_22B, 1, 8, sequence)[0] for sequence in (True, False))
    assert split.sent_forward == whole.sent_forward == (Collective("all_reduce", size),)
    assert (split.sent_backward, whole.sent_backward) == ((Collective("all_gather", size),), ())


def test_biases_and_the_context_are_moved_but_not_kept() -> None:
    """By hand for a layer of GPT on one GPU, in units of 2 s b h bytes: the bias of query, key and value, the context's
    copy, bias and GeLU, twice dropout and residual. Backward with the sums of all biases' gradients."""
    unit = 2 * GPT_22B.sequence * GPT_22B.hidden
    of = [
        operator
        for operator in layer(GPT_22B, 1)
        if not operator.flops and operator.name not in ("softmax", "attention dropout", "norm")
    ]
    forward = sum(operator.forward[0].bytes for operator in of) / unit
    backward = sum(operator.input_gradient[0].bytes for operator in of) / unit
    assert forward == 6 + 2 + 8 + 2 * 3.5
    assert backward == 3 + 6 + 16 + 2 * 6.5


@pytest.mark.parametrize(("model", "gib"), _FIGURE_1.items(), ids=lambda model: getattr(model, "name", ""))
def test_activations_are_those_of_figure_1(model: Transformer, gib: tuple[float, float]) -> None:
    run = next(measured.strategy for measured in korthikanti.MEASURED if measured.model == model)
    none = replace(run, recomputation="none", sequence=False)
    selective = replace(run, recomputation="selective", sequence=True)
    assert activation_bytes(model, none) / 2**30 == pytest.approx(gib[0], rel=1e-4)
    assert activation_bytes(model, selective) / 2**30 == pytest.approx(gib[1], rel=1e-4)


def test_activations_of_a_layer_are_equation_2() -> None:
    for tensor in (1, 2, 8):
        kept = sum(operator.saved_bytes for operator in layer(GPT_175B, 3, tensor))
        hidden, heads, tokens = GPT_175B.hidden, GPT_175B.heads, GPT_175B.sequence
        assert kept == tokens * 3 * hidden * (10 + 24 / tensor + 5 * heads * tokens / (hidden * tensor))


def test_flash_attention_keeps_no_scores() -> None:
    """Equation 2 without the scores, but with a number in single precision for each token of each head."""
    for tensor in (1, 2, 8):
        kept = sum(operator.saved_bytes for operator in layer(GPT_175B, 3, tensor, flash=True))
        hidden, heads, tokens = GPT_175B.hidden, GPT_175B.heads, GPT_175B.sequence
        assert kept == tokens * 3 * hidden * (10 + 24 / tensor) + 4 * 3 * tokens * heads / tensor


def test_flash_attention_computes_half_of_the_scores_forward_and_five_products_backward() -> None:
    (core,) = (operator for operator in layer(GPT_175B, 3, 8, flash=True) if operator.name == "attention")
    one = 2 * 3 * GPT_175B.sequence**2 * GPT_175B.hidden / 8
    (forward,), (backward,) = core.forward, core.input_gradient
    assert A100.seconds(forward) == pytest.approx(2 * one / 2 / (0.73 * 312e12))
    assert A100.seconds(backward) == pytest.approx(5 * one / 2 / (0.63 * 312e12))
    run = Strategy(tensor=8, pipeline=8, microbatches=8, flash=True)
    again = replace(run, recomputation="selective")
    assert estimate(GPT_175B, again, DGX_A100) == estimate(GPT_175B, run, DGX_A100)


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_llama_3_405b_fits_into_80_gb_as_it_was_trained(chunks: int) -> None:
    """Table 4 of "The Llama 3 Herd of Models": 16,384 GPUs, 16 million tokens, tensor groups of 8, 16 stages, 128
    copies that shard the optimizer and gradients (section 3.3.2), and no recomputation."""
    run = Strategy(8, 16, 128, 16, interleave=chunks, sequence=True, zero=2, flash=True)
    assert run.gpus == 16_384
    assert run.batch * LLAMA_3_405B.sequence == 16 * 2**20
    kept, stored = memory_bytes(LLAMA_3_405B, run), memory_bytes(LLAMA_3_405B, replace(run, flash=False))
    assert kept < 80e9 < stored
    if chunks > 1:
        page = " ".join((Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8").split())
        assert f"without recomputation: {kept / 1e9:.1f} GB" in page
        assert f"scores it needs {stored / 1e9:.0f} GB" in page


def test_groups_that_share_a_sequence_gather_keys_and_values() -> None:
    """By hand: each of 4 has a quarter of the tokens, and of the scores. Keys and values of all are gathered each way,
    and backward their gradients are reduce-scattered."""
    whole, part = (layer(LLAMA_3_405B, 2, 8, True, flash=True, context=context) for context in (1, 4))
    for one, other in zip(whole, part, strict=True):
        assert other.flops == one.flops / 4
        assert other.saved_bytes == one.saved_bytes / 4
        assert other.parameters == one.parameters
    (core,) = (operator for operator in part if operator.name == "attention")
    size = 2 * 2 * 2 * LLAMA_3_405B.sequence * LLAMA_3_405B.hidden / 16 / 8
    gathered, scattered = Collective("all_gather", size), Collective("reduce_scatter", size)
    assert (core.context_forward, core.context_backward) == ((gathered,), (gathered, scattered))
    assert not any(operator.context_forward for operator in whole)


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_groups_that_share_a_sequence_expose_three_collectives_a_layer(recomputation: Recomputation) -> None:
    run = Strategy(8, 2, microbatches=4, sequence=True, flash=True, recomputation=recomputation, context=4)
    group = DGX_H100.group(4, 8)
    size = 2 * 2 * LLAMA_3_405B.sequence * LLAMA_3_405B.hidden / 16 / 8
    each_s = sum(group.seconds(Collective(kind, size)) for kind in ("all_gather", "all_gather", "reduce_scatter"))
    shared = estimate(LLAMA_3_405B, run, DGX_H100)
    quick = replace(DGX_H100, fabric=replace(DGX_H100.fabric, rate_bps=1e18, latency_s=0.0))
    alone = estimate(LLAMA_3_405B, run, quick)
    assert shared.tensor_s - alone.tensor_s == pytest.approx(4 * 63 * each_s, rel=1e-3)


def test_groups_that_share_a_sequence_hold_the_same_parameters() -> None:
    copies = Strategy(8, 16, 32, 16, sequence=True, zero=2, flash=True)
    shared = replace(copies, data=2, context=16)
    assert (shared.gpus, shared.copies) == (copies.gpus, copies.copies)
    for field in ("gradient_s", "gather_s", "optimizer_s", "tied_s", "gradient_bytes"):
        assert getattr(stage_of(LLAMA_3_405B, shared, DGX_H100), field) == getattr(
            stage_of(LLAMA_3_405B, copies, DGX_H100), field
        )
    assert state_bytes(LLAMA_3_405B, shared) == state_bytes(LLAMA_3_405B, copies)
    held = activation_bytes(LLAMA_3_405B, copies) / activation_bytes(LLAMA_3_405B, shared)
    assert held == pytest.approx(16)
    long = replace(LLAMA_3_405B, sequence=131_072)  # as it was trained: Table 4
    assert memory_bytes(long, replace(shared, data=8)) < 80e9 < memory_bytes(long, copies)


def test_groups_that_share_a_sequence_are_refused_where_they_are_not_modelled() -> None:
    run = Strategy(8, 16, 2, 16, flash=True, context=16)
    with pytest.raises(ValueError, match="the task graph has no tensor groups that share a sequence"):
        work_of(LLAMA_3_405B, run, DGX_H100)
    for count in (sent_over_fabric, hidden_s):
        with pytest.raises(ValueError, match="has no tensor groups that share a sequence"):
            count(LLAMA_3_405B, run, DGX_H100)
    with pytest.raises(ValueError, match="8192 tokens does not divide into 6 pieces"):
        check(LLAMA_3_405B, replace(run, context=3))
    for wrong in ({"flash": False}, {"context": 0}, {"expert": 2}):
        with pytest.raises(ValueError, match="context is 1, or more with flash and without shared experts"):
            replace(run, **wrong)


def test_products_hide_collectives_of_tensor_groups_but_for_what_takes_longer() -> None:
    """By hand for the two products of an MLP; the embedding and the loss have nothing to hide theirs behind."""
    run = Strategy(tensor=8, sequence=True)
    tensor, expert = DGX_A100.group(8), DGX_A100.group(1)
    block = layer(GPT_175B, 1, 8, True)
    first, second = (operator for operator in block if operator.name in ("first linear", "second linear"))
    sent_s = DGX_A100.group(8).seconds(Collective("all_gather", 2 * GPT_175B.sequence * GPT_175B.hidden))
    for linear in (first, second):
        (product,) = linear.forward
        alone, hidden = (
            times_of([linear], A100, tensor=tensor, expert=expert, overlap=overlap) for overlap in (False, True)
        )
        assert alone.tensor_forward_s == sent_s
        assert hidden.tensor_forward_s == max(sent_s * 16 / 108, sent_s - A100.seconds(product))
        assert hidden.compute_s == alone.compute_s
    slow = replace(DGX_A100, domain=replace(DGX_A100.domain, rate_bps=DGX_A100.domain.rate_bps / 20))
    for cluster in (DGX_A100, slow):
        plain, overlapped = (
            estimate(GPT_175B, replace(run, overlap_tensor=overlap), cluster) for overlap in (False, True)
        )
        assert 0 < overlapped.tensor_s < plain.tensor_s
        assert overlapped.compute_s == plain.compute_s
    ends = [*embedding(GPT_175B, 1, 8, True), output(GPT_175B, 1, 8, True)[-1]]
    plain, overlapped = (
        times_of(ends, A100, tensor=tensor, expert=expert, overlap=overlap) for overlap in (False, True)
    )
    assert plain == overlapped


@pytest.mark.parametrize("sequence", [False, True])
def test_sums_of_input_gradients_take_their_whole_time_with_nothing_to_hide_them(sequence: bool) -> None:
    """As in Megatron-LM until September 2021. Forward nothing changes."""
    tensor = DGX_A100.group(8)
    block = layer(GPT_175B, 1, 8, sequence)
    behind, alone = (
        times_of(block, A100, tensor=tensor, expert=DGX_A100.group(1), overlap_inputs=overlap)
        for overlap in (True, False)
    )
    collectives = [sent for operator in block for sent in (*operator.sent_backward, operator.behind_input)]
    collectives += [operator.behind_weight for operator in block]
    whole_s = sum(tensor.seconds(sent) for sent in collectives if sent is not None)
    assert alone.tensor_backward_s == pytest.approx(whole_s)
    assert behind == replace(alone, tensor_backward_s=behind.tensor_backward_s)
    assert behind.tensor_backward_s < 0.7 * whole_s
    run = Strategy(tensor=8, sequence=sequence)
    whole, hidden = (
        estimate(GPT_175B, replace(run, overlap_inputs=overlap), DGX_A100).tensor_s for overlap in (False, True)
    )
    assert whole - hidden > GPT_175B.layers * 0.999 * (alone.tensor_s - behind.tensor_s)


def test_a_parallel_block_has_one_norm_one_residual_and_half_of_the_collectives() -> None:
    """MegaScale, section 3.1, Equation 2. Attention and MLP multiply as much as one after the other."""
    both = replace(GPT_175B, parallel=True)
    serial, parallel = (layer(model, 1, 8, True) for model in (GPT_175B, both))

    def count(block: list[Operator], name: str) -> int:
        return sum(operator.name == name for operator in block)

    for name in ("norm", "dropout and residual"):
        assert (count(serial, name), count(parallel, name)) == (2, 1)

    def sent(block: list[Operator]) -> list[Collective]:
        found = [one for operator in block for one in (*operator.sent_forward, *operator.sent_backward)]
        behind = [one for operator in block for one in (operator.behind_input, operator.behind_weight)]
        return found + [one for one in behind if one is not None]

    assert len(sent(serial)) == 2 * len(sent(parallel))
    assert sum(one.bytes for one in sent(serial)) == 2 * sum(one.bytes for one in sent(parallel))
    assert sum(operator.flops for operator in serial) == sum(operator.flops for operator in parallel)
    tokens = GPT_175B.sequence * GPT_175B.hidden
    kept = [sum(operator.saved_bytes for operator in block) for block in (serial, parallel)]
    assert kept[0] - kept[1] == (2 + 1 + 2) * tokens / 8  # a norm's input, a mask, and the input of two linear layers
    run = Strategy(8, sequence=True)
    assert estimate(both, run, DGX_A100).iteration_s < estimate(GPT_175B, run, DGX_A100).iteration_s
    with pytest.raises(ValueError, match="175B: a layer with experts has no parallel block"):
        replace(both, experts=8)


def test_products_that_are_apart_multiply_and_send_as_much_and_add_gradients_of_their_input() -> None:
    """Llama 3: `wq`, `wk` and `wv`, `w1` and `w3`. By hand: two gradients are read and a sum is written."""
    together, apart = (layer(replace(LLAMA_3_405B, apart=some), 1, 8, True, flash=True) for some in (False, True))
    names = [[operator.name for operator in block if operator.parameters] for block in (together, apart)]
    assert names == [
        ["query, key, value", "projection", "first linear", "second linear"],
        ["query", "key", "value", "projection", "first linear", "gate", "second linear"],
    ]
    for same in ("flops", "parameters", "saved_bytes"):
        sums = [sum(getattr(operator, same) for operator in block) for block in (together, apart)]
        assert sums[0] == sums[1]
    sent = [
        [
            (operator.sent_forward, operator.sent_backward, operator.behind_input, operator.behind_weight)
            for operator in block
            if operator.sent_forward
        ]
        for block in (together, apart)
    ]
    assert sent[0] == sent[1]
    added = [operator for operator in apart if operator.parameters and len(operator.input_gradient) > 1]
    assert [operator.name for operator in added] == ["key", "value", "gate"]
    assert all(operator.input_gradient[-1].bytes == 3 * 2 * 8192 * 16384 for operator in added)
    run = Strategy(8, sequence=True, flash=True)
    slow, fast = (estimate(replace(LLAMA_3_405B, apart=some), run, DGX_H100).compute_s for some in (True, False))
    assert 1.02 < slow / fast < 1.06
    with pytest.raises(ValueError, match="the products of experts are not apart"):
        replace(LLAMA_3_405B, apart=True, experts=8)


def test_a_model_with_gates_has_no_dropout() -> None:
    """By hand, in bytes for each number of a token: norms 4, residuals 6; backward 6 each."""
    block = [
        operator for operator in layer(LLAMA_2_70B, 1, flash=True) if operator.name in ("norm", "dropout and residual")
    ]
    unit = LLAMA_2_70B.sequence * LLAMA_2_70B.hidden
    assert [operator.forward[0].bytes / unit for operator in block] == [4, 6, 4, 6]
    assert [operator.input_gradient[0].bytes / unit for operator in block] == [6, 6, 6, 6]
    assert [operator.saved_bytes / unit for operator in block] == [2, 0, 2, 0]
    assert not any(operator.name == "dropout" for operator in embedding(LLAMA_2_70B, 1))
    assert not any(operator.name == "attention dropout" for operator in layer(LLAMA_2_70B, 1))


def test_keys_and_values_that_heads_share_are_kept_once() -> None:
    full = replace(LLAMA_2_70B, key_heads=None)
    kept = [sum(operator.saved_bytes for operator in layer(model, 1)) for model in (full, LLAMA_2_70B)]
    assert kept[0] - kept[1] == 2 * 2 * full.sequence * full.hidden * (1 - 8 / 64)


def test_operations_are_those_of_equation_7() -> None:
    block = layer(GPT_175B, 2)
    logits = 2 * 2 * GPT_175B.sequence * GPT_175B.hidden * GPT_175B.vocabulary
    forward = GPT_175B.layers * sum(operator.flops for operator in block) + logits
    assert 3 * forward == pytest.approx(GPT_175B.flops(2), rel=1e-12)


def test_a_model_has_the_parameters_of_its_name() -> None:
    for model, billions in ((GPT_22B, 22), (GPT_175B, 175), (GPT_530B, 530), (GPT_1T, 1008)):
        assert model.parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_gates_and_shared_keys_count_as_weights() -> None:
    """The released weights of LLaMA2-70B have 69 billion parameters, of which the output layer's own are 0.26."""
    assert LLAMA_2_70B.parameters / 1e9 == pytest.approx(68.98 - 0.26, rel=0.001)
    held = sum(operator.parameters for operator in layer(LLAMA_2_70B, 1, 8))
    assert held == pytest.approx(LLAMA_2_70B.layer_parameters / 8)


def test_gates_of_experts_count_as_weights_and_operations() -> None:
    model = Transformer("gated", 2, 1024, 16, experts=4, chosen=2, gated=True)
    block = layer(model, 1)
    router = model.hidden * model.experts
    assert sum(operator.parameters for operator in block) - router == model.layer_parameters
    logits = 2 * model.sequence * model.hidden * model.vocabulary
    forward = 2 * (sum(operator.flops for operator in block) - 2 * model.sequence * router) + logits
    assert 3 * forward == pytest.approx(model.flops(1), rel=1e-12)
    (gate,) = (operator for operator in block if operator.name == "gate" and not operator.flops)
    assert gate.saved_bytes == 2 * 2 * 2 * model.sequence * model.inner  # two halves, for two experts of each token


def test_a_partial_wave_of_tiles_takes_as_long_as_a_full_one() -> None:
    full, more = Work(Product(256 * 12, 4096, 128 * 9)), Work(Product(256 * 12 + 1, 4096, 128 * 9))
    assert A100.seconds(full) == pytest.approx(full.flops / (A100.matrix_efficiency * 312e12))
    assert A100.seconds(more) == pytest.approx(2 * A100.seconds(full))


def test_a_product_reads_while_it_multiplies_and_writes_after_that() -> None:
    """Memory moves 0.9 of its rate for 100 MB and more: 1 GB takes 545 us, longer than 98 us of multiplying."""
    product = Product(256 * 12, 4096, 128 * 9)
    multiplies, moves = A100.seconds(Work(product)), A100.seconds(Work(bytes=1e9))
    assert A100.seconds(Work(product, bytes=1e8)) == multiplies
    assert A100.seconds(Work(product, bytes=1e9)) == moves == pytest.approx(1e9 / (0.9 * 2.039e12))
    assert A100.seconds(Work(product, results=1e9)) == multiplies + moves


@pytest.mark.parametrize(
    ("gpu", "product", "flops", "off"),
    [
        # H. He, and DeepGEMM of February 2025; the last two are not those that the rate is made of.
        (A100, Product(8192, 8192, 8192), 257e12, 0.001),
        (H100, Product(4096, 16384, 7168, fp8=True), 1358e12, 0.08),
        (H100, Product(4096, 7168, 4096, fp8=True), 1304e12, 0.08),
        (H100, Product(4096, 512, 32768, fp8=True), 590e12, 0.2),
        (H100, Product(8192, 7168, 4096, 4, fp8=True), 1297e12, 0.08),
        (H100, Product(8192, 2048, 7168, 4, fp8=True), 1099e12, 0.08),
    ],
)
def test_products_take_the_time_that_others_measured(
    gpu: Accelerator, product: Product, flops: float, off: float
) -> None:
    results = 2 * product.copies * product.rows * product.columns
    assert gpu.seconds(Work(product, results=results)) == pytest.approx(product.flops / flops, rel=off)


def test_linear_layers_on_an_h100_reach_the_median_that_was_measured() -> None:
    """The 96 products of `docs/notes/model-accuracy.md`: 0.69 of the peak. The longest reached 0.66 to 0.74."""
    rates = [
        (H100.seconds(work), work.flops / H100.seconds(work) / 989e12)
        for model, tensor in ((GPT_22B, 1), (GPT_22B, 8), (GPT_175B, 8), (GPT_1T, 8))
        for sequences in (1, 4)
        for operator in layer(model, sequences, tensor)
        for work in (*operator.forward, *operator.input_gradient, *operator.weight_gradient)
        if work.product and not operator.recomputed
    ]
    assert len(rates) == 96
    assert median(rate for _, rate in rates) == pytest.approx(0.69, abs=0.005)
    assert all(0.66 < rate < 0.76 for _, rate in sorted(rates)[-12:])


@pytest.mark.parametrize("model", [GPT_175B, LLAMA_3_405B, replace(GPT_22B, experts=8, chosen=2)])
def test_linear_layers_in_fp8_keep_half_and_send_as_much(model: Transformer) -> None:
    """By hand: inputs of query, key and value and of both linear layers take one byte for each number and not two. The
    context is kept in both, because attention's core needs it backward."""
    wide, narrow = (layer(model, 2, 8, True, flash=True, fp8=fp8) for fp8 in (False, True))
    assert [operator.name for operator in wide] == [operator.name for operator in narrow]
    linear = ("query, key, value", "first linear", "second linear", "experts' first linear", "experts' second linear")
    for one, other in zip(wide, narrow, strict=True):
        fp8 = one.name in (*linear, "projection")
        assert any(work.product and work.product.fp8 for work in other.forward) is fp8
        assert not any(work.product and work.product.fp8 for work in one.forward)
        kept = 1.5 if one.name == "projection" else 0.5 if fp8 else 1
        assert other.saved_bytes == kept * one.saved_bytes
        assert (other.sent_forward, other.exchanged, other.parameters) == (
            one.sent_forward,
            one.exchanged,
            one.parameters,
        )


def test_fp8_is_refused_without_units_for_it() -> None:
    with pytest.raises(ValueError, match="A100 80 GB has no units for FP8; take BF16"):
        A100.seconds(Work(Product(256, 256, 256, fp8=True)))
    with pytest.raises(ValueError, match="A100 80 GB has no units for FP8; take BF16"):
        estimate(GPT_22B, Strategy(tensor=8, fp8=True), DGX_A100)


def test_ring_collectives_send_their_known_bytes() -> None:
    assert sent_bytes(Collective("all_reduce", 8e9), 8) == 14e9
    assert sent_bytes(Collective("all_gather", 8e9), 8) == sent_bytes(Collective("reduce_scatter", 8e9), 8) == 7e9
    assert DGX_A100.domain.seconds(Collective("all_reduce", 8e9), 1) == 0


def test_more_gpus_of_a_tensor_group_compute_faster_and_more_microbatches_longer() -> None:
    base = Strategy(tensor=2, pipeline=8, microbatches=8, recomputation="selective")
    slow = estimate(GPT_175B, base, DGX_A100)
    wider = estimate(GPT_175B, replace(base, tensor=8), DGX_A100)
    longer = estimate(GPT_175B, replace(base, microbatches=16), DGX_A100)
    assert wider.compute_s < slow.compute_s / 2.5
    assert longer.compute_s == pytest.approx(2 * slow.compute_s)
    assert longer.bubble_s == pytest.approx(slow.bubble_s)


def test_interleaving_divides_the_bubble_and_multiplies_the_transfers() -> None:
    plain = Strategy(tensor=8, pipeline=8, microbatches=16)
    chunked = replace(plain, interleave=3)
    before, after = (estimate(GPT_175B, strategy, DGX_A100) for strategy in (plain, chunked))
    edge = before.bubble_s - 1.5 * (before.bubble_s - after.bubble_s)  # the embedding is not divided
    assert after.bubble_s - edge == pytest.approx((before.bubble_s - edge) / 3)
    assert after.transfer_s > 2 * before.transfer_s


def test_memory_has_the_output_and_what_is_computed_again() -> None:
    """By hand for one stage: 16 layers' inputs, a mask, and the logits, or a layer's activations but its input."""
    model = Transformer("wide", 16, 1024, 16, vocabulary=250_880)
    run = Strategy(recomputation="full")
    tokens = model.sequence
    layers, mask = 16 * 2 * tokens * model.hidden, tokens * model.hidden
    logits = 4 * tokens * model.vocabulary + 2 * 2 * tokens * model.hidden
    assert memory_bytes(model, run) - state_bytes(model, run) == layers + mask + logits
    narrow = replace(model, vocabulary=1024)
    again = sum(operator.saved_bytes for operator in layer(narrow, 1)) - 2 * tokens * model.hidden
    assert memory_bytes(narrow, run) - state_bytes(narrow, run) == layers + mask + again
    core = replace(run, recomputation="selective")
    kept = activation_bytes(narrow, core)
    scores = 5 * narrow.heads * tokens**2
    assert memory_bytes(narrow, core) - state_bytes(narrow, core) == kept + mask + scores


def test_the_last_stage_may_hold_the_most() -> None:
    model = Transformer("wide", 16, 1024, 16, vocabulary=250_880)
    run = Strategy(pipeline=2, microbatches=2, recomputation="full")
    layers, logits = 8 * 2 * 2048 * 1024, 4 * 2048 * 250_880 + 2 * 2 * 2048 * 1024
    assert memory_bytes(model, run) - state_bytes(model, run) == layers + logits
    every = replace(run, interleave=2)  # all microbatches go forward before any goes backward
    assert memory_bytes(model, every) - state_bytes(model, every) == 2 * (layers + logits)


def test_zero_3_holds_two_gathered_layers_and_the_table() -> None:
    run = Strategy(tensor=8, data=64, recomputation="full", sequence=True)
    none, third = (
        memory_bytes(GPT_22B, strategy) - state_bytes(GPT_22B, strategy) for strategy in (run, replace(run, zero=3))
    )
    assert third - none == pytest.approx(2 * (2 * GPT_22B.layer_parameters + 51_200 * 6144) / 8)


def test_zero_divides_the_memory_of_state_gradients_and_parameters() -> None:
    run = Strategy(tensor=8, data=64, recomputation="full", sequence=True)
    held = [state_bytes(GPT_22B, replace(run, zero=stage)) for stage in range(4)]
    per_gpu = held[0] / 18
    assert held[1:] == pytest.approx([per_gpu * (6 + 12 / 64), per_gpu * (2 + 16 / 64), per_gpu * 18 / 64])


def test_gradients_behind_the_backward_pass_cost_less_than_after_it() -> None:
    run = Strategy(tensor=8, pipeline=8, data=16, microbatches=8)
    hidden = estimate(GPT_175B, run, DGX_A100)
    exposed = estimate(GPT_175B, replace(run, overlap_gradients=False), DGX_A100)
    assert 0 < hidden.data_s < exposed.data_s
    assert hidden.compute_s == exposed.compute_s


def test_gradients_in_half_precision_take_half_the_room_and_half_the_time() -> None:
    run = Strategy(tensor=8, pipeline=2, data=16, microbatches=4, overlap_gradients=False)
    half = replace(run, half_gradients=True)
    whole_s, half_s = (estimate(GPT_175B, split, DGX_A100).data_s for split in (run, half))
    assert half_s == pytest.approx(whole_s / 2, rel=0.01)  # but for latencies
    assert state_bytes(GPT_175B, half) == pytest.approx(state_bytes(GPT_175B, run) * 16 / 18)
    assert exchanges(half)[0] == (Collective("all_reduce", 2.0), 1)


def test_copies_with_a_shard_of_the_gradients_exchange_those_of_every_microbatch() -> None:
    """A copy cannot sum the gradients of microbatches that it does not hold. It holds and sends single precision."""
    run = Strategy(tensor=8, data=16, microbatches=6, overlap_gradients=False, zero=1)
    for zero, times in ((1, 1), (2, 6), (3, 6)):
        split = replace(run, zero=zero)
        assert exchanges(split)[0] == (Collective("reduce_scatter", 4.0), times)
        stage = stage_of(GPT_22B, split, DGX_A100)
        assert stage.gradient_s == stage_of(GPT_22B, run, DGX_A100).gradient_s
    once, each = (estimate(GPT_22B, replace(run, zero=zero), DGX_A100).data_s for zero in (1, 2))
    stage = stage_of(GPT_22B, run, DGX_A100)
    assert each - once == pytest.approx(5 * (48 * stage.gradient_s + stage.table.gradient_s))


def test_copies_and_the_ends_of_a_pipeline_sum_gradients_of_the_embedding() -> None:
    sums = Collective("all_reduce", 4 * 51_200 * 6144 / 8)
    run = Strategy(tensor=8, data=16, microbatches=2, overlap_gradients=False)
    layers_s = 48 * stage_of(GPT_22B, run, DGX_A100).gradient_s
    copies_s = DGX_A100.group(16, 8).seconds(sums)
    assert estimate(GPT_22B, run, DGX_A100).data_s == pytest.approx(layers_s + copies_s)
    piped = replace(run, pipeline=2, data=1)
    assert estimate(GPT_22B, piped, DGX_A100).data_s == pytest.approx(DGX_A100.group(2, 8).seconds(sums))
    both = replace(run, pipeline=2)
    ends_s = DGX_A100.group(2, 16 * 8).seconds(sums)
    assert estimate(GPT_22B, both, DGX_A100).data_s == pytest.approx(layers_s / 2 + copies_s + ends_s)


def test_a_backward_pass_hides_the_gradients_of_a_microbatch_where_it_is_longer() -> None:
    run = Strategy(tensor=8, data=2, microbatches=6, zero=2)
    fast = replace(DGX_A100, fabric=replace(DGX_A100.fabric, rate_bps=800e9))
    assert estimate(GPT_22B, run, fast).data_s == pytest.approx(estimate(GPT_22B, replace(run, zero=1), fast).data_s)
    one, two = (estimate(GPT_22B, replace(run, data=64, zero=zero), DGX_A100).data_s for zero in (1, 2))
    assert two > 1.2 * one


def test_experts_cost_all_to_alls_and_parameters_but_no_more_operations() -> None:
    dense = Transformer("1.3B", 24, 2048, 16)
    sparse = replace(dense, experts=128)
    run = Strategy(data=128, expert=128, microbatch=4)
    assert estimate(sparse, run, DGX_A100).expert_s > 0
    assert estimate(dense, replace(run, expert=1), DGX_A100).expert_s == 0
    assert sparse.parameters > 20 * dense.parameters
    flops = [sum(operator.flops for operator in layer(model, 4)) for model in (dense, sparse)]
    assert flops[1] == pytest.approx(flops[0], rel=0.02)  # the gate is the difference


@pytest.mark.parametrize("sequence", [False, True])
def test_a_tensor_group_gathers_the_tokens_that_each_of_its_gpus_sends_to_experts(sequence: bool) -> None:
    """All that is routed comes together before the experts and is split after them. Without sequence parallelism each
    GPU has all tokens before and after, and backward their gradients."""
    model = Transformer("sparse", 24, 2048, 16, experts=8, chosen=2)
    tokens = 2 * 2048 * 2048
    first, second = (operator for operator in layer(model, 1, 4, sequence, 4) if operator.exchanged)
    gather, scatter = Collective("all_gather", 2 * tokens), Collective("reduce_scatter", 2 * tokens)
    again = () if sequence else (Collective("all_gather", tokens),)
    assert first.exchanged == second.exchanged == (Collective("all_to_all", 2 * tokens / 4),)
    assert (first.sent_forward, second.sent_forward) == ((gather,), (scatter, *again))
    assert (second.sent_backward, first.behind_weight, first.sent_backward) == ((gather,), scatter, again)
    alone = [operator for operator in layer(model, 1, 1, False, 4) if operator.exchanged]
    assert not any(operator.sent_forward or operator.sent_backward or operator.behind_weight for operator in alone)


def test_a_gate_routes_the_tokens_that_its_gpu_has() -> None:
    """All of them without sequence parallelism, and a share with it; its weights are whole."""
    model = Transformer("sparse", 24, 2048, 16, experts=8)
    whole, share = (layer(model, 1, 4, sequence, 4) for sequence in (False, True))
    (every,), (some,) = ([operator for operator in block if operator.name == "gate"] for block in (whole, share))
    assert every.flops == 4 * some.flops == 2 * model.sequence * model.hidden * model.experts
    assert every.saved_bytes == 4 * some.saved_bytes == 2 * model.sequence * model.hidden
    assert every.parameters == some.parameters == model.hidden * model.experts


def test_zero_splits_experts_among_the_copies_that_hold_them() -> None:
    """Where every copy has experts of its own, there is nobody to split them with."""
    model = Transformer("1.3B", 24, 2048, 16, experts=128)
    run = Strategy(data=128, recomputation="full")
    dense = replace(model, experts=0)
    for expert in (128, 32):
        own = replace(run, expert=expert)
        held = [state_bytes(model, replace(own, zero=zero)) for zero in (0, 3)]
        owned = 24 * 128 // expert * 8 * model.hidden**2
        shared = held[0] / 18 - owned
        assert shared == pytest.approx(dense.parameters - 24 * 8 * model.hidden**2, rel=0.02)
        assert held[1] == pytest.approx(18 * (shared / 128 + owned * expert / 128))
        state = replace(DGX_A100, fabric=replace(DGX_A100.fabric, rate_bps=1e15))
        plain, split = (estimate(model, replace(own, zero=zero), state).optimizer_s for zero in (0, 1))
        assert split / plain == pytest.approx((shared / 128 + owned * expert / 128) / (shared + owned), rel=0.01)


def test_a_strategy_that_does_not_fit_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="105 layers do not divide into 12 chunks"):
        check(GPT_530B, Strategy(pipeline=4, interleave=3, microbatches=4))
    with pytest.raises(ValueError, match="48 layers are fewer than 49 stages"):
        check(GPT_22B, Strategy(pipeline=49))
    with pytest.raises(ValueError, match="96 heads do not divide among 5 GPUs"):
        check(GPT_175B, Strategy(tensor=5))
    with pytest.raises(ValueError, match="8 heads of keys do not divide among 16 GPUs"):
        check(LLAMA_2_70B, Strategy(tensor=16))
    with pytest.raises(ValueError, match="multiple of 4 microbatches"):
        Strategy(pipeline=4, interleave=2, microbatches=6)
    with pytest.raises(ValueError, match="do not divide 6 copies"):
        Strategy(data=6, expert=4)


def test_the_page_has_the_table_of_the_comparison() -> None:
    page = Path(__file__).parents[3] / "docs" / "training.md"
    assert korthikanti.table() in page.read_text(encoding="utf-8")
