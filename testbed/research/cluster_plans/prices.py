# SPDX-License-Identifier: Apache-2.0
"""Prices, power and failures of a cluster's parts, from an editable file with a date and sources."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from netmodel import RateBps, format_rate, load_yaml
from testbed.conflict import Conflict
from testbed.spec.section import Section

DEFAULT = Path(__file__).with_name("prices.yaml")
"""The file that comes with paralet."""


class Network(Section):
    """Parts of one rate. US dollars and watts, each for one piece."""

    rate: RateBps
    switch_port_usd: float = Field(ge=0)
    transceiver_usd: float = Field(ge=0)
    nic_usd: float = Field(ge=0)
    switch_port_w: float = Field(ge=0)
    transceiver_w: float = Field(ge=0)
    nic_w: float = Field(ge=0)
    source: str


class GpuPrice(Section):
    """A GPU with its share of a server and of the HB domain, without NIC."""

    usd: float = Field(ge=0)
    watts: float = Field(ge=0)
    source: str


class Failures(Section):
    """How often a GPU's failure interrupts a job, and what that takes."""

    gpu_hours_between: float = Field(gt=0)
    restart_s: float = Field(ge=0)
    checkpoint_s: float = Field(ge=0)
    """Between checkpoints. A failure loses half of it on average."""

    @property
    def lost_s(self) -> float:
        """What a failure costs the job."""
        return self.restart_s + self.checkpoint_s / 2


class Prices(Section):
    """All prices. `network` has one entry for each rate."""

    dated: str
    network: list[Network] = Field(min_length=1)
    fibre_usd: float = Field(ge=0)
    patch_panel_port_usd: float = Field(default=100.0, ge=0)
    """TopoOpt, Table 2."""
    gpus: dict[str, GpuPrice]
    energy_usd_per_kwh: float = Field(ge=0)
    power_usage_effectiveness: float = Field(ge=1)
    years: float = Field(gt=0)
    failures: Failures

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        rates = [entry.rate for entry in self.network]
        for number, rate in enumerate(rates):
            if rate in rates[:number]:
                raise Conflict(f"{format_rate(rate)} has a price already", "network", number, "rate")
        return self

    def of_rate(self, rate_bps: int) -> Network:
        """The parts of that rate. Raises ValueError if there are none."""
        found = next((entry for entry in self.network if entry.rate == rate_bps), None)
        if found is None:
            known = ", ".join(format_rate(entry.rate) for entry in self.network)
            raise ValueError(
                f"no price for {format_rate(rate_bps)}; add it to `network` of the prices, which has {known}"
            )
        return found


def load_prices(path: Path | None = None) -> Prices:
    """Read a file of prices, by default that of paralet. Raises SpecError with all its mistakes."""
    return load_yaml(path or DEFAULT, Prices)
