# SPDX-License-Identifier: Apache-2.0
"""The environment variables of a rank: the network that NCCL takes, and a host identity for each rank. Pure."""

from collections.abc import Mapping
from pathlib import Path

from testbed.nccl.results import AUTO, Setup

PLUGIN_TRANSPORT = "paralet"
TRANSPORTS = (PLUGIN_TRANSPORT, "Socket", "IB")
"""The plugin, and what is in NCCL itself."""

_OURS = (
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_HOSTID",
    "NCCL_MNNVL_ENABLE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
)


def of_rank(
    inherited: Mapping[str, str],
    transport: str,
    rank: int,
    plugin: Path | None,
    interface: str,
    log: Path,
    setup: Setup | None = None,
) -> dict[str, str]:
    """The environment of a rank's process: `inherited`, with what decides the network set or replaced.

    What else the caller has set for NCCL or the plugin (NCCL_ALGO, PARALET_LANES, ...) goes to every rank, unless
    `setup` replaces it.
    """
    ours = {
        "NCCL_NET": transport,
        "NCCL_NET_PLUGIN": str(plugin) if transport == PLUGIN_TRANSPORT and plugin else "none",
        # Ranks with the same host talk through memory; with one each they are hosts that only a network connects.
        "NCCL_HOSTID": f"paralet-{transport}-{rank}",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": str(log).replace("%", "%%"),
    }
    if setup is not None and setup.algorithm != AUTO:
        ours["NCCL_ALGO"] = setup.algorithm
    if setup is not None and setup.protocol != AUTO:
        ours["NCCL_PROTO"] = setup.protocol
    kept = {name: value for name, value in inherited.items() if name not in _OURS}
    kept.setdefault("NCCL_SOCKET_IFNAME", interface)
    kept.setdefault("NCCL_RAS_ENABLE", "0")  # a service that listens and is not used here
    if plugin is not None:
        before = [kept["LD_LIBRARY_PATH"]] if kept.get("LD_LIBRARY_PATH") else []
        kept["LD_LIBRARY_PATH"] = ":".join([str(plugin.parent), *before])  # what the plugin needs may lie beside it
    return kept | ours


def chosen(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that have a say in the figures, for the record; of the plugin's path only its name."""
    said = {name: value for name, value in sorted(environment.items()) if name.startswith(("NCCL_", "PARALET_"))}
    for name in ("NCCL_HOSTID", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        said.pop(name, None)
    return said | {"NCCL_NET_PLUGIN": Path(environment["NCCL_NET_PLUGIN"]).name}
