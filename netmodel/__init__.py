# SPDX-License-Identifier: Apache-2.0
"""The pure model of a fabric: topologies, forwarding, ECMP hashes, paths and the ports that take them, YAML."""

from netmodel.builders import leaf_spine
from netmodel.flow import ENTROPY_PORTS, ROCE_PORT, Flow, FlowFields
from netmodel.forwarding import Forwarding, forwarding
from netmodel.hashes import AffineHash, CrcHash, EcmpHash, LinuxL4Hash, OvsHash, XorHash
from netmodel.paths import NoRouteError, Path, equal_cost_paths, path_of, paths_of_ports, ports_for_path
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
    "ENTROPY_PORTS",
    "ROCE_PORT",
    "AffineHash",
    "CrcHash",
    "EcmpHash",
    "Flow",
    "FlowFields",
    "Forwarding",
    "Host",
    "Link",
    "LinuxL4Hash",
    "Nic",
    "NoRouteError",
    "OvsHash",
    "Path",
    "PortRef",
    "Role",
    "Switch",
    "Topology",
    "TopologyError",
    "XorHash",
    "derived_hash_seed",
    "derived_mac",
    "equal_cost_paths",
    "forwarding",
    "leaf_spine",
    "path_of",
    "paths_of_ports",
    "ports_for_path",
]
