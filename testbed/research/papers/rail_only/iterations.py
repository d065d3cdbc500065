# SPDX-License-Identifier: Apache-2.0
"""Iteration times with the best strategy (section V-A to V-D, Figures 7 to 10).

The paper enumerates strategies with its own model, "similar to the approach in Calculon". Here `testbed.training`
does. The paper does not print its efficiencies, its space of strategies or which clusters its percentages average.
Taken here: H100 with the rates of a DGX GH200, 65 % of an HB domain's rate and 90 % of a NIC's, and Calculon's space:
tensor groups up to 32, all schedules with chunks of equal size, recomputation and sequence parallelism, and copies
that split the optimizer's state (ZeRO's stage 1), but neither gradients nor parameters.
"""

from dataclasses import dataclass, replace
from functools import cache

from testbed.training.closed_form import Estimate, estimate
from testbed.training.clusters import DGX_A100, DGX_H100, Cluster
from testbed.training.korthikanti import MEASURED
from testbed.training.search import Candidates, Space, candidates
from testbed.training.strategies import Strategy
from testbed.training.transformer import GPT_1T, Transformer, gpt

GPT_146B = gpt("146B", 80, 12288, 96)
"""Narayanan et al., SC 2021, Table 1."""
CLUSTERS = (16_384, 32_768, 65_536)
DOMAINS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCHES = {GPT_1T: 4096, GPT_146B: 1024}
"""Sequences of an iteration in Figure 8."""
_SPACE = Space(widest_tensor=32, uneven_chunks=False, zeros=(0, 1))


@cache
def iteration_s(
    model: Transformer, gpus: int, batch: int, domain: int, *, hb_bps: float = 3600e9, nic_bps: float = 400e9
) -> float:
    """Seconds of an iteration with the best strategy that fits into 80 GiB, on a rail-only cluster.

    `domain` GPUs are in each HB domain; `domain` equal to `gpus` is the paper's ideal.
    """
    cluster = replace(
        DGX_H100,
        domain=replace(DGX_H100.domain, rate_bps=hb_bps),
        fabric=replace(DGX_H100.fabric, rate_bps=nic_bps),
        domain_gpus=domain,
        forwarding=True,
    )
    return _best(model, gpus, batch, cluster).iteration_s


def gradients_s(model: Transformer, gpus: int, domain: int) -> float:
    """Figure 8: seconds of an iteration in which GPUs wait for gradients and parameters of other copies."""
    return _best(model, gpus, BATCHES[model], replace(DGX_H100, domain_gpus=domain, forwarding=True)).data_s


@cache
def _best(model: Transformer, gpus: int, batch: int, cluster: Cluster) -> Estimate:
    found = _candidates(model, gpus, batch).best(cluster)
    assert found is not None, f"no strategy of {model.name} fits on {gpus} GPUs"
    return found.estimate


@cache
def _candidates(model: Transformer, gpus: int, batch: int) -> Candidates:
    return candidates(model, gpus, batch, _SPACE)


@cache
def domain_sweep(model: Transformer, gpus: int) -> dict[int, float]:
    """Figure 8: iteration times in seconds by the size of an HB domain; the last one is the ideal."""
    return {size: iteration_s(model, gpus, BATCHES[model], size) for size in (*DOMAINS, gpus)}


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Figure 7: hardware FLOPs utilisation, as fractions of the peak."""

    name: str
    gpus: int
    measured: float
    ours: float

    @property
    def error(self) -> float:
        """The deviation from the measurement, without sign."""
        return abs(self.ours / self.measured - 1)


def utilisations() -> list[Utilisation]:
    """Figure 7, with selective recomputation and sequence parallelism.

    Measurements are those of Korthikanti et al. (2022): Table 5, and for 2240 GPUs the model FLOPs utilisation of their
    abstract, 54.2 %, here with the recomputed operations of Equation 8. Their 8 copies exchange gradients after the
    backward pass (section 6.3).
    """
    found = []
    for measurement in MEASURED:
        if measurement.strategy.recomputation == "selective":
            found.append(_utilisation(measurement.model, measurement.strategy, measurement.measured_s))
            if measurement.strategy.gpus == 280:
                copied = replace(measurement.strategy, data=8, overlap_gradients=False)
                measured_s = measurement.model.flops(copied.batch) / (0.542 * copied.gpus * DGX_A100.gpu.matrix_flops)
                found.append(_utilisation(measurement.model, copied, measured_s))
    return found


def _utilisation(model: Transformer, strategy: Strategy, measured_s: float) -> Utilisation:
    peak_s = _hardware_flops(model, strategy.batch) / (strategy.gpus * DGX_A100.gpu.matrix_flops)
    ours_s = estimate(model, strategy, DGX_A100).iteration_s
    return Utilisation(model.name, strategy.gpus, peak_s / measured_s, peak_s / ours_s)


def _hardware_flops(model: Transformer, sequences: int) -> float:
    """Korthikanti et al., Equation 8: 72 b s L h^2 (1 + s / (3 h) + V / (12 h L)), attention's core counted twice."""
    core = 12 * sequences * model.sequence**2 * model.hidden * model.layers
    return model.flops(sequences) + core


HB_BPS = (2400e9, 4800e9, 7200e9, 9600e9)
NIC_BPS = (100e9, 200e9, 400e9)


def hb_gain(domain: int) -> float:
    """Figure 9: the time saved by HB domains of 9.6 instead of 2.4 Tbit/s, as a fraction, averaged over NIC rates."""
    return _mean([1 - _of_1t(domain, HB_BPS[-1], nic) / _of_1t(domain, HB_BPS[0], nic) for nic in NIC_BPS])


def nic_gain(domain: int) -> float:
    """Figure 9: the time saved by NICs of 400 instead of 100 Gbit/s, as a fraction, averaged over HB rates."""
    return _mean([1 - _of_1t(domain, hb, NIC_BPS[-1]) / _of_1t(domain, hb, NIC_BPS[0]) for hb in HB_BPS])


def _of_1t(domain: int, hb_bps: float, nic_bps: float) -> float:
    return iteration_s(GPT_1T, 32_768, 4096, domain, hb_bps=hb_bps, nic_bps=nic_bps)


def relative_performance(domain: int, batch: int) -> float:
    """Figure 10b: the ideal's iteration time divided by that of a cluster of 32,768 GPUs."""
    return iteration_s(GPT_1T, 32_768, batch, 32_768) / iteration_s(GPT_1T, 32_768, batch, domain)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
