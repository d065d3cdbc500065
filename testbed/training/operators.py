# SPDX-License-Identifier: Apache-2.0
"""Operators: what one GPU computes forward and backward, the parameters it holds, and what it keeps in between."""

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.training.clusters import Group
from testbed.training.hardware import Accelerator, Collective, Product, Work

EIGHTH, HALF, SINGLE = 1, 2, 4
"""Bytes of a number in FP8, in half and in single precision."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator for one microbatch on one GPU, after all splitting."""

    name: str
    forward: tuple[Work, ...]
    input_gradient: tuple[Work, ...]
    weight_gradient: tuple[Work, ...] = ()
    parameters: float = 0.0
    """Parameters on this GPU."""
    saved_bytes: float = 0.0
    """Activations kept from the forward to the backward pass."""
    recomputed: bool = False
    """Whether selective recomputation computes it again: attention's core."""
    sent_forward: tuple[Collective, ...] = ()
    """Collectives of the tensor group in the forward pass. Nothing overlaps with them."""
    sent_backward: tuple[Collective, ...] = ()
    """Collectives of the backward pass with which nothing overlaps."""
    behind_input: Collective | None = None
    """A collective of the backward pass that overlaps with the input's gradient."""
    behind_weight: Collective | None = None
    """A collective of the backward pass that overlaps with the weights' gradient."""
    context_forward: tuple[Collective, ...] = ()
    """Collectives of the GPUs that share a sequence, forward. Nothing overlaps with them."""
    context_backward: tuple[Collective, ...] = ()
    """The same of the backward pass."""
    exchanged: tuple[Collective, ...] = ()
    """Collectives of the expert group, in each direction."""

    @property
    def flops(self) -> float:
        """Operations of the forward pass on the matrix units."""
        return sum(work.flops for work in self.forward)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one microbatch: computing, and exposed collectives of the tensor and of the expert group."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    """Without recomputation."""
    recompute_s: float = 0.0
    tensor_forward_s: float = 0.0
    """Exposed, with those of the GPUs that share a sequence."""
    tensor_backward_s: float = 0.0
    """The same, with what recomputation repeats."""
    expert_s: float = 0.0
    """Exposed, forward and backward."""

    def __add__(self, other: "Times") -> "Times":
        return Times(
            self.forward_s + other.forward_s,
            self.backward_s + other.backward_s,
            self.recompute_s + other.recompute_s,
            self.tensor_forward_s + other.tensor_forward_s,
            self.tensor_backward_s + other.tensor_backward_s,
            self.expert_s + other.expert_s,
        )

    def __mul__(self, count: float) -> "Times":
        return Times(
            count * self.forward_s,
            count * self.backward_s,
            count * self.recompute_s,
            count * self.tensor_forward_s,
            count * self.tensor_backward_s,
            count * self.expert_s,
        )

    @property
    def compute_s(self) -> float:
        """All computing."""
        return self.forward_s + self.backward_s + self.recompute_s

    @property
    def tensor_s(self) -> float:
        """All exposed collectives of the tensor group."""
        return self.tensor_forward_s + self.tensor_backward_s

    @property
    def whole_forward_s(self) -> float:
        """The forward pass with its collectives."""
        return self.forward_s + self.tensor_forward_s + self.expert_s / 2

    @property
    def whole_backward_s(self) -> float:
        """The backward pass with recomputation and collectives."""
        return self.backward_s + self.recompute_s + self.tensor_backward_s + self.expert_s / 2

    @property
    def microbatch_s(self) -> float:
        """Forward and backward pass with everything."""
        return self.compute_s + self.tensor_s + self.expert_s


def matrix(
    name: str,
    rows: float,
    inner: float,
    columns: float,
    *,
    copies: float = 1,
    weights: bool = True,
    saved: float = 0.0,
    fp8: bool = False,
) -> Operator:
    """`copies` products of (rows, inner) and (inner, columns) in half precision, one kernel.

    With `weights` the second factor holds parameters; the gradient is added to single-precision gradients in the same
    kernel, as Megatron-LM's gradient accumulation fusion does. Otherwise both factors are activations, and both
    gradients are the input's.

    With `fp8` the factors of all three products are in FP8, and results are not. The input is kept so. Kernels of their
    own make FP8 of the input, of the gradient, and backward of both along the other side, because each scale is that of
    128 numbers that are summed (DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.3).
    """
    width = EIGHTH if fp8 else HALF
    given, found, factor = copies * rows * inner, copies * rows * columns, copies * inner * columns
    of_input = Work(Product(rows, columns, inner, copies, fp8), width * (found + factor), HALF * given)
    accumulated = 2 * SINGLE if weights else HALF
    of_factor = Work(
        Product(inner, rows, columns, copies, fp8, gradient=weights), width * (given + found), accumulated * factor
    )
    made = (Work(bytes=(HALF + EIGHTH) * given),) if fp8 else ()
    again = (Work(bytes=2 * EIGHTH * given),) if fp8 else ()
    gradient = (Work(bytes=(HALF + EIGHTH) * found),) if fp8 else ()
    return Operator(
        name,
        forward=(*made, Work(Product(rows, inner, columns, copies, fp8), width * (given + factor), HALF * found)),
        input_gradient=(*gradient, of_input) if weights else (of_input, of_factor),
        weight_gradient=(*again, *gradient, of_factor) if weights else (),
        parameters=factor if weights else 0.0,
        saved_bytes=saved,
    )


def flash_attention(name: str, queries: float, keys: float, head: float, *, copies: float, saved: float) -> Operator:
    """Causal attention of `copies` heads in one kernel that keeps no scores but the logarithm of their sum for each
    query. `head` is the width of a head, and `saved` the bytes of queries, keys and values.

    It leaves out the half that is masked: forward two products, and backward five (T. Dao, "FlashAttention-2", 2023,
    sections 3.1 and 4.1). Backward computes the scores again.
    """
    forward = Product(queries, head, keys, copies)  # half of two products
    return Operator(
        name,
        forward=(Work(forward, fused="forward"),),
        input_gradient=(Work(forward._replace(copies=2.5 * copies), fused="backward"),),
        saved_bytes=saved + SINGLE * copies * queries,
    )


def elementwise(name: str, read_and_written: float, backward: float, saved: float = 0.0) -> Operator:
    """An operator that memory limits: bytes read and written forward and backward."""
    return Operator(name, (Work(bytes=read_and_written),), (Work(bytes=backward),), saved_bytes=saved)


def times_of(
    operators: Iterable[Operator],
    gpu: Accelerator,
    *,
    tensor: Group,
    expert: Group,
    context: Group | None = None,
    recomputation: str = "none",
    overlap: bool = False,
    overlap_inputs: bool = True,
) -> Times:
    """The time of these operators, one after the other, for a microbatch. `context` shares each sequence.

    With `overlap`, a product hides what the tensor group sends before or behind it, but for what takes longer and what
    the product loses (`Accelerator.exposed_s`). Without `overlap_inputs` it does not hide `Operator.behind_input` and
    `behind_weight` either.
    """
    total = Times()
    for operator in operators:
        forward = _seconds(operator.forward, gpu)
        input_gradient, weight_gradient = (
            _seconds(operator.input_gradient, gpu),
            _seconds(operator.weight_gradient, gpu),
        )
        sent_forward = sum(tensor.seconds(sent) for sent in operator.sent_forward)
        sent_backward = sum(tensor.seconds(sent) for sent in operator.sent_backward)
        if overlap and operator.flops:
            sent_forward = gpu.exposed_s(sent_forward, forward)
            sent_backward = gpu.exposed_s(sent_backward, input_gradient)
        for sent, time in ((operator.behind_input, input_gradient), (operator.behind_weight, weight_gradient)):
            if sent:
                alone = tensor.seconds(sent)
                sent_backward += gpu.exposed_s(alone, time) if overlap_inputs else alone
        shared_forward, shared_backward = (
            sum(context.seconds(sent) for sent in collectives) if context is not None else 0.0
            for collectives in (operator.context_forward, operator.context_backward)
        )
        again = recomputation == "full" or (recomputation == "selective" and operator.recomputed)
        exchanges = 3 if recomputation == "full" else 2
        exchanged = sum(expert.seconds(sent) for sent in operator.exchanged)
        total += Times(
            forward,
            input_gradient + weight_gradient,
            forward if again else 0.0,
            sent_forward + shared_forward,
            sent_backward + (sent_forward if again else 0.0) + shared_backward,
            exchanges * exchanged,
        )
    return total


def _seconds(works: Iterable[Work], gpu: Accelerator) -> float:
    return sum(gpu.seconds(work) for work in works)
