# SPDX-License-Identifier: Apache-2.0
"""The pure model of a fabric: topologies, forwarding, ECMP hashes, paths and the ports that take them, YAML in and out."""

from netmodel.builders import leaf_spine
from netmodel.forwarding import Forwarding, forwarding
from netmodel.topology import (
    Host,
    Link,
    Nic,
    PortRef,
    Role,
    Switch,
    Topology,
    TopologyError,
    derived_hash_seed,
    derived_mac,
)

__all__ = [
    "Forwarding",
    "Host",
    "Link",
    "Nic",
    "PortRef",
    "Role",
    "Switch",
    "Topology",
    "TopologyError",
    "derived_hash_seed",
    "derived_mac",
    "forwarding",
    "leaf_spine",
]
