# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3: latent attention, shared and routed experts on limited nodes, FP8, and pipelines in two directions.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (arXiv:2412.19437), sections 2 and 3; shapes are those of
`inference/configs/config_671B.json` in github.com/deepseek-ai/DeepSeek-V3. Linear layers multiply in FP8. The
embedding, the output, gates, norms and attention's core stay in BF16, as do combined tokens; dispatched tokens are in
FP8 (section 3.3). Norms, the second matrices of latent attention and SwiGLU are computed again backward (section
3.2.3). What is kept for that is stored in fewer bits (section 3.3.3).

All GPUs have a sequence of their own: there are no tensor groups. Routing is balanced. What is left out: memory, and
that weights are cast to FP8 once an iteration.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.training.closed_form import exchanges_of, optimizer_seconds
from testbed.training.clusters import DGX_H100, Cluster
from testbed.training.hardware import H800, Accelerator, Network, Product, Work
from testbed.training.operators import EIGHTH, HALF, Operator, Times, elementwise, matrix, times_of
from testbed.training.strategies import Strategy
from testbed.training.transformer import Transformer, output

_COMMUNICATION_MULTIPROCESSORS = 20
"""Section 3.2.2: multiprocessors that do nothing but send and receive tokens."""
_TWELVE_BITS = 1.5
"""Bytes of a number in E5M6, in which the projection's input is kept (section 3.3.3)."""


@dataclass(frozen=True, slots=True)
class LatentMixture:
    """The shape of the model. Every layer has latent attention, and all but the first `dense_layers` experts."""

    name: str
    layers: int
    dense_layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    feedforward: int
    """Hidden units of the MLP of a dense layer; `expert_units` are those of an expert."""
    expert_units: int
    experts: int
    shared: int
    """Experts that every token goes to, in addition to the `chosen` ones of `experts`."""
    chosen: int
    most_nodes: int
    """Nodes on which a token's chosen experts are at most."""
    query_rank: int
    key_rank: int
    head: int
    """Width of a head of queries and keys without the `rotary` part, and of values."""
    rotary: int
    predicted: int = 1
    """Layers that predict one token more each, with an output of their own (section 2.2)."""


DEEPSEEK_V3 = LatentMixture(
    "DeepSeek-V3",
    layers=61,
    dense_layers=3,
    hidden=7168,
    heads=128,
    sequence=4096,
    vocabulary=129_280,
    feedforward=18_432,
    expert_units=2048,
    experts=256,
    shared=1,
    chosen=8,
    most_nodes=4,
    query_rank=1536,
    key_rank=512,
    head=128,
    rotary=64,
)

H800_NODES = replace(DGX_H100, gpu=H800, domain=Network(8 * 200e9, 0.8, 10e-6))
"""Nodes of eight H800: NVLink of 400 Gbyte/s, 200 each way, of which 160 are reached (section 3.2.2), and a NIC of 400
Gbit/s for each GPU."""


def attention(model: LatentMixture) -> list[Operator]:
    """The operators of latent attention for a sequence (section 2.1.1), with its norm and residual."""
    tokens, hidden, heads = model.sequence, model.hidden, model.heads
    query, kept = heads * (model.head + model.rotary), HALF * tokens
    up = [
        _norm(tokens, model.query_rank),
        _linear("queries from latents", tokens, model.query_rank, query, saved=EIGHTH * tokens * model.query_rank),
        _norm(tokens, model.key_rank),
        _linear(
            "keys and values from latents",
            tokens,
            model.key_rank,
            2 * heads * model.head,
            saved=EIGHTH * tokens * model.key_rank,
        ),
        elementwise("rotary part", 2 * HALF * tokens * 2 * query, 2 * HALF * tokens * 2 * query),
    ]
    return [
        _again(_norm(tokens, hidden)),
        _linear("latent of queries", tokens, hidden, model.query_rank, saved=EIGHTH * tokens * hidden),
        _linear("latent of keys and values", tokens, hidden, model.key_rank + model.rotary),
        *(_again(operator) for operator in up),
        _core(model, kept),
        _kept("projection's input", tokens * heads * model.head, _TWELVE_BITS),
        _linear("projection", tokens, heads * model.head, hidden),
        _residual(tokens, hidden),
        _again(_norm(tokens, hidden)),
    ]


def _core(model: LatentMixture, kept: float) -> Operator:
    """Causal attention in one kernel. Of its two products forward, keys have a rotary part and values none; backward
    three of five have it."""
    with_rotary, without = model.head + model.rotary, model.head
    forward = Product(model.sequence, (with_rotary + without) / 2, model.sequence, model.heads)
    backward = forward._replace(inner=(3 * with_rotary + 2 * without) / 2)
    return Operator(
        "attention",
        forward=(Work(forward, fused="forward"),),
        input_gradient=(Work(backward, fused="backward"),),
        saved_bytes=kept * model.heads * model.head,
    )


def dense(model: LatentMixture) -> list[Operator]:
    """The MLP of a layer without experts."""
    return [*_mlp("dense", model.sequence, model.hidden, model.feedforward, 1), _residual(model.sequence, model.hidden)]


def mixture(model: LatentMixture, gpus: int) -> list[Operator]:
    """Gate, shared and routed experts of a GPU among `gpus` that share the experts, without what they send."""
    tokens, hidden = model.sequence, model.hidden
    held, routed = model.experts / gpus, tokens * model.chosen
    return [
        matrix("gate", tokens, hidden, model.experts, saved=HALF * tokens * hidden),
        *_mlp("shared", tokens, hidden, model.shared * model.expert_units, 1),
        *_mlp("routed", routed / held, hidden, model.expert_units, held),
        # A token is copied for each of its experts, and their results are summed.
        elementwise("copies of tokens", (1 + 1) * EIGHTH * routed * hidden, (1 + 1) * HALF * routed * hidden),
        elementwise("sum of experts", HALF * routed * hidden, EIGHTH * routed * hidden),
        _residual(tokens, hidden),
    ]


def _mlp(name: str, rows: float, hidden: int, units: int, copies: float) -> list[Operator]:
    values = copies * rows * units
    return [
        _linear(f"{name} first", rows, hidden, 2 * units, copies=copies, saved=EIGHTH * copies * rows * hidden),
        _kept(f"{name} gate's input", 2 * values, EIGHTH),
        _again(elementwise(f"{name} gate", 3 * HALF * values, 5 * HALF * values)),
        _linear(f"{name} second", rows, units, hidden, copies=copies),
    ]


def _linear(name: str, rows: float, inner: float, columns: float, *, copies: float = 1, saved: float = 0.0) -> Operator:
    """Products in FP8. Their units take both factors along the numbers that are summed ("only the NT format", README of
    github.com/deepseek-ai/DeepGEMM), so that weights are transposed for the gradient of the input."""
    found = matrix(name, rows, inner, columns, copies=copies, saved=saved, fp8=True)
    transposed = Work(bytes=2 * EIGHTH * found.parameters)
    return replace(found, input_gradient=(transposed, *found.input_gradient))


def _kept(name: str, numbers: float, width: float) -> Operator:
    """Stores numbers in `width` bytes each until the backward pass, and makes them BF16 again there."""
    moved = (HALF + width) * numbers
    return elementwise(name, moved, moved, saved=width * numbers)


def _norm(tokens: float, width: float) -> Operator:
    return elementwise("norm", 2 * HALF * tokens * width, 3 * HALF * tokens * width)


def _residual(tokens: float, width: float) -> Operator:
    return elementwise("residual", 3 * HALF * tokens * width, HALF * tokens * width)


def _again(operator: Operator) -> Operator:
    return replace(operator, recomputed=True)


@dataclass(frozen=True, slots=True)
class Pass:
    """A microbatch through some layers on one GPU, in seconds: computing, and tokens that are sent."""

    forward_s: float
    input_s: float
    """Backward without the weights' gradients, with what is computed again."""
    weights_s: float
    sent_s: float
    """Forward; backward sends as much."""

    def __add__(self, other: "Pass") -> "Pass":
        return Pass(
            self.forward_s + other.forward_s,
            self.input_s + other.input_s,
            self.weights_s + other.weights_s,
            self.sent_s + other.sent_s,
        )

    def __mul__(self, count: float) -> "Pass":
        return Pass(count * self.forward_s, count * self.input_s, count * self.weights_s, count * self.sent_s)

    @property
    def backward_s(self) -> float:
        """Computing of the backward pass."""
        return self.input_s + self.weights_s

    @property
    def both_s(self) -> float:
        """A forward and a backward pass that overlap: one computes while the other sends."""
        return max(self.forward_s + self.backward_s, 2 * self.sent_s)


class Kernels(NamedTuple):
    """The time of kernels, by what they do."""

    products: float
    attention: float
    memory: float
    """Kernels that memory limits."""


def computing(gpu: Accelerator) -> Accelerator:
    """What is left of a GPU for computing while some of its multiprocessors send and receive."""
    share = 1 - _COMMUNICATION_MULTIPROCESSORS / gpu.multiprocessors
    return replace(
        gpu,
        multiprocessors=gpu.multiprocessors - _COMMUNICATION_MULTIPROCESSORS,
        matrix_flops=share * gpu.matrix_flops,
        fp8_flops=None if gpu.fp8_flops is None else share * gpu.fp8_flops,
    )


def exchange_s(model: LatentMixture, cluster: Cluster, gpus: int) -> float:
    """Seconds in which a layer's tokens are dispatched in FP8 and combined in BF16 among `gpus`.

    A token crosses the fabric once to each of its nodes, and NVLink from there to each of its experts. Both overlap
    (section 3.2.2). Backward, combining a gradient is dispatching, and the other way round.
    """
    nodes = max(1, gpus // cluster.domain_gpus)
    elsewhere, other_gpus = (
        min(model.most_nodes, nodes) * (nodes - 1) / nodes,
        model.chosen * (1 - 1 / cluster.domain_gpus),
    )
    number = 8 * (EIGHTH + HALF) * model.sequence * model.hidden
    fabric, domain = cluster.fabric, cluster.domain
    between = elsewhere * number / (fabric.rate_bps * fabric.efficiency)
    within = other_gpus * number / (domain.rate_bps * domain.efficiency)
    return 2 * fabric.latency_s + max(between, within)


def passes(model: LatentMixture, cluster: Cluster, expert: int) -> tuple[Pass, Pass, Pass]:
    """One microbatch of a sequence through a dense layer, through one with experts, and through an output."""
    gpu, alone = computing(cluster.gpu), cluster.group(1)

    def timed(operators: list[Operator], sent_s: float) -> Pass:
        def times(parts: list[Operator]) -> Times:
            return times_of(parts, gpu, tensor=alone, expert=alone, recomputation="selective")

        whole = times(operators)
        inputs = times([replace(operator, weight_gradient=()) for operator in operators])
        return Pass(
            whole.forward_s,
            inputs.backward_s + whole.recompute_s,
            whole.backward_s - inputs.backward_s,
            sent_s,
        )

    block = attention(model)
    shape = Transformer(
        model.name, model.layers, model.hidden, model.heads, model.sequence, model.vocabulary, model.feedforward
    )
    return (
        timed([*block, *dense(model)], 0.0),
        timed([*block, *mixture(model, expert)], exchange_s(model, cluster, expert)),
        timed(output(shape, 1), 0.0),
    )


def kernels(model: LatentMixture, cluster: Cluster, expert: int) -> Kernels:
    """The kernels of a microbatch of a sequence through a layer with experts, forward and backward, in seconds.

    What is computed again backward counts too.
    """
    gpu = computing(cluster.gpu)
    products = attention_core = memory = 0.0
    for operator in [*attention(model), *mixture(model, expert)]:
        again = operator.forward if operator.recomputed else ()
        for work in (*operator.forward, *again, *operator.input_gradient, *operator.weight_gradient):
            seconds = gpu.seconds(work)
            if work.fused:
                attention_core += seconds
            elif work.product:
                products += seconds
            else:
                memory += seconds
    return Kernels(products, attention_core, memory)


def iteration_s(model: LatentMixture, strategy: Strategy, cluster: Cluster) -> float:
    """Seconds of an iteration with DualPipe (section 3.2.1), with microbatches of a sequence.

    Half of the microbatches go each way, so that a GPU has two stages, the k-th and the k-th last one, and the mean of
    both counts. The slowest GPU is that of the ends or an inner one: inner stages have as many layers, and the last one
    has what is left of them, the layers that predict more, and all outputs. The bubble is (p / 2 - 1) (F&B + B - 3 W).
    Gradients are exchanged once, and what a stage hands on is sent behind computing.

    Raises ValueError for other strategies: without pipelines of an even number of stages, with tensor groups.
    """
    stages = strategy.pipeline
    if stages % 2 or strategy.tensor > 1 or strategy.context > 1 or strategy.microbatch > 1 or strategy.zero != 1:
        raise ValueError(
            "DualPipe here has an even number of stages, microbatches of one sequence, ZeRO stage 1 and no tensor "
            f"groups, not {strategy}"
        )
    plain, mixed, out = passes(model, cluster, strategy.expert)
    inner = -(-model.layers // stages)
    rest = model.layers - inner * (stages - 1)
    if rest < 0:
        raise ValueError(f"{model.name}: {model.layers} layers do not fill {stages} stages of {inner}")
    few = min(model.dense_layers, inner)
    first = plain * few + mixed * (inner - few)
    last = mixed * (rest + model.predicted) + out * (1 + model.predicted)
    slowest = max(((first + last) * 0.5, mixed * inner), key=lambda stage: stage.both_s)
    bubble_s = (stages / 2 - 1) * (slowest.both_s + slowest.backward_s - 3 * slowest.weights_s)
    shared, owned = parameters(model, strategy.expert)
    exchanged = exchanges_of(strategy, 2 * inner * shared, 2 * inner * owned, cluster)
    optimizer = optimizer_seconds(strategy, 2 * inner * shared, 2 * inner * owned, cluster.gpu)
    return strategy.microbatches * slowest.both_s + bubble_s + exchanged.gradient_s + exchanged.gather_s + optimizer


def parameters(model: LatentMixture, expert: int) -> tuple[float, float]:
    """A GPU's parameters of a layer: those that all have, and those of its experts."""
    operators = [*attention(model), *mixture(model, expert)]
    owned = sum(operator.parameters for operator in operators if operator.name.startswith("routed"))
    return sum(operator.parameters for operator in operators) - owned, owned
