# SPDX-License-Identifier: Apache-2.0
"""Steering: tables by ingress port that precede shortest-path routes and can change while switches run. Pure."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from sdn.isolation.source_routing import SourceRouting
from sdn.isolation.virtual_clos import VirtualClos

Steering: TypeAlias = SourceRouting | VirtualClos


class Steer(BaseModel):
    """A request to the OpenFlow app, one JSON object per line: apply this steering, or, with null, none.

    `circuits` are those of the optical switches; routes and steering apply to `netmodel.with_circuits` of the topology.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steer: Annotated[Steering, Field(discriminator="kind")] | None
    circuits: Mapping[str, Mapping[int, int]] = Field(default_factory=dict)
