# SPDX-License-Identifier: Apache-2.0
"""TopoOpt's six models as layers: W. Wang et al., "TopoOpt", NSDI 2023, List 1 (appendix D), values of section 5.3.

A layer has its operations, parameters and outputs for one sample. Operations leave out biases, norms and poolings.
Lengths that List 1 lacks are parameters with a default.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator of a network, with what it computes and keeps for one sample."""

    name: str
    flops: float
    """Operations of the forward pass for one sample."""
    parameters: float
    outputs: float
    """How many numbers the layer hands on for one sample."""
    after: tuple[int, ...] = ()
    """The numbers of the layers whose outputs this one takes."""
    table: bool = False
    """Whether it is an embedding table, of which a sample reads and changes one row only."""


@dataclass(frozen=True, slots=True)
class LayeredModel:
    """A network as a list of layers, each after those whose outputs it takes."""

    name: str
    batch: int
    """The samples that each GPU computes in an iteration."""
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> float:
        """The number of parameters of all layers together."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> float:
        """Operations of the forward pass of all layers for one sample."""
        return sum(layer.flops for layer in self.layers)


@dataclass(slots=True)
class _Builder:
    layers: list[Layer] = field(default_factory=list)

    def add(self, name: str, flops: float, parameters: float, outputs: float, *after: int, table: bool = False) -> int:
        self.layers.append(Layer(name, flops, parameters, outputs, after, table))
        return len(self.layers) - 1

    def dense(self, inputs: float, outputs: float, *after: int, rows: int = 1, name: str = "dense") -> int:
        """A linear layer with a bias, on `rows` vectors of each sample."""
        flops = 2 * rows * inputs * outputs
        return self.add(f"{name} {outputs:g}", flops, (inputs + 1) * outputs, rows * outputs, *after)

    def chain(self, inputs: float, widths: list[int], *after: int) -> int:
        """Linear layers one after the other; returns the last."""
        last = after
        for width in widths:
            last = (self.dense(inputs, width, *last),)
            inputs = width
        return last[0]

    def convolution(self, size: int, kernel: int, inputs: int, outputs: int, *after: int, bias: bool = True) -> int:
        """A convolution whose output has `size` x `size` points."""
        weights = kernel**2 * inputs * outputs
        flops = 2 * size**2 * weights
        return self.add(f"convolution {outputs}", flops, weights + bias * outputs, size**2 * outputs, *after)

    def table(self, rows: float, width: int) -> int:
        """An embedding table."""
        return self.add(f"table {rows:g} x {width}", 0.0, rows * width, width, table=True)

    def network(self, name: str, batch: int) -> LayeredModel:
        return LayeredModel(name, batch, tuple(self.layers))


def vgg16(image: int = 224) -> LayeredModel:
    """VGG16 (K. Simonyan and A. Zisserman, 2015, configuration D) for images of `image` x `image`."""
    return _vgg("VGG16", image, (2, 2, 3, 3, 3))


def vgg19(image: int = 224) -> LayeredModel:
    """VGG19 (configuration E), with section 6's batch."""
    return replace(_vgg("VGG19", image, (2, 2, 4, 4, 4)), batch=32)


def _vgg(name: str, image: int, counts: tuple[int, ...]) -> LayeredModel:
    net, last, channels = _Builder(), tuple[int, ...](), 3
    for group, (width, count) in enumerate(zip((64, 128, 256, 512, 512), counts, strict=True)):
        for _ in range(count):
            last = (net.convolution(image >> group, 3, channels, width, *last),)
            channels = width
    net.chain((image >> 5) ** 2 * channels, [4096, 4096, 1000], *last)
    return net.network(name, 64)


def resnet50(image: int = 224) -> LayeredModel:
    """ResNet50 (K. He et al., 2016, Table 1), with projections where the shape changes."""
    net = _Builder()
    last, channels, size = net.convolution(image // 2, 7, 3, 64, bias=False), 64, image // 4
    for group, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            before, points = last, size >> group
            last = net.convolution(points, 1, channels, width, before, bias=False)
            last = net.convolution(points, 3, width, width, last, bias=False)
            last = net.convolution(points, 1, width, 4 * width, last, bias=False)
            other = net.convolution(points, 1, channels, 4 * width, before, bias=False) if block == 0 else before
            last = net.add("sum", 0.0, 0.0, points**2 * 4 * width, last, other)
            channels = 4 * width
    net.dense(channels, 1000, last)
    return net.network("ResNet50", 128)


def bert(blocks: int = 12, hidden: int = 1024, tokens: int = 64) -> LayeredModel:
    """Encoder blocks with an MLP of 4 `hidden`; attention's scores and context count as one layer."""
    net, last = _Builder(), tuple[int, ...]()
    for _ in range(blocks):
        projected = net.dense(hidden, 3 * hidden, *last, rows=tokens, name="query, key, value")
        core = net.add("attention", 4 * tokens**2 * hidden, 0.0, tokens * hidden, projected)
        mixed = net.dense(hidden, hidden, core, rows=tokens, name="projection")
        inner = net.dense(hidden, 4 * hidden, mixed, rows=tokens)
        last = (net.dense(4 * hidden, hidden, inner, rows=tokens),)
    return net.network("BERT", 16)


def dlrm(
    tables: int = 64,
    rows: float = 1e7,
    width: int = 128,
    dense: int = 2048,
    features: int = 4096,
    dense_layers: int = 8,
) -> LayeredModel:
    """Dense layers beside embedding tables, then twice as many feature layers over all. There are `dense` inputs."""
    net = _Builder()
    found = [net.table(rows, width) for _ in range(tables)]
    bottom = net.chain(dense, [dense] * dense_layers)
    net.chain(dense + tables * width, [features] * (2 * dense_layers), bottom, *found)
    return net.network("DLRM", 128)


def candle(width: int = 16384, dense_layers: int = 8) -> LayeredModel:
    """Feature layers, then half as many dense layers, all of `width`, as many as inputs."""
    net = _Builder()
    net.chain(width, [width] * (3 * dense_layers))
    return net.network("CANDLE", 256)


def ncf(users: float = 1e6, items: float = 1e6, tables: int = 32) -> LayeredModel:
    """User and item tables for factorisation (64 wide) and for the MLP (128 wide), 8 dense layers, one output."""
    net = _Builder()
    factors = [net.table(rows, 64) for rows in (users, items) for _ in range(tables)]
    embedded = [net.table(rows, 128) for rows in (users, items) for _ in range(tables)]
    deep = net.chain(2 * tables * 128, [4096] * 8, *embedded)
    net.dense(4096 + tables * 64, 1, deep, *factors)
    return net.network("NCF", 128)


def networks() -> Iterator[LayeredModel]:
    """The six networks of TopoOpt's evaluation."""
    yield from (vgg16(), resnet50(), bert(), dlrm(), candle(), ncf())
