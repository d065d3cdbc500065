# SPDX-License-Identifier: Apache-2.0
"""The fabric of a spec, without what runs on it."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from netmodel import Topology, TopologySpec, raise_all
from netmodel.located import LocatedError
from sdn.openflow.source_rules import Pinning
from testbed.conflict import Conflict
from testbed.spec.fabrics import FABRICS, FabricKind, FabricName
from testbed.spec.placing import sending_port_named
from testbed.spec.settings import OpenFlowSettings, RouterSettings
from testbed.spec.written import AnyTopology, LinkSettings


class BareFabric(BaseModel):
    """The keys of a spec that say how its fabric is. Its other keys may have any values."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str
    topology: AnyTopology
    fabric: FabricName = "mininet"
    pinning: Pinning = "hash"
    links: dict[str, LinkSettings] = Field(default_factory=dict)
    routers: RouterSettings = RouterSettings()
    openflow: OpenFlowSettings | None = None

    @classmethod
    def of(cls, topology: Topology, fabric: FabricName | None) -> Self:
        """A topology as the fabric of that kind, `mininet` by default."""
        return cls(name=topology.name, topology=TopologySpec.of(topology), fabric=fabric or "mininet")

    @property
    def built(self) -> Topology:
        """The topology, which must be in place."""
        assert isinstance(self.topology, TopologySpec)  # see `load_bare`
        return self.topology.topology

    @property
    def kind(self) -> FabricKind:
        """What the fabric has."""
        return FABRICS[self.fabric]

    def check(self) -> None:
        """Raises Conflict for `links` and `routers` that do not fit the topology; `others` are further ones."""
        found: list[LocatedError] = []
        try:
            self.routers.ecmp_hash(self.built)
        except ValueError as error:
            found.append(Conflict(str(error), "routers", "hash_offset"))
        try:
            self.kind.check_addresses(self.built)
        except Conflict as error:
            found.append(error)
        if self.openflow is not None and self.fabric != "mininet":
            said = "only fabric mininet has switches with OpenFlow; leave it out, or use mininet"
            found.append(Conflict(said, "openflow"))
        for text in self.links:
            try:
                sending_port_named(text, self.built, "links", text)
            except Conflict as error:
                found.append(error)
        raise_all(found)
