# SPDX-License-Identifier: Apache-2.0
"""Sizes that the paper prints: inputs of ours, and those that follow from strategies (sections II, III, V)."""

from collections.abc import Iterator

from testbed.research.papers.claim import Claim
from testbed.research.papers.rail_only import cost, iterations, times, traffic
from testbed.training.clusters import DGX_A100
from testbed.training.transformer import GPT_1T, gpt

GPUS_PER_DOMAIN = 256
A100 = times.Grid(x=8, y=8, hb_bps=2400e9, nic_bps=200e9)
H100 = times.Grid(x=8, y=8, hb_bps=3600e9, nic_bps=400e9)
GH200 = times.Grid(x=32, y=2, hb_bps=3600e9, nic_bps=400e9)


def of_platforms() -> Iterator[Claim]:
    """Section II: rates and sizes of HB domains, and the rate of NICs."""
    series = "bit/s into an HB domain: DGX H100, GH200, NVL72"
    nvl72 = "NVL72 is a rate of Fig. 9, and K = 72 of no number."
    yield _given("II", "DGX H100: bit/s into an HB domain", "T", H100.hb_bps / 1e12, 3.6, 1, series=series)
    yield _given("II", "GH200: bit/s into an HB domain", "T", GH200.hb_bps / 1e12, 3.6, 1, series=series)
    yield _given("II", "NVL72: bit/s into an HB domain", "T", iterations.HB_BPS[2] / 1e12, 7.2, 1, nvl72, series)
    series = "GPUs of an HB domain: DGX H100, GH200"
    yield _given("II", "DGX H100: GPUs of an HB domain", "", H100.x, 8, series=series)
    yield _given("II", "GH200: GPUs of an HB domain", "", GPUS_PER_DOMAIN, 256, series=series)
    yield _given("III-B", "GH200: bit/s of a NIC", "G", GH200.nic_bps / 1e9, 400)


def of_megatron() -> Iterator[Claim]:
    """Section III-A and Figure 3: models of MegatronLM and what a pipeline stage has."""
    series = "GPT-146B, 310B, 530B: parameters"
    for training, printed in zip(traffic.MEGATRON, (145.6, 310.1, 539.6, 1000), strict=True):
        model = training.model
        shape = gpt(model.name, model.layers, model.hidden, model.hidden // 128)  # the number of heads does not matter
        what = f"{model.name}: parameters"
        if printed == 1000:
            note = "Our copy of the paper lacks the 1."
            yield Claim("III-A", what, "T", shape.parameters / 1e12, 1, note=note)
        else:
            note = "Table 1 of MegatronLM has 529.6: 539.6 is a misprint." if printed == 539.6 else ""
            yield Claim("III-A", what, "G", shape.parameters / 1e9, printed, 1, note=note, series=series)
    most = max(training.gpus for training in traffic.MEGATRON)
    yield _given("III-A", "most GPUs", "", most, 3072)
    yield Claim("III-A", "most DGX A100 servers", "", most / DGX_A100.domain_gpus, 384)
    largest = traffic.MEGATRON[-1]
    stage, series = largest.gpus // largest.model.pipeline, "GPT-1T: GPUs of one, four pipeline stages"
    yield Claim("Fig. 3", "GPT-1T: GPUs of a pipeline stage", "", stage, 48, series=series)
    yield Claim("Fig. 3", "GPT-1T: GPUs of four pipeline stages", "", 4 * stage, 192, series=series)
    series = "GPUs of an HB domain, and from a GPU to the next on its rail"
    yield _given("Fig. 3", "GPUs of an HB domain", "", DGX_A100.domain_gpus, 8, series=series)
    yield _given("Fig. 3", "from a GPU to the next on its rail", "", largest.model.tensor, 8, series=series)


def of_gh200() -> Iterator[Claim]:
    """Figure 4: GPT-1T on 16 GH200."""
    training = traffic.GH200
    model, series = training.model, "GPT-1T on GH200: copies, in a domain, domains of a copy's ring"
    assumed = "Tensor and pipeline parallelism of 8 follow from the GPUs, the copies and two stages."
    yield _given("Fig. 4", "GPT-1T on GH200: batch", "", training.batch, 4096)
    yield _given("Fig. 4", "GPT-1T on GH200: copies", "", training.data, 64, note=assumed, series=series)
    yield _given("Fig. 4", "GPT-1T on GH200: copies in a domain", "", training.data_hb, 32, series=series)
    domains = training.data / training.data_hb
    yield Claim("Fig. 4", "GPT-1T on GH200: domains of a copy's ring", "", domains, 2, series=series)
    two = 2 * training.gpus / model.pipeline
    yield _given("Fig. 4", "GPT-1T on GH200: GPUs of two pipeline stages", "", two, 1024, note=assumed)
    yield _given("Fig. 4", "GPT-1T on GH200: GPUs", "", training.gpus, 4096, note=assumed)
    yield Claim("Fig. 4", "GPT-1T on GH200: GH200s", "", training.gpus / GPUS_PER_DOMAIN, 16)
    distance = model.tensor * training.data_hb
    yield Claim("Fig. 4", "GPT-1T on GH200: from a GPU to the next on its rail", "", distance, 256)


def of_experts() -> Iterator[Claim]:
    """Figure 5: the model and its cluster."""
    yield _given("Fig. 5", "MoE-1.3B: experts", "", traffic.MOE.experts, 128)
    yield Claim("Fig. 5", "MoE-1.3B: DGX A100 servers", "", traffic.MOE_GPUS / DGX_A100.domain_gpus, 16)


def of_searches() -> Iterator[Claim]:
    """Sections V-B and V-C: clusters, batches and rates."""
    for place, gpus in enumerate((16384, 32768, 65536)):
        yield _given(
            "V-B", f"GPUs of cluster {place + 1}", "", iterations.CLUSTERS[place], gpus, series="GPUs of clusters"
        )
    for model, batch in iterations.BATCHES.items():
        printed = 4096 if model is GPT_1T else 1024
        yield _given("V-B", f"GPT-{model.name}: batch", "", batch, printed, series="GPT-146B, 1T: batch")
    for place, tbps in enumerate((2.4, 4.8, 7.2, 9.6)):
        ours, what = iterations.HB_BPS[place] / 1e12, f"bit/s into an HB domain, rate {place + 1}"
        yield _given("V-C", what, "T", ours, tbps, 1, series="bit/s into an HB domain")
    for place, gbps in enumerate((100, 400)):
        ours = iterations.NIC_BPS[-place] / 1e9
        yield _given("V-C", f"{('least', 'greatest')[place]} bit/s of a NIC", "G", ours, gbps, series="bit/s of a NIC")


def of_prices() -> Iterator[Claim]:
    """Section V-E, footnote 1."""
    yield _given("V-E", "price of a switch port of 400 Gbit/s", "$", cost.SWITCH_USD_PER_PORT, 694)
    yield _given("V-E", "price of a transceiver", "$", cost.TRANSCEIVER_USD, 199)
    yield _given("V-E", "power of a switch port", "W", cost.SWITCH_W_PER_PORT, 18)
    yield _given("V-E", "power of a transceiver", "W", cost.TRANSCEIVER_W, 9)


def _given(
    where: str, what: str, unit: str, ours: float, printed: float, decimals: int = 0, note: str = "", series: str = ""
) -> Claim:
    return Claim(where, what, unit, ours, printed, decimals, note=note, series=series, given=True)
