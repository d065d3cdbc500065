# SPDX-License-Identifier: Apache-2.0
"""Transformers as operators, dense and as mixtures of experts, under tensor and sequence parallelism.

The kernels are those of Megatron-LM in 2022, or with `flash` FlashAttention: fused softmax, fused bias with GeLU and
with dropout. The bias of query, key and value is added by a kernel of its own. A sum over tokens reads the gradient of
each bias once. Backward, the gradients of query, key and value are concatenated. Attention's context is copied to the
order of the projection's input (`layers.py` and `transformer.py` of Megatron-LM). A model with gates has no biases and
no dropout. Activations that are kept sum to s b h (10 + 24 / t + 5 a s / (h t)) bytes for each layer, Equation 2 of V.
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from testbed.training.hardware import Collective, Kind, Work
from testbed.training.operators import EIGHTH, HALF, SINGLE, Operator, elementwise, flash_attention, matrix


@dataclass(frozen=True, slots=True)
class Transformer:
    """The shape of a decoder. `experts` above 0 makes the MLP of every layer a mixture of experts."""

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    """Tokens of a sequence."""
    vocabulary: int = 51200
    feedforward: int | None = None
    """Hidden units of the MLP; by default 4 `hidden`."""
    experts: int = 0
    """Experts of a layer, each an MLP."""
    chosen: int = 1
    """Experts that each token goes to."""
    key_heads: int | None = None
    """Heads of keys and values, which groups of heads share (grouped-query attention); by default `heads`."""
    gated: bool = False
    """Whether the MLP has a third matrix, the gate of SwiGLU."""
    parallel: bool = False
    """Whether attention and MLP of a layer begin with the same norm and are summed once (Z. Jiang et al., "MegaScale",
    NSDI 2024, section 3.1), so that a tensor group gathers and sums once for both. Not with experts."""
    apart: bool = False
    """Whether queries, keys and values, and the gate and the first linear layer, are products of their own, as in the
    released code of Llama 3 (github.com/meta-llama/llama3, `llama/model.py`). Otherwise one product makes all that has
    the same input, as in Megatron-LM. Not with experts."""

    def __post_init__(self) -> None:
        if self.parallel and self.experts:
            raise ValueError(f"{self.name}: a layer with experts has no parallel block; take one or the other")
        if self.apart and self.experts:
            raise ValueError(f"{self.name}: the products of experts are not apart; take one or the other")

    @property
    def inner(self) -> int:
        """Hidden units of the MLP."""
        return self.feedforward or 4 * self.hidden

    @property
    def layer_parameters(self) -> float:
        """Weights of a layer's matrices, with all experts. Biases and norms are left out: below 0.1 %."""
        return self._attention_parameters + max(1, self.experts) * self._mlp_parameters

    @property
    def _attention_parameters(self) -> float:
        return (2 + 2 * self.key_share) * self.hidden**2

    @property
    def _mlp_parameters(self) -> float:
        return (2 + self.gated) * self.hidden * self.inner

    @property
    def key_share(self) -> float:
        """Heads of keys, as a fraction of `heads`."""
        return (self.key_heads or self.heads) / self.heads

    @property
    def parameters(self) -> float:
        """All weights of matrices, with the embedding, which the output layer shares."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden

    def flops(self, sequences: int) -> float:
        """Operations on the matrix units that an iteration needs, forward once and backward twice.

        6 for each token and weight, and attention's 12 b s^2 h L. For GPT this is Equation 7 of Korthikanti et al.,
        72 b s L h^2 (1 + s / (6 h) + V / (12 h L)).
        """
        tokens = sequences * self.sequence
        chosen = self.chosen if self.experts else 1
        weights = self.layers * (self._attention_parameters + chosen * self._mlp_parameters)
        scores = 12 * tokens * self.sequence * self.hidden * self.layers
        return 6 * tokens * (weights + self.vocabulary * self.hidden) + scores


def layer(
    model: Transformer,
    microbatch: int,
    tensor: int = 1,
    sequence: bool = False,
    expert: int = 1,
    flash: bool = False,
    context: int = 1,
    fp8: bool = False,
) -> list[Operator]:
    """The operators of one layer on one GPU of the tensor group, for its part of `microbatch` sequences, which
    `context` tensor groups share. With `fp8` linear layers multiply in FP8, and keep their inputs so; attention's core
    keeps what it needs in half precision."""
    keys, model = model.sequence, shared_sequence(model, context)
    tokens, hidden, heads = microbatch * model.sequence, model.hidden, model.heads / tensor
    width = hidden / tensor
    heads_width = (1 + 2 * model.key_share) * width
    local = tokens / tensor if sequence else tokens
    width_kept = EIGHTH if fp8 else HALF
    kept = width_kept * local * hidden  # a linear layer keeps its input once more; with sequence parallelism its share
    norm = elementwise("norm", 4 * local * hidden, 6 * local * hidden, saved=HALF * local * hidden)
    bias = 0 if model.gated else HALF
    # The last terms of the backward traffic add the gradient of the residual branch, and sum that of the bias.
    dropped = 0 if model.gated else 1  # a byte for each number: the mask
    residual = elementwise(
        "dropout and residual",
        (6 + dropped) * local * hidden,
        (5 * dropped + 6 + bias) * local * hidden,
        saved=dropped * local * hidden,
    )
    spread = HALF * tokens * hidden
    widths = {"query": width, "key": model.key_share * width, "value": model.key_share * width}
    first, *others = _of_one_input("query, key, value", tokens, hidden, widths, model.apart, saved=kept, fp8=fp8)
    last = matrix("projection", tokens, width, hidden, saved=(HALF + fp8 * EIGHTH) * tokens * width, fp8=fp8)
    core = [
        elementwise("bias of query, key, value", 2 * bias * tokens * heads_width, bias * tokens * heads_width),
        elementwise("gradients of query, key, value", 0, 2 * HALF * tokens * heads_width),
        *_core(model, microbatch, heads, flash, keys),
    ]
    if model.parallel:
        # The MLP gathers and sums for both, and keeps the input of both.
        added = elementwise("sum of attention and MLP", 3 * spread, 3 * spread)
        mlp = _mlp(model, tokens, 0.0, tensor, sequence, fp8)
        return [norm, first, *others, *core, last, *mlp, added, residual]
    mlp = (
        _experts(model, tokens, tensor, sequence, expert, fp8)
        if model.experts
        else _mlp(model, tokens, kept, tensor, sequence, fp8)
    )
    first, last = _columns(first, spread, tensor, sequence), _rows(last, spread, tensor, sequence)
    return [norm, first, *others, *core, last, residual, norm, *mlp, residual]


def _of_one_input(
    name: str, tokens: float, hidden: float, widths: Mapping[str, float], apart: bool, *, saved: float, fp8: bool
) -> list[Operator]:
    """Linear layers of one input by the widths of their outputs: one product `name`, or with `apart` one for each.

    Then each but the first adds its gradient of the input to that of the others. The input is kept once.
    """
    if not apart:
        return [matrix(name, tokens, hidden, sum(widths.values()), saved=saved, fp8=fp8)]
    first, *others = (matrix(each, tokens, hidden, width, fp8=fp8) for each, width in widths.items())
    added = Work(bytes=3 * HALF * tokens * hidden)
    return [
        replace(first, saved_bytes=saved),
        *(replace(other, input_gradient=(*other.input_gradient, added)) for other in others),
    ]


def shared_sequence(model: Transformer, context: int) -> Transformer:
    """What one of `context` tensor groups that share a sequence has of it."""
    return replace(model, sequence=model.sequence // context)


def _core(model: Transformer, microbatch: int, heads: float, flash: bool, keys: int) -> list[Operator]:
    """Attention's core, from queries, keys and values to the context, for the `heads` of one GPU.

    GPUs that share a sequence gather `keys` keys and values, keep only their own, and so gather them again backward,
    before their gradients are reduce-scattered.
    """
    tokens, head = microbatch * model.sequence, model.hidden / model.heads
    width, scores = heads * head, microbatch * heads * model.sequence**2
    queries, shared = HALF * tokens * width, model.key_share * HALF * tokens * width
    if flash:
        kept = queries + 2 * shared
        attention = flash_attention("attention", model.sequence, keys, head, copies=microbatch * heads, saved=kept)
        if keys == model.sequence:
            return [attention]
        gathered = Collective("all_gather", 2 * shared * keys / model.sequence)
        scattered = gathered._replace(kind="reduce_scatter")
        return [replace(attention, context_forward=(gathered,), context_backward=(gathered, scattered))]
    core = [
        matrix(
            "scores",
            model.sequence,
            head,
            model.sequence,
            saved=queries + shared,
            copies=microbatch * heads,
            weights=False,
        ),
        elementwise("softmax", 4 * scores, 6 * scores, saved=HALF * scores),
        *([] if model.gated else [elementwise("attention dropout", 5 * scores, 5 * scores, saved=3 * scores)]),
        matrix("context", model.sequence, model.sequence, head, saved=shared, copies=microbatch * heads, weights=False),
        elementwise("copy of context", 2 * HALF * tokens * width, 0),
    ]
    return [replace(operator, recomputed=True) for operator in core]


def _mlp(model: Transformer, tokens: float, kept: float, tensor: int, sequence: bool, fp8: bool) -> list[Operator]:
    """The linear layers. A gate has the input of the first one, and the activation reads both."""
    inner, spread = model.inner / tensor, HALF * tokens * model.hidden
    saved = (EIGHTH if fp8 else HALF) * tokens * inner
    widths = {"first linear": inner} | ({"gate": inner} if model.gated else {})
    first, *others = _of_one_input("first linear", tokens, model.hidden, widths, model.apart, saved=kept, fp8=fp8)
    second = matrix("second linear", tokens, inner, model.hidden, saved=saved, fp8=fp8)
    return [
        _columns(first, spread, tensor, sequence),
        *others,
        _activation(model, HALF * tokens * inner),
        _rows(second, spread, tensor, sequence),
    ]


def _activation(model: Transformer, moved: float) -> Operator:
    """What is between the linear layers. The last term of the traffic backward is the sum of the bias's gradient."""
    if model.gated:
        return elementwise("gate", 3 * moved, 5 * moved, saved=2 * moved)
    return elementwise("bias and GeLU", 2 * moved, (3 + 1) * moved, saved=moved)


def _experts(model: Transformer, tokens: float, tensor: int, sequence: bool, expert: int, fp8: bool) -> list[Operator]:
    """Experts with an equal number of tokens each. Tokens go to their experts and back in an all-to-all each way.

    A GPU holds `experts` / `expert` of them, and each is split by `tensor`. Source: D. Lepikhin et al., "GShard", 2021.
    Each GPU of a tensor group sends its share of the tokens. The group gathers all before its part of the experts, and
    reduce-scatters what comes out. Without sequence parallelism each GPU needs all tokens again: the group gathers what
    comes back, and backward the gradients of what it sent (S. Singh et al., "A Hybrid Tensor-Expert-Data Parallelism
    Approach to Optimize Mixture-of-Experts Training", ICS 2023: duplicate token dropping). Every GPU has the whole
    gate, and with sequence parallelism only its share of the tokens to route, as norms have.
    """
    held, routed = model.experts / expert, tokens * model.chosen
    inner, spread = model.inner / tensor, HALF * routed * model.hidden
    moved = (Collective("all_to_all", spread / tensor),)
    halves = 1 + model.gated
    rows, width = routed / held, EIGHTH if fp8 else HALF
    saved = width * routed * model.hidden, width * routed * inner
    names = "experts' first linear", "experts' second linear"
    first = matrix(names[0], rows, model.hidden, halves * inner, copies=held, saved=saved[0], fp8=fp8)
    second = matrix(names[1], rows, inner, model.hidden, copies=held, saved=saved[1], fp8=fp8)
    local = tokens / tensor if sequence else tokens
    gate = matrix("gate", local, model.hidden, model.experts, saved=HALF * local * model.hidden)
    gathered, scattered = (_together(kind, spread, tensor) for kind in ("all_gather", "reduce_scatter"))
    again = () if sequence else _together("all_gather", HALF * tokens * model.hidden, tensor)
    behind = scattered[0] if scattered else None
    return [
        gate,
        replace(first, exchanged=moved, sent_forward=gathered, behind_weight=behind, sent_backward=again),
        _activation(model, HALF * routed * inner),
        replace(second, exchanged=moved, sent_forward=(*scattered, *again), sent_backward=gathered),
    ]


def embedding(model: Transformer, microbatch: int, tensor: int = 1, sequence: bool = False) -> list[Operator]:
    """The first stage's table look-up; the vocabulary is split by `tensor`.

    The gradient is dense: cleared and filled in half precision, then added to single-precision gradients. The rows are
    all-reduced. Sequence parallelism then takes a part of them, so that backward the gradient is gathered
    (`scatter_to_sequence_parallel_region` of Megatron-LM's embedding).
    """
    tokens, table = microbatch * model.sequence, model.vocabulary * model.hidden / tensor
    moved = HALF * tokens * model.hidden
    look_up = Operator(
        "embedding",
        forward=(Work(bytes=2 * moved),),
        input_gradient=(),
        weight_gradient=(Work(bytes=2 * moved), Work(bytes=(2 * HALF + 2 * SINGLE) * table)),
        parameters=table,
    )
    local = tokens / tensor if sequence else tokens
    gathered = _together("all_gather", moved, tensor) if sequence else ()
    found = replace(look_up, sent_forward=_together("all_reduce", moved, tensor), sent_backward=gathered)
    if model.gated:
        return [found]
    return [
        found,
        elementwise("dropout", 5 * local * model.hidden, 5 * local * model.hidden, saved=local * model.hidden),
    ]


def output(model: Transformer, microbatch: int, tensor: int = 1, sequence: bool = False) -> list[Operator]:
    """The last stage's norm, logits and cross-entropy. The logits' weights are the embedding's (tied).

    The cross-entropy is Megatron-LM's, split by vocabulary, in single precision: one kernel each to convert, find the
    maximum, subtract, exponentiate, sum and divide. Its all-reduces have one number for each token.
    """
    tokens, width = microbatch * model.sequence, model.vocabulary / tensor
    local = tokens / tensor if sequence else tokens
    held, spread = HALF * local * model.hidden, HALF * tokens * model.hidden
    logits = tokens * width
    forward = (HALF + SINGLE, SINGLE, 2 * SINGLE, 2 * SINGLE, SINGLE, 2 * SINGLE)
    loss = Operator(
        "cross-entropy",
        forward=tuple(Work(bytes=each * logits) for each in forward),
        input_gradient=(Work(bytes=2 * SINGLE * logits), Work(bytes=(HALF + SINGLE) * logits)),
        saved_bytes=SINGLE * logits,
        sent_forward=3 * _together("all_reduce", SINGLE * tokens, tensor),
    )
    return [
        elementwise("norm", 4 * local * model.hidden, 6 * local * model.hidden, saved=held),
        _columns(matrix("logits", tokens, model.hidden, width, saved=held), spread, tensor, sequence),
        loss,
    ]


def _columns(linear: Operator, spread: float, tensor: int, sequence: bool) -> Operator:
    """A linear layer that is split by its outputs.

    Without sequence parallelism the input's gradient is all-reduced behind the weights' gradient. With it, the input is
    gathered forward and, behind the input's gradient, once more backward; the input's gradient is reduce-scattered
    behind the weights' gradient (Korthikanti et al., section 4.2.2).
    """
    if tensor == 1:
        return linear
    if not sequence:
        return replace(linear, behind_weight=Collective("all_reduce", spread))
    gathered = Collective("all_gather", spread)
    return replace(
        linear,
        sent_forward=(gathered,),
        behind_input=gathered,
        behind_weight=Collective("reduce_scatter", spread),
    )


def _rows(linear: Operator, spread: float, tensor: int, sequence: bool) -> Operator:
    """A linear layer that is split by its inputs: its outputs are summed over the tensor group."""
    if tensor == 1:
        return linear
    if not sequence:
        return replace(linear, sent_forward=(Collective("all_reduce", spread),))
    return replace(
        linear,
        sent_forward=(Collective("reduce_scatter", spread),),
        sent_backward=(Collective("all_gather", spread),),
    )


def _together(kind: Kind, size: float, tensor: int) -> tuple[Collective, ...]:
    return (Collective(kind, size),) if tensor > 1 else ()


def gpt(name: str, layers: int, hidden: int, heads: int) -> Transformer:
    """A GPT of Korthikanti et al., Table 3: 2,048 tokens, vocabulary 51,200."""
    return Transformer(name, layers, hidden, heads)


GPT_22B = gpt("22B", 48, 6144, 64)
GPT_175B = gpt("175B", 96, 12288, 96)
GPT_530B = gpt("530B", 105, 20480, 128)
GPT_1T = gpt("1T", 128, 25600, 160)
BLOOM = Transformer("BLOOM", 70, 14336, 112, vocabulary=250_880)
"""BigScience, "BLOOM", 2022 (arXiv:2211.05100), Table 3."""
GPT_3 = Transformer("GPT-3", 96, 12288, 96)
"""T. Brown et al., 2020 (arXiv:2005.14165), Table 2.1. The vocabulary is padded."""
LLAMA_2_70B = Transformer(
    "LLaMA2-70B", 80, 8192, 64, sequence=4096, vocabulary=32_000, feedforward=28_672, key_heads=8, gated=True
)
"""H. Touvron et al., 2023 (arXiv:2307.09288), and the configuration of the released weights."""
LLAMA_3_8B = Transformer(
    "Llama 3 8B", 32, 4096, 32, sequence=8192, vocabulary=128_256, feedforward=14_336, key_heads=8, gated=True
)
LLAMA_3_70B = Transformer(
    "Llama 3 70B", 80, 8192, 64, sequence=8192, vocabulary=128_256, feedforward=28_672, key_heads=8, gated=True
)
LLAMA_3_405B = Transformer(
    "Llama 3 405B", 126, 16384, 128, sequence=8192, vocabulary=128_256, feedforward=53_248, key_heads=8, gated=True
)
"""Meta, "The Llama 3 Herd of Models", 2024 (arXiv:2407.21783), Table 3, and the configurations of the released weights.
Their output layers have weights of their own, of the largest model another 2.1 billion."""

ModelName = Literal["gpt-22b", "gpt-175b", "gpt-530b", "gpt-1t", "bloom", "llama2-70b", "llama3-405b"]
MODELS: dict[ModelName, Transformer] = {
    "gpt-22b": GPT_22B,
    "gpt-175b": GPT_175B,
    "gpt-530b": GPT_530B,
    "gpt-1t": GPT_1T,
    "bloom": BLOOM,
    "llama2-70b": LLAMA_2_70B,
    "llama3-405b": LLAMA_3_405B,
}
"""Shapes by their names in specs and plans."""
