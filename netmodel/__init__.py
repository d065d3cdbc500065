# SPDX-License-Identifier: Apache-2.0
"""The pure model of a fabric: topologies, forwarding, ECMP hashes, paths, source ports of paths, and YAML files.

Its names are imported when they are used: a command that only prints needs neither NumPy nor pydantic.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netmodel.builders import leaf_spine
    from netmodel.circuits import (
        Circuits,
        check_circuits,
        duplex,
        far_end,
        joined,
        light_path,
        links_with_circuits,
        with_circuits,
    )
    from netmodel.direct_connect_builder import direct_connect, panel_of
    from netmodel.fabric_tiers import pods, tiers, top_switches, uplinks
    from netmodel.flow import ENTROPY_PORTS, IPPROTO_TCP, IPPROTO_UDP, ROCE_PORT, Flow, FlowFields
    from netmodel.hashes import AffineHash, CrcHash, EcmpHash, LinuxCrcHash, LinuxL4Hash, OvsHash, XorHash
    from netmodel.located import LocatedError, Location, raise_all
    from netmodel.next_hops import Forwarding, WrittenNextHops, forwarding, in_order_of
    from netmodel.paths import NoRouteError, Path, equal_cost_paths, path_of, paths_of_ports, ports_for_path
    from netmodel.planes import in_planes
    from netmodel.rails import rail_only, rail_optimised
    from netmodel.rates import RateBps, format_rate, parse_rate
    from netmodel.routers import RouterAddresses, router_addresses
    from netmodel.three_tiers import clos, fat_tree
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
    from netmodel.topology_files import is_foreign, load_topology
    from netmodel.topology_yaml import LeafSpineSpec, TopologySpec, dump_topology
    from netmodel.yaml_source import Document, Mistake, SpecError, load_yaml, parse_yaml

__all__ = [
    "ENTROPY_PORTS",
    "IPPROTO_TCP",
    "IPPROTO_UDP",
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
    "LinuxCrcHash",
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
    "RouterAddresses",
    "SpecError",
    "Switch",
    "Topology",
    "TopologyError",
    "TopologySpec",
    "WrittenNextHops",
    "XorHash",
    "check_circuits",
    "clos",
    "derived_hash_seed",
    "derived_mac",
    "direct_connect",
    "dump_topology",
    "duplex",
    "equal_cost_paths",
    "far_end",
    "fat_tree",
    "format_rate",
    "forwarding",
    "in_order_of",
    "in_planes",
    "is_foreign",
    "joined",
    "leaf_spine",
    "light_path",
    "links_with_circuits",
    "load_topology",
    "load_yaml",
    "panel_of",
    "parse_rate",
    "parse_yaml",
    "path_of",
    "paths_of_ports",
    "pods",
    "ports_for_path",
    "rail_only",
    "rail_optimised",
    "raise_all",
    "router_addresses",
    "tiers",
    "top_switches",
    "uplinks",
    "with_circuits",
]

_MODULES = {
    "builders": ("leaf_spine",),
    "circuits": (
        "Circuits",
        "check_circuits",
        "duplex",
        "far_end",
        "joined",
        "light_path",
        "with_circuits",
        "links_with_circuits",
    ),
    "direct_connect_builder": ("direct_connect", "panel_of"),
    "flow": ("ENTROPY_PORTS", "IPPROTO_TCP", "IPPROTO_UDP", "ROCE_PORT", "Flow", "FlowFields"),
    "hashes": ("AffineHash", "CrcHash", "EcmpHash", "LinuxCrcHash", "LinuxL4Hash", "OvsHash", "XorHash"),
    "located": ("LocatedError", "Location", "raise_all"),
    "next_hops": ("Forwarding", "WrittenNextHops", "forwarding", "in_order_of"),
    "paths": ("NoRouteError", "Path", "equal_cost_paths", "path_of", "paths_of_ports", "ports_for_path"),
    "planes": ("in_planes",),
    "rails": ("rail_only", "rail_optimised"),
    "rates": ("RateBps", "format_rate", "parse_rate"),
    "routers": ("RouterAddresses", "router_addresses"),
    "three_tiers": ("clos", "fat_tree"),
    "fabric_tiers": ("pods", "tiers", "top_switches", "uplinks"),
    "topology": (
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
    ),
    "topology_files": ("is_foreign", "load_topology"),
    "topology_yaml": ("LeafSpineSpec", "TopologySpec", "dump_topology"),
    "yaml_source": ("Document", "Mistake", "SpecError", "load_yaml", "parse_yaml"),
}
"""The public names of every module."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # or mypy would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"netmodel.{_MODULE_OF[name]}"), name)
        return value
