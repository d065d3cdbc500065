# SPDX-License-Identifier: Apache-2.0
"""The closed form against measured iterations: V. Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2022 (arXiv:2205.05198), Tables 3 and 5, on DGX A100."""

from dataclasses import dataclass
from statistics import fmean

from testbed.training.closed_form import Estimate, estimate
from testbed.training.clusters import DGX_A100
from testbed.training.strategies import Recomputation, Strategy
from testbed.training.transformer import GPT_1T, GPT_22B, GPT_175B, GPT_530B, Transformer


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured configuration."""

    model: Transformer
    strategy: Strategy
    measured_s: float

    @property
    def estimate(self) -> Estimate:
        """What the closed form says."""
        return estimate(self.model, self.strategy, DGX_A100)

    @property
    def deviation(self) -> float:
        """The estimate relative to the measurement, minus 1."""
        return self.estimate.iteration_s / self.measured_s - 1


def _strategy(stages: int, batch: int, size: int, chunks: int, recomputation: Recomputation) -> Strategy:
    """Table 3: tensor parallelism of 8. "Full" is without, "selective" with sequence parallelism."""
    return Strategy(
        tensor=8,
        pipeline=stages,
        microbatches=batch // size,
        microbatch=size,
        interleave=chunks,
        recomputation=recomputation,
        sequence=recomputation == "selective",
    )


_RECOMPUTATIONS: tuple[Recomputation, ...] = ("full", "selective")

_TABLE_5 = (  # model, stages, batch, microbatch, chunks, seconds with full and with selective recomputation
    (GPT_22B, 1, 4, 4, 1, 1.42, 1.10),
    (GPT_175B, 8, 64, 1, 3, 18.13, 13.75),
    (GPT_530B, 35, 280, 1, 3, 49.05, 37.83),
    (GPT_1T, 64, 512, 1, 1, 94.42, 71.49),
)

MEASURED = tuple(
    Measured(model, _strategy(stages, batch, size, chunks, recomputation), seconds)
    for model, stages, batch, size, chunks, *times in _TABLE_5
    for recomputation, seconds in zip(_RECOMPUTATIONS, times, strict=True)
)
"""All eight."""


def table() -> str:
    """The comparison as a Markdown table: a row for each model, with measured and estimated seconds."""
    rows = [f"| model | GPUs | {' | '.join(_RECOMPUTATIONS)} |", "|---|---|---|---|"]
    for pair in zip(MEASURED[::2], MEASURED[1::2], strict=True):
        cells = (
            f"{measured.measured_s:.2f}, {measured.estimate.iteration_s:.2f}: {100 * measured.deviation:+.1f} %"
            for measured in pair
        )
        rows.append(f"| {pair[0].model.name} | {pair[0].strategy.gpus} | {' | '.join(cells)} |")
    return "\n".join(rows)


def mean_deviation() -> float:
    """The mean of the absolute deviations."""
    return fmean(abs(measured.deviation) for measured in MEASURED)
