# SPDX-License-Identifier: Apache-2.0
"""Fabrics that run: a topology becomes a Mininet network in a sandbox of namespaces that only this run has.

`emul.sandbox` makes the sandbox, `MininetFabric` the network in it, and `probe` tells what this machine can do.
Importing the package imports neither Mininet nor anything else that a machine may lack.
"""

from typing import TYPE_CHECKING, Any

from emul.machine import Finding, probe

if TYPE_CHECKING:
    from emul.mininet_fabric import FabricError, LinkCounters, MininetFabric

__all__ = ["FabricError", "Finding", "LinkCounters", "MininetFabric", "probe"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from emul import mininet_fabric

        return getattr(mininet_fabric, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
