# SPDX-License-Identifier: Apache-2.0
"""Iteration times on the prototype of section 6: twelve servers of one GPU (Figures 19 to 21).

Models have the values of section 6 in List 1. GPUs compute in single precision.
"""

from dataclasses import replace
from functools import cache
from typing import Literal

from testbed.research.papers.topoopt.iterations import SINGLE_PRECISION, fitting
from testbed.research.topoopt.estimates import Estimator, Job
from testbed.research.topoopt.fabrics import direct, switch
from testbed.training.hardware import A100
from testbed.training.networks import LayeredModel, bert, candle, dlrm, resnet50, vgg16, vgg19
from testbed.training.per_operator import roofline

SERVERS = 12
BATCHES = (32, 64, 128, 256, 512)
"""Batches of DLRM in Figure 21."""


def recommender(batch: int) -> LayeredModel:
    """DLRM with this batch."""
    return replace(dlrm(tables=12, rows=1e5, width=32768, dense=1024, features=2048, dense_layers=4), batch=batch)


MODELS = {
    "BERT": replace(bert(blocks=6, tokens=1024), batch=2),
    "VGG": replace(vgg16(), batch=32),
    "CANDLE": replace(candle(width=4096, dense_layers=4), batch=10),
    "ResNet50": replace(resnet50(), batch=20),
    "DLRM": recommender(64),
    "VGG19": vgg19(),
}
"""The models of Figure 19, which does not print DLRM's batch, and VGG19 of Figure 20."""
Name = Literal["TopoOpt", "Switch 100 Gbit/s", "Switch 25 Gbit/s"]


@cache
def job(network: LayeredModel) -> Job:
    """An iteration on all servers."""
    profile = roofline(SINGLE_PRECISION, 1)
    return Job(network, SERVERS, SERVERS * network.batch, profile, 1, gpu_bytes=A100.memory_bytes)


@cache
def seconds(network: LayeredModel, fabric: Name) -> float:
    """The estimate for an iteration; on TopoOpt every server has four circuits of 25 Gbit/s."""
    of = job(network)
    if fabric == "TopoOpt":
        return min(Estimator(of, direct(of.demand(strategy), 4, 25e9))(strategy).seconds for strategy in fitting(of))
    switched = Estimator(of, switch(SERVERS, 100e9 if fabric == "Switch 100 Gbit/s" else 25e9))
    return min(switched(strategy).seconds for strategy in fitting(of))
