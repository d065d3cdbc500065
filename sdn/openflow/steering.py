# SPDX-License-Identifier: Apache-2.0
"""Steering: what the OpenFlow app can be told, while switches run, to put above shortest-path routes. Pure."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from sdn.isolation.source_routing import SourceRouting
from sdn.isolation.virtual_clos import VirtualClos

Steering: TypeAlias = SourceRouting | VirtualClos


class Steer(BaseModel):
    """An order to the OpenFlow app, one JSON object per line: take up this steering, or, with null, do without.

    `circuits` are what the optical switches are set to; routes and steering are those of `netmodel.lit`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steer: Annotated[Steering, Field(discriminator="kind")] | None
    circuits: Mapping[str, Mapping[int, int]] = Field(default_factory=dict)
