# SPDX-License-Identifier: Apache-2.0
"""TopoOpt's models, and iterations that are placed layer by layer."""

import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.topoopt.demand import dlrm as dlrm_demand
from testbed.traces.flexnet import read
from testbed.training import ideal
from testbed.training.hardware import A100
from testbed.training.networks import Layer, LayeredModel, bert, candle, dlrm, ncf, networks, resnet50, vgg16, vgg19
from testbed.training.per_operator import iteration, roofline
from testbed.training.strategies import Placement

RATE_BPS = 8e9
SECOND = LayeredModel("seconds", 1, tuple(Layer(str(n), 1.0, 0.25e9, 1.0, (n - 1,) if n else ()) for n in range(4)))
"""Four layers that compute a second for each sample, with a gigabyte of gradients each."""


def test_models_have_their_published_sizes() -> None:
    assert vgg16().parameters == 138_357_544
    assert vgg19().parameters == 143_667_240
    assert vgg16().flops == pytest.approx(2 * 15.47e9, rel=1e-3)
    assert resnet50().parameters == pytest.approx(25.5e6, rel=0.002)  # 25,557,032 with norms
    assert resnet50().flops == pytest.approx(2 * 3.86e9, rel=0.001)  # He et al., Table 1: 3.8e9 products
    assert bert().parameters == pytest.approx(12 * 12 * 1024**2, rel=0.001)
    assert candle().parameters == pytest.approx(24 * 16384**2, rel=0.001)
    assert sum(layer.parameters for layer in dlrm().layers if layer.table) == 64 * 128 * 1e7
    assert sum(layer.parameters for layer in ncf().layers if layer.table) == 64 * 1e6 * (64 + 128)
    assert len({network.name for network in networks()}) == 6


def test_vgg_has_the_gradients_of_the_released_graph() -> None:
    """FlexNet's images have 11 x 11 points before the linear layers. Its collectives split weights and biases."""
    file = Path(__file__).parents[1] / "traces" / "flexnet" / "vgg_16_100.fbuf.xz"
    sent = [task.bytes for task in read(lzma.decompress(file.read_bytes())).graph.tasks if task.kind == "all_reduce"]
    released = np.array(sent).reshape(-1, 2).sum(axis=1) / (2 * 15 / 16)
    assert released == pytest.approx([4 * layer.parameters for layer in vgg16(352).layers])


def test_tables_send_what_the_demand_of_topoopt_says() -> None:
    servers, tables, batch = 4, (0, 2, 2), 32
    network = dlrm(tables=3)
    everywhere = Placement(tuple(range(servers)))
    places = [Placement((owner,)) for owner in tables] + [everywhere] * (8 + 16)
    graph = iteration(network, places, servers, servers * batch, lambda layer, samples: 0.0)
    sent = np.zeros((servers, servers))
    for task in graph.tasks:
        if task.kind == "send":
            sent[task.devices] += task.bytes
    assert sent == pytest.approx(dlrm_demand(servers, tables, 0, batch, columns=128, item_bytes=4).mp)
    reduced = [task.bytes / (2 * 3 / 4) for task in graph.tasks if task.kind == "all_reduce"]
    assert sum(reduced) == pytest.approx(4 * sum(layer.parameters for layer in network.layers if not layer.table))


@given(st.integers(1, 40))
def test_gradients_hide_behind_the_backward_pass(tenths: int) -> None:
    """Two copies: 4 s forward, 8 s backward, and an all-reduce of 1 GB for each layer behind the layers before it."""
    rate_bps = RATE_BPS * tenths / 10
    graph = iteration(SECOND, [Placement((0, 1))] * 4, 2, 2, lambda layer, samples: samples)
    each_s = 8e9 / rate_bps
    assert ideal.run(graph, rate_bps).seconds == pytest.approx(4 + max(8 + each_s, 2 + 4 * each_s))


def test_layers_on_different_servers_send_samples_and_no_gradients() -> None:
    graph = iteration(SECOND, [Placement((number % 2,)) for number in range(4)], 2, 2, lambda layer, samples: samples)
    assert {task.kind for task in graph.tasks} == {None, "send"}
    assert graph.sent_bytes().sum() == 2 * 3 * 2 * 4
    assert ideal.run(graph, RATE_BPS).seconds == pytest.approx(2 * 12 + 6 * 8e-9)


def test_a_layer_that_narrows_sends_only_what_others_hold() -> None:
    places = [Placement((0, 1, 2, 3)), Placement((1, 2)), Placement((1,)), Placement((1,))]
    graph = iteration(SECOND, places, 4, 8, lambda layer, samples: 0.0)
    forward = [task for task in graph.tasks if task.kind == "send"][:3]
    assert [(task.devices, task.bytes / 4) for task in forward] == [((0, 1), 2), ((3, 2), 2), ((2, 1), 4)]


def test_data_parallel_dlrm_of_tables_takes_longer_than_placed_tables() -> None:
    """Section 2.1: tables are too large to be copied."""
    network, servers = dlrm(tables=8), 8
    everywhere = Placement(tuple(range(servers)))
    copied = [everywhere] * len(network.layers)
    placed = [Placement((number,)) if layer.table else everywhere for number, layer in enumerate(network.layers)]
    profile = roofline(A100, 4)
    times = [
        ideal.run(iteration(network, places, servers, 4 * 128 * servers, profile), 100e9).seconds
        for places in (copied, placed)
    ]
    assert times[0] > 5 * times[1]


def test_a_placement_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="4 layers, and there are 3 placements"):
        iteration(SECOND, [Placement((0,))] * 3, 2, 2, lambda layer, samples: 0.0)
    with pytest.raises(ValueError, match="has 2 devices"):
        iteration(SECOND, [Placement((2,))] * 4, 2, 2, lambda layer, samples: 0.0)
    with pytest.raises(ValueError, match="each once"):
        Placement((0, 0))
