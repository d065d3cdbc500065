# SPDX-License-Identifier: Apache-2.0
"""What `paralet plan` is asked: a job, and the fabrics, scales and strategies to compare."""

from collections.abc import Iterator
from itertools import product
from typing import Literal, Self

from pydantic import Field, model_validator

from netmodel import RateBps
from testbed.conflict import Conflict
from testbed.spec.section import NAME, Section
from testbed.training.search import ZEROS, Space
from testbed.training.strategies import Recomputation
from testbed.training.transformer import MODELS, ModelName, Transformer

Kind = Literal["rail_only", "rail_optimised", "clos", "topoopt"]


class Shape(Section):
    """A transformer that has no name here."""

    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    sequence: int = Field(default=2048, ge=1)
    vocabulary: int = Field(default=51200, ge=1)
    feedforward: int | None = Field(default=None, ge=1)
    experts: int = Field(default=0, ge=0)
    chosen: int = Field(default=1, ge=1)
    key_heads: int | None = Field(default=None, ge=1)
    gated: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.experts and self.chosen > self.experts:
            raise Conflict(f"a token goes to at most all {self.experts} experts, not to {self.chosen}", "chosen")
        if self.key_heads and self.heads % self.key_heads:
            raise Conflict(f"must divide the {self.heads} heads, not {self.key_heads}", "key_heads")
        return self


class Fabrics(Section):
    """A fabric for each combination of the listed values.

    `rail_only` and `rail_optimised` have a leaf for each rail; `clos` has all NICs of a server on one leaf. `topoopt`
    joins the NICs of HB domains directly, over patch panels (W. Wang et al., "TopoOpt", NSDI 2023). `planes`
    splits every NIC into that many parallel fabrics, whose switches have as many times the ports at 1 / `planes` of the
    rate. `spare_gpus` of each HB domain are bought and stay idle until another one fails.
    """

    kind: Kind
    nic_rate: list[RateBps] = Field(default=[400_000_000_000], min_length=1)
    domain_gpus: list[int] = Field(default=[8], min_length=1)
    domain_rate: list[RateBps] | None = None
    """Of a GPU into its HB domain, each way; by default that of a DGX of this GPU."""
    spare_gpus: int = Field(default=0, ge=0)
    radix: list[int] = Field(default=[64], min_length=1)
    oversubscription: list[int] = Field(default=[1], min_length=1)
    tiers: list[Literal[1, 2, 3]] | None = Field(default=None, min_length=1)
    """Tiers of switches; by default the fewest that suffice."""
    planes: list[int] = Field(default=[1], min_length=1)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for name, least in (("domain_gpus", self.spare_gpus + 1), ("radix", 2), ("oversubscription", 1), ("planes", 1)):
            for number, value in enumerate(getattr(self, name)):
                if value < least:
                    raise Conflict(f"must be {least} or more, not {value}", name, number)
        if self.kind != "clos" and self.oversubscription != [1]:
            raise Conflict("only a fabric of kind clos is oversubscribed", "oversubscription")
        for key in ("radix", "tiers", "planes") if self.kind == "topoopt" else ():
            if key in self.model_fields_set:
                raise Conflict("a fabric of kind topoopt has no switches; leave it out", key)
        return self


class Strategies(Section):
    """The space of strategies; by default all of `training.search.Space`."""

    widest_tensor: int = Field(default=8, ge=1)
    deepest_pipeline: int = Field(default=1 << 20, ge=1)
    microbatches: list[int] = Field(default=[1, 2, 4, 8, 16], min_length=1)
    recomputations: list[Recomputation] = Field(default=["none", "selective", "full"], min_length=1)
    zeros: list[Literal[0, 1, 2, 3]] = Field(default=list(ZEROS), min_length=1)
    overlap_transfers: bool = False
    flash: bool = False
    overlap_tensor: bool = False
    fp8: bool = False

    @property
    def space(self) -> Space:
        """The limits as the search of `testbed.training` takes them."""
        return Space(
            widest_tensor=self.widest_tensor,
            deepest_pipeline=self.deepest_pipeline,
            microbatches=tuple(self.microbatches),
            recomputations=tuple(self.recomputations),
            zeros=tuple(self.zeros),
            overlap_transfers=self.overlap_transfers,
            flash=self.flash,
            overlap_tensor=self.overlap_tensor,
            fp8=self.fp8,
        )


class Limits(Section):
    """What the chosen point must keep: US dollars of capital, megawatts of the building, days of training."""

    capital_usd: float | None = Field(default=None, gt=0)
    megawatts: float | None = Field(default=None, gt=0)
    days: float | None = Field(default=None, gt=0)

    @property
    def said(self) -> str:
        """The limits in words, as the end of a sentence; empty without any."""
        given = {
            "${:,.0f} of capital": self.capital_usd,
            "{:g} MW": self.megawatts,
            "{:g} days": self.days,
        }
        said = [words.format(limit) for words, limit in given.items() if limit is not None]
        return f" within {', '.join(said)}" if said else ""


class Member(Section):
    """A further job of a mix, which has the cluster for its share of the time."""

    name: str = Field(pattern=NAME)
    model: ModelName | Shape
    batch: int = Field(ge=1)
    tokens: float = Field(default=300e9, gt=0)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class Job(Section):
    """A file for `paralet plan`: a job, or with `mix` several that take turns on the cluster."""

    name: str = Field(pattern=NAME)
    model: ModelName | Shape
    batch: int = Field(ge=1)
    """The sequences of an iteration."""
    tokens: float = Field(default=300e9, gt=0)
    """The tokens of the whole training."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """In a mix, this job's part of the time is its weight divided by the sum of all weights."""
    mix: list[Member] = Field(default_factory=list)
    """Further jobs that share the cluster in time."""
    gpu: Literal["a100", "h100"] = "h100"
    gpus: list[int] = Field(min_length=1)
    """The scales to compare: numbers of GPUs that train."""
    fabrics: list[Fabrics] = Field(min_length=1)
    strategies: Strategies = Strategies()
    choose: Literal["usd_per_token", "iteration_s", "capital_usd"] = "usd_per_token"
    """What the chosen point has the least of."""
    within: Limits = Limits()

    @model_validator(mode="after")
    def _scales(self) -> Self:
        for number, count in enumerate(self.gpus):
            if count < 1:
                raise Conflict(f"must be 1 or more, not {count}", "gpus", number)
        names = [self.name, *(part.name for part in self.mix)]
        for number, part in enumerate(self.mix):
            if part.name in names[: number + 1]:
                raise Conflict(f"another job is called {part.name!r} already", "mix", number, "name")
        return self

    @property
    def members(self) -> "list[Job]":
        """Every job of the mix by itself, this one first; `weight` is its part of the time."""
        total = self.weight + sum(part.weight for part in self.mix)
        first = self.model_copy(update={"mix": [], "weight": self.weight / total})
        others = ({**part.model_dump(exclude={"model"}), "model": part.model} for part in self.mix)
        return [first, *(first.model_copy(update={**part, "weight": part["weight"] / total}) for part in others)]

    @property
    def transformer(self) -> Transformer:
        """The model's shape."""
        if isinstance(self.model, str):
            return MODELS[self.model]
        return Transformer(name=self.name, **self.model.model_dump())


class Fabric(Section):
    """One fabric: `Fabrics` with a value for each list."""

    kind: Kind
    nic_bps: int
    domain_gpus: int
    domain_bps: int | None
    spare_gpus: int
    radix: int
    oversubscription: int
    tiers: int | None
    planes: int


def fabrics_of(job: Job) -> list[Fabric]:
    """All fabrics, in the order of the file."""
    return [fabric for some in job.fabrics for fabric in _each(some)]


def _each(some: Fabrics) -> Iterator[Fabric]:
    rates: list[int | None] = [*some.domain_rate] if some.domain_rate else [None]
    tiers: list[int | None] = [*some.tiers] if some.tiers else [None]
    for nic_bps, domain_gpus, domain_bps, radix, oversubscription, depth, planes in product(
        some.nic_rate, some.domain_gpus, rates, some.radix, some.oversubscription, tiers, some.planes
    ):
        yield Fabric(
            kind=some.kind,
            nic_bps=nic_bps,
            domain_gpus=domain_gpus,
            domain_bps=domain_bps,
            spare_gpus=some.spare_gpus,
            radix=radix,
            oversubscription=oversubscription,
            tiers=depth,
            planes=planes,
        )
