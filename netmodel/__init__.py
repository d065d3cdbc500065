# SPDX-License-Identifier: Apache-2.0
"""The pure model of a fabric: topologies, forwarding, ECMP hashes, paths, source ports of paths, and YAML files."""

from netmodel.builders import leaf_spine
from netmodel.circuits import Circuits, check_circuits, duplex, far_end, joined, lit, lit_links
from netmodel.direct_connect import direct_connect, panel_of
from netmodel.flow import ENTROPY_PORTS, ROCE_PORT, Flow, FlowFields
from netmodel.forwarding import Forwarding, forwarding
from netmodel.hashes import AffineHash, CrcHash, EcmpHash, LinuxL4Hash, OvsHash, XorHash
from netmodel.located import LocatedError, Location, raise_all
from netmodel.paths import NoRouteError, Path, equal_cost_paths, path_of, paths_of_ports, ports_for_path
from netmodel.rails import rail_only, rail_optimised
from netmodel.rates import RateBps, format_rate, parse_rate
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
from netmodel.topology_yaml import LeafSpineSpec, TopologySpec, dump_topology, load_topology
from netmodel.yaml_source import Document, Mistake, SpecError, load_yaml, parse_yaml

__all__ = [
    "ENTROPY_PORTS",
    "ROCE_PORT",
    "AffineHash",
    "Circuits",
    "CrcHash",
    "Document",
    "EcmpHash",
    "Flow",
    "FlowFields",
    "Forwarding",
    "Host",
    "LeafSpineSpec",
    "Link",
    "LinuxL4Hash",
    "LocatedError",
    "Location",
    "Mistake",
    "Nic",
    "NoRouteError",
    "OvsHash",
    "Path",
    "PortRef",
    "RateBps",
    "Role",
    "SpecError",
    "Switch",
    "Topology",
    "TopologyError",
    "TopologySpec",
    "XorHash",
    "check_circuits",
    "derived_hash_seed",
    "derived_mac",
    "direct_connect",
    "dump_topology",
    "duplex",
    "equal_cost_paths",
    "far_end",
    "format_rate",
    "forwarding",
    "joined",
    "leaf_spine",
    "lit",
    "lit_links",
    "load_topology",
    "load_yaml",
    "panel_of",
    "parse_rate",
    "parse_yaml",
    "path_of",
    "paths_of_ports",
    "ports_for_path",
    "rail_only",
    "rail_optimised",
    "raise_all",
]
