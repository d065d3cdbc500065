# SPDX-License-Identifier: Apache-2.0
"""The environment variables of a rank: the network that NCCL takes, and a host identity for each rank. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed.nccl.results import AUTO, Setup

PLUGIN_TRANSPORT = "paralet"
TRANSPORTS = (PLUGIN_TRANSPORT, "Socket", "IB")
"""The plugin, and what is in NCCL itself."""

_SOCKET_SETTING = re.compile(r"Socket:(?P<threads>\d{1,2})x(?P<each>\d{1,2})")

SHARDED = ("soft", "tcp")
"""The back ends that can have several shards."""

MOST_SHARDS = 16
"""As kMaxShards in hostlib/native/src/backend/backend.hpp."""

_SHARDED = re.compile(rf"(?P<back_end>{'|'.join(SHARDED)}):(?P<shards>[1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Transport:
    """What carries the traffic of a group of ranks: a value of NCCL_NET, and variables of these ranks alone."""

    net: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether the plugin carries it."""
        return self.net == PLUGIN_TRANSPORT


def named(transport: str) -> Transport:
    """The transport of this name: one of `TRANSPORTS`, `Socket:TxS` for T threads with S sockets each, a back end of
    the plugin, or one of `SHARDED` with K shards, as `tcp:2`. What is none of these is taken for a back end.

    The plugin alone (`paralet`) has the back end that the caller has set, or its default.
    """
    if transport in TRANSPORTS:
        return Transport(transport)
    if match := _SOCKET_SETTING.fullmatch(transport):
        return Transport("Socket", {"NCCL_SOCKET_NTHREADS": match["threads"], "NCCL_NSOCKS_PERTHREAD": match["each"]})
    if (match := _SHARDED.fullmatch(transport)) and int(match["shards"]) <= MOST_SHARDS:
        return Transport(PLUGIN_TRANSPORT, {"PARALET_BACKEND": match["back_end"], "PARALET_SHARDS": match["shards"]})
    return Transport(PLUGIN_TRANSPORT, {"PARALET_BACKEND": transport})


def file_name(transport: str) -> str:
    """The name in names of files."""
    return transport.replace(":", "-")


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
    taken = named(transport)
    ours = {
        **taken.variables,
        "NCCL_NET": taken.net,
        "NCCL_NET_PLUGIN": str(plugin) if taken.ours and plugin else "none",
        # Ranks with the same host talk through memory; with one each they are hosts that only a network connects.
        "NCCL_HOSTID": f"paralet-{file_name(transport)}-{rank}",
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
