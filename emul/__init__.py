# SPDX-License-Identifier: Apache-2.0
"""Emulated fabrics: a topology becomes a network in a sandbox of namespaces that belongs to one run.

`emul.sandbox` makes the sandbox, in which `MininetFabric` makes a network of Open vSwitch, or `RoutedFabric` one of
routers. `probe` reports what this machine can do.
Importing this package imports neither Mininet nor anything else that a machine may lack.
"""

import importlib
from typing import TYPE_CHECKING, Any

from emul.machine import Finding, probe

if TYPE_CHECKING:
    from emul.commands import FabricError
    from emul.link_counters import LinkCounters
    from emul.link_faults import LinkFault
    from emul.mininet_fabric import MininetFabric
    from emul.routed.fabric import RoutedFabric

__all__ = ["FabricError", "Finding", "LinkCounters", "LinkFault", "MininetFabric", "RoutedFabric", "probe"]

_MODULES = {
    "FabricError": "emul.commands",
    "LinkCounters": "emul.link_counters",
    "LinkFault": "emul.link_faults",
    "MininetFabric": "emul.mininet_fabric",
    "RoutedFabric": "emul.routed.fabric",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
